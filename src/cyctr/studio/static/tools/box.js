// Box: two clicks or a drag. It fills the mask, finds the thing within, or runs the network on that crop only.

import { repaintArea, repaintPointer, twoTone, view } from "../canvas.js";
import { begin, commit } from "../editor.js";
import { clip, rect } from "../pixels.js";
import { emit, get } from "../state.js";

const A_DRAG = 4; // CSS pixels: less is a click

class Box {
  #from = null;
  #pressed = false;
  #pointer = null;
  #takes = false;

  constructor(name, finish) {
    this.name = name;
    this.finish = finish;
  }

  down(p) {
    if (this.#from) {
      this.#end(p); // the second click
      return;
    }
    this.#from = p;
    this.#pressed = true;
    this.#takes = p.button === 2 || p.ctrl;
  }

  move(p) {
    this.#pointer = p;
  }

  hover(p) {
    this.#pointer = p;
  }

  up(p) {
    if (!this.#pressed) return;
    this.#pressed = false;
    if (Math.hypot(p.x - this.#from.x, p.y - this.#from.y) >= A_DRAG) this.#end(p);
  }

  cancel() {
    this.#from = null;
    this.#pressed = false;
  }

  leave() {
    this.cancel();
    repaintPointer();
  }

  key(name) {
    if (!this.#from || name !== "give-up") return false;
    this.leave();
    return true;
  }

  /** The whole pixels from one corner to the other, both included. */
  #area(p) {
    const [x, y] = [Math.min(this.#from.px, p.px), Math.min(this.#from.py, p.py)];
    return rect(x, y, Math.abs(this.#from.px - p.px) + 1, Math.abs(this.#from.py - p.py) + 1);
  }

  #end(p) {
    const { width, height } = get("doc");
    const area = clip(this.#area(p), width, height);
    this.cancel();
    if (area) this.finish(area, this.#takes);
    repaintPointer();
  }

  draw(context) {
    if (!this.#from) {
      if (this.#pointer) this.#cross(context);
      return;
    }
    if (!this.#pointer) return;
    const area = this.#area(this.#pointer);
    const [x, y] = view.toScreen(area.x, area.y);
    const path = new Path2D();
    path.rect(x, y, area.width * view.scale, area.height * view.scale);
    twoTone(context, path, this.#takes ? "#ff5a4f" : "#fff");
  }

  #cross(context) {
    const path = new Path2D();
    const { x, y } = this.#pointer;
    path.moveTo(x - 9, y);
    path.lineTo(x + 9, y);
    path.moveTo(x, y - 9);
    path.lineTo(x, y + 9);
    twoTone(context, path);
  }
}

function fill(area, takes) {
  const edit = begin(takes ? 0 : 1);
  if (!edit) return;
  edit.touch(area);
  for (let y = area.y; y < area.y + area.height; y++) edit.run(y, area.x, area.x + area.width);
  repaintArea(area);
  commit(edit, takes ? "box taken away" : "box");
}

export const box = new Box("box", fill);

/** A box around a thing: the smart click looks for it there. */
export const frame = new Box("frame", (area) => emit("framed", area));

/** A region: the network looks at this crop only, and its answer is placed back. */
export const region = new Box("region", (area) => emit("region", area));
