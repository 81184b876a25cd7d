// Polygon: clicks set corners, a drag draws freehand; closing it adds to the mask or takes away.

import { repaintArea, repaintPointer, twoTone, view } from "../canvas.js";
import { begin, commit } from "../editor.js";
import { polygonBounds, polygonRows } from "../pixels.js";
import { get } from "../state.js";

const NEAR = 10; // CSS pixels: a click this close to the first corner closes the polygon
const STEP = 4; // CSS pixels between corners of a freehand line

class Polygon {
  name = "polygon";
  #points = [];
  #takes = false;
  #pointer = null;
  #dragFrom = null;

  down(p) {
    if (!this.#points.length) this.#takes = p.button === 2 || p.ctrl;
    if (this.#points.length >= 3 && this.#nearFirst(p)) {
      this.#close();
      return;
    }
    this.#points.push([p.ix, p.iy]);
    this.#dragFrom = p;
  }

  move(p) {
    this.#pointer = p;
    if (this.#dragFrom && Math.hypot(p.x - this.#dragFrom.x, p.y - this.#dragFrom.y) >= STEP) {
      this.#points.push([p.ix, p.iy]);
      this.#dragFrom = p;
    }
  }

  up(p) {
    const freehand = this.#points.length > 8 && this.#dragFrom && this.#nearFirst(p);
    this.#dragFrom = null;
    if (freehand) this.#close();
  }

  hover(p) {
    this.#pointer = p;
  }

  twice() {
    this.#close();
  }

  /** Backspace and undo drop the last corner, Enter closes, Escape gives up. */
  key(name) {
    if (!this.#points.length) return false;
    if (name === "drop") this.#points.pop();
    else if (name === "finish") this.#close();
    else if (name === "give-up") this.#points = [];
    else return false;
    repaintPointer();
    return true;
  }

  cancel() {
    this.#dragFrom = null;
  }

  leave() {
    this.#points = [];
    this.#dragFrom = null;
    repaintPointer();
  }

  #nearFirst(p) {
    const [x, y] = view.toScreen(...this.#points[0]);
    return Math.hypot(p.x - x, p.y - y) <= NEAR;
  }

  #close() {
    const points = this.#points;
    this.#points = [];
    if (points.length < 3) return;
    const edit = begin(this.#takes ? 0 : 1);
    if (!edit) return;
    const touched = edit.touch(polygonBounds(points));
    if (touched) {
      const { width, height } = get("doc");
      polygonRows(points, width, height, edit.run);
      repaintArea(touched);
    }
    commit(edit, this.#takes ? "polygon taken away" : "polygon");
    repaintPointer();
  }

  draw(context) {
    if (!this.#points.length) return;
    const colour = this.#takes ? "#ff5a4f" : "#fff";
    const line = new Path2D();
    const corners = this.#points.map(([x, y]) => view.toScreen(x, y));
    corners.forEach(([x, y], index) => (index ? line.lineTo(x, y) : line.moveTo(x, y)));
    if (this.#pointer) line.lineTo(this.#pointer.x, this.#pointer.y);
    twoTone(context, line, colour);
    const closes = this.#points.length >= 3 && this.#pointer && this.#nearFirst(this.#pointer);
    corners.forEach(([x, y], index) => {
      const dot = new Path2D();
      dot.arc(x, y, index === 0 ? (closes ? 7 : 5) : 2.5, 0, 2 * Math.PI);
      twoTone(context, dot, colour);
    });
  }
}

export const polygon = new Polygon();
