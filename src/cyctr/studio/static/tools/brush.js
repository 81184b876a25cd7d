// Brush, eraser and "not this": a stroke marks or unmarks whole pixels of the photo.

import { repaintArea, twoTone, view } from "../canvas.js";
import { begin, commit } from "../editor.js";
import { strokeBounds, strokeRows } from "../pixels.js";
import { get } from "../state.js";

const ERASING = "#ff5a4f";

class Brush {
  strokes = true;
  #edit = null;
  #last = null; // pixel where the stroke is, or where the last one ended
  #erasing = false;

  constructor(name, value) {
    this.name = name;
    this.value = value;
  }

  down(p) {
    this.#erasing = this.value === 0 || p.button === 2 || p.ctrl;
    this.#edit = begin(this.#erasing ? 0 : 1);
    if (!this.#edit) return;
    const here = { x: p.px, y: p.py };
    // Shift and a click: a straight line from where the last stroke ended, for hands that cannot drag
    const from = p.shift && this.#last?.doc === get("doc") ? this.#last : here;
    this.#stroke(from, here);
  }

  move(p) {
    if (this.#edit) this.#stroke(this.#last, { x: p.px, y: p.py });
  }

  up() {
    if (!this.#edit) return;
    const step = commit(this.#edit, this.#erasing ? "erase" : "paint");
    if (step && this.name === "not-this") this.#edit.doc.notThis = true;
    this.#edit = null;
    this.#erasing = false;
  }

  cancel() {
    if (this.#edit) repaintArea(this.#edit.revert());
    this.#edit = null;
    this.#erasing = false;
  }

  leave() {
    this.up();
  }

  #stroke(from, to) {
    const { doc } = this.#edit;
    const touched = this.#edit.touch(strokeBounds(from, to, get("brush")));
    if (touched) {
      strokeRows(from, to, get("brush"), doc.width, doc.height, this.#edit.run);
      repaintArea(touched);
    }
    this.#last = { ...to, doc };
  }

  draw(context, pointer) {
    if (!pointer) return;
    const radius = Math.max(2, (get("brush") * view.scale) / 2);
    const ring = new Path2D();
    const [x, y] = view.toScreen(pointer.px + 0.5, pointer.py + 0.5);
    ring.arc(x, y, radius, 0, 2 * Math.PI);
    const erases = this.value === 0 || this.#erasing || (!this.#edit && pointer.ctrl);
    twoTone(context, ring, erases ? ERASING : "#fff");
    if (this.name === "not-this") {
      const bar = new Path2D();
      const part = radius * Math.SQRT1_2;
      bar.moveTo(x - part, y - part);
      bar.lineTo(x + part, y + part);
      twoTone(context, bar, ERASING);
    }
  }
}

export const brush = new Brush("brush", 1);
export const eraser = new Brush("eraser", 0);
export const notThis = new Brush("not-this", 0);
