// Tools whose mask the server computes: smart click, box around a thing, magic wand, region.

import { post } from "../api.js";
import { repaintArea, repaintPointer, twoTone, view } from "../canvas.js";
import { tell } from "../dialogs.js";
import { begin, commit } from "../editor.js";
import { isLoading, tellIfLoading } from "../model.js";
import { cut, rect } from "../pixels.js";
import { decodeBase64 } from "../png.js";
import { emit, get, on } from "../state.js";
import { channels } from "../thumbs.js";

const NEAR = 9; // CSS pixels: a click this close to a point deletes it
const HOVER_AFTER = 160; // milliseconds of rest
const HOVER_UNDER = 700; // milliseconds: a slower answer is not asked for on hovering

/** Requests of which the newest counts; an older answer is dropped. */
class Newest {
  #controller = null;
  took = 0;

  async ask(path, json) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    const began = performance.now();
    const answer = await post(path, json, { signal: controller.signal });
    this.took = performance.now() - began;
    if (this.#controller !== controller) return null;
    if (!answer.png) return { area: null, values: null, kind: answer.kind };
    const { values } = await decodeBase64(answer.png);
    if (this.#controller !== controller) return null;
    return { area: rect(answer.x, answer.y, answer.width, answer.height), values, kind: answer.kind };
  }

  drop() {
    this.#controller?.abort();
    this.#controller = null;
  }
}

const path = (what) => `/api/photos/${get("photo").id}/${what}`;

// ---- smart click --------------------------------------------------------------------------------------------------

class Click {
  name = "click";
  #session = null; // { doc, classId, points, box, takes, under }: clicks that together make one mask
  #applied = null; // the session as it was when its last answer was put into the mask
  #pending = null; // the answer that is on its way
  #finishing = false; // the points are finished as soon as it is here
  #asking = new Newest();
  #hovering = new Newest();
  #candidate = null;
  #timer = null;

  down(p) {
    if (get("classId") === null) {
      emit("class-needed");
      return;
    }
    if (this.#finishing) {
      this.#pending.then(() => this.down(p)); // a click on the next thing
      return;
    }
    this.#forgetCandidate();
    const away = p.button === 2 || p.alt;
    if (!this.#isHere()) this.#applied = null;
    const session = this.#isHere() ? this.#session : this.#fresh({ takes: away });
    const near = session.points.findIndex(([x, y]) => Math.hypot(...minus(view.toScreen(x + 0.5, y + 0.5), p)) <= NEAR);
    const points = near >= 0 ? session.points.filter((_, index) => index !== near) : [...session.points, [p.px, p.py, away === session.takes ? 1 : 0]];
    this.#move({ ...session, points });
    // Ctrl collects points; the question is asked once, when a click comes without it
    if (!p.ctrl) this.#pending = this.#answer();
  }

  /** A box drawn around a thing begins a new mask. */
  frame(area) {
    if (get("classId") === null) {
      emit("class-needed");
      return;
    }
    const box = [area.x, area.y, area.x + area.width, area.y + area.height];
    this.#applied = null;
    this.#move(this.#fresh({ box }));
    this.#pending = this.#answer();
  }

  #fresh(given) {
    return { doc: get("doc"), classId: get("classId"), points: [], box: null, takes: false, under: null, ...given };
  }

  /** Whether a mask is begun, of this photo and class: a smart box leaves one behind when another photo comes. */
  #isHere() {
    return this.#session?.doc === get("doc") && this.#session?.classId === get("classId");
  }

  #move(session) {
    this.#session = session;
    emit("click-points", session?.points.length ?? 0);
    repaintPointer();
  }

  async #answer() {
    const session = this.#session;
    const asked = session.points.some((point) => point[2]) || session.box;
    try {
      emit("thinking", true);
      tellIfLoading();
      // without a point on the thing there is nothing to ask: what was marked is taken back
      const answer = asked
        ? await this.#asking.ask(path("click"), { class: get("classId"), points: session.points, box: session.box, kind: get("clickKind") })
        : { area: null };
      if (answer && this.#session === session && this.#isHere()) this.#apply(session, answer);
    } catch (error) {
      tell(error);
    } finally {
      emit("thinking", false);
    }
  }

  /** Replaces what the earlier points had marked; one click is one step. */
  #apply(session, { area, values }) {
    const edit = begin(session.takes ? 0 : 1);
    if (!edit) return;
    if (session.under) {
      edit.replace(session.under.area, session.under.values);
      repaintArea(session.under.area);
    }
    const after = { ...session, under: null };
    if (area) {
      after.under = { area, values: cut(edit.layer.ensure(), edit.doc.width, area) };
      edit.stamp(area, values);
      repaintArea(area);
    }
    commit(edit, "smart click", { before: this.#applied, after });
    this.#applied = after;
    this.#move(after);
  }

  /** Undo and redo bring the points back, too. */
  follow({ step, side }) {
    if (step.session?.after.doc !== get("doc")) return;
    this.#applied = step.session[side];
    this.#move(this.#applied);
  }

  hover(p) {
    clearTimeout(this.#timer);
    if (!p || (this.#isHere() && this.#session.points.length) || get("classId") === null || this.#hovering.took > HOVER_UNDER || isLoading()) {
      this.#forgetCandidate();
      return;
    }
    this.#timer = setTimeout(() => this.#look(p), HOVER_AFTER);
  }

  async #look(p) {
    const { width, height } = get("doc");
    if (p.px < 0 || p.py < 0 || p.px >= width || p.py >= height) return;
    try {
      const body = { class: get("classId"), points: [[p.px, p.py, 1]], box: null, kind: get("clickKind") };
      const answer = await this.#hovering.ask(path("click"), body);
      if (!answer) return;
      this.#candidate = answer.area ? picture(answer) : null;
      repaintPointer();
    } catch (error) {
      // hovering is a courtesy: a click will say what is wrong; a request that was replaced says nothing of the newer one
      if (error.name !== "AbortError") this.#forgetCandidate();
    }
  }

  #forgetCandidate() {
    clearTimeout(this.#timer);
    this.#hovering.drop();
    this.#candidate = null;
    repaintPointer();
  }

  key(name) {
    if (!this.#isHere() || !(this.#session.points.length || this.#session.box)) return false;
    if (name === "give-up") this.leave();
    else if (name === "finish") this.#finish();
    else return false;
    return true;
  }

  async #finish() {
    this.#finishing = true;
    await this.#pending;
    if (this.#finishing) this.leave();
  }

  leave() {
    this.#finishing = false;
    this.#pending = null;
    this.#asking.drop();
    this.#forgetCandidate();
    this.#applied = null;
    this.#move(null);
  }

  draw(context) {
    if (this.#candidate) drawPicture(context, this.#candidate);
    for (const [x, y, label] of this.#isHere() ? this.#session.points : []) {
      const [sx, sy] = view.toScreen(x + 0.5, y + 0.5);
      const marks = (label === 1) !== this.#session.takes;
      const sign = new Path2D();
      sign.moveTo(sx - 5, sy);
      sign.lineTo(sx + 5, sy);
      if (marks) {
        sign.moveTo(sx, sy - 5);
        sign.lineTo(sx, sy + 5);
      }
      twoTone(context, sign, marks ? "#5ee08a" : "#ff5a4f", 2.5);
    }
  }
}

const minus = ([x, y], p) => [x - p.x, y - p.y];

/** A mask as a picture in the colour of the chosen class. */
function picture({ area, values }) {
  const [red, green, blue] = channels(get("project").classes.find((item) => item.id === get("classId")).color);
  const canvas = new OffscreenCanvas(area.width, area.height);
  const context = canvas.getContext("2d");
  const data = context.createImageData(area.width, area.height);
  const out = new Uint32Array(data.data.buffer);
  const colour = (115 << 24) | (blue << 16) | (green << 8) | red;
  for (let i = 0; i < values.length; i++) if (values[i]) out[i] = colour;
  context.putImageData(data, 0, 0);
  return { area, canvas };
}

function drawPicture(context, { area, canvas }) {
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, ...view.toScreen(area.x, area.y), area.width * view.scale, area.height * view.scale);
}

export const click = new Click();
on("step-moved", (moved) => click.follow(moved));
on("framed", (area) => click.frame(area));

// ---- magic wand ---------------------------------------------------------------------------------------------------

class Wand {
  name = "wand";
  #edit = null;
  #from = null;
  #takes = false;
  #tolerance = 0;
  #asking = new Newest();
  #last = null;

  down(p) {
    if (get("classId") === null) {
      emit("class-needed");
      return;
    }
    this.#from = p;
    this.#takes = p.button === 2 || p.ctrl;
    this.#grow(get("tolerance"));
  }

  /** The further the pointer is dragged, the more the colours may differ. */
  move(p) {
    if (!this.#from) return;
    const tolerance = Math.round(get("tolerance") + Math.hypot(p.x - this.#from.x, p.y - this.#from.y) / 6);
    if (tolerance !== this.#tolerance) this.#grow(tolerance);
  }

  #grow(tolerance) {
    this.#tolerance = tolerance;
    const from = this.#from;
    this.#last = this.#asking
      .ask(path("wand"), { x: from.px, y: from.py, tolerance })
      .then((answer) => {
        if (!answer) return;
        if (this.#edit) repaintArea(this.#edit.revert());
        this.#edit = begin(this.#takes ? 0 : 1);
        if (!answer.area) return;
        this.#edit.stamp(answer.area, answer.values);
        repaintArea(answer.area);
      })
      .catch(tell);
  }

  async up() {
    if (!this.#from) return;
    this.#from = null;
    await this.#last;
    if (this.#edit && !this.#from) commit(this.#edit, "wand");
    this.#edit = null;
  }

  cancel() {
    this.#asking.drop();
    if (this.#edit) repaintArea(this.#edit.revert());
    this.#edit = this.#from = null;
  }

  leave() {
    this.cancel();
  }

  draw(context) {
    if (!this.#from) return;
    const text = `± ${this.#tolerance}`;
    context.font = "600 12px system-ui, sans-serif";
    const label = new Path2D();
    label.roundRect(this.#from.x + 12, this.#from.y - 26, context.measureText(text).width + 12, 20, 5);
    context.fillStyle = "rgba(0, 0, 0, 0.75)";
    context.fill(label);
    context.fillStyle = "#fff";
    context.fillText(text, this.#from.x + 18, this.#from.y - 12);
  }
}

export const wand = new Wand();

// ---- region -------------------------------------------------------------------------------------------------------

on("region", async (area) => {
  const doc = get("doc");
  const box = [area.x, area.y, area.x + area.width, area.y + area.height];
  try {
    emit("thinking", true);
    tellIfLoading();
    const { masks } = await post(path("region"), { box, class: get("classId") });
    for (const mask of masks) {
      const { values } = await decodeBase64(mask.png);
      if (get("doc") !== doc || mask.class !== get("classId")) continue;
      const edit = begin(1);
      edit.replace(rect(mask.x, mask.y, mask.width, mask.height), values);
      repaintArea(area);
      commit(edit, "region");
    }
  } catch (error) {
    tell(error);
  } finally {
    emit("thinking", false);
  }
});

// ---- why ----------------------------------------------------------------------------------------------------------

export const why = {
  name: "why",
  down(p) {
    const { width, height } = get("doc");
    if (p.px >= 0 && p.py >= 0 && p.px < width && p.py < height) emit("explain", { x: p.px, y: p.py });
  },
  draw(context, pointer) {
    if (!pointer) return;
    context.font = "700 15px system-ui, sans-serif";
    context.lineWidth = 3;
    context.strokeStyle = "rgba(0, 0, 0, 0.7)";
    context.strokeText("?", pointer.x + 10, pointer.y - 8);
    context.fillStyle = "#fff";
    context.fillText("?", pointer.x + 10, pointer.y - 8);
  },
};
