// The masks of one photo while it is open: one byte raster a class at full size, and edits that can be taken back.

import { getJson, raw } from "./api.js";
import { History } from "./history.js";
import { clip, cut, pack, paste, rect, union, unpack } from "./pixels.js";
import { decode } from "./png.js";

const TILE = 256; // an edit keeps what it overwrites in squares of this size

export class Layer {
  raster = null; // Uint8Array of 0 and 1, made when first needed
  earlier = null; // the mask before the last run, while it is compared
  revision = 0; // what the server holds and this raster is based on
  origin = null; // "person" or "found"
  startedEmpty = true; // there was no mask when the photo was opened
  dirty = null; // rectangle that the server has not got yet
  sending = false;
  conflict = null; // revision of a mask that somebody else saved meanwhile
  problem = null; // why the last attempt to save failed

  constructor(doc, classId) {
    this.doc = doc;
    this.classId = classId;
  }

  get path() {
    return `/api/photos/${this.doc.photo.id}/mask/${this.classId}`;
  }

  get waiting() {
    return this.dirty !== null || this.sending;
  }

  ensure() {
    this.raster ??= new Uint8Array(this.doc.width * this.doc.height);
    return this.raster;
  }

  /** The mask that the server holds: its raster (null: there is none) and revision. */
  async fetch() {
    const response = await raw(this.path);
    if (response.status === 204) return { raster: null, revision: 0 };
    const { values, width, height } = await decode(await response.blob());
    if (width !== this.doc.width || height !== this.doc.height) {
      const expected = `${this.doc.width} x ${this.doc.height}`;
      throw new Error(`${this.doc.photo.name}: the mask is ${width} x ${height}, the photo ${expected}; load the page again`);
    }
    return { raster: values, revision: Number(response.headers.get("X-Revision")) };
  }

  /** Takes a fetched mask; what was painted here and not saved is dropped. */
  take({ raster, revision }) {
    this.raster = raster;
    this.revision = revision;
    this.startedEmpty = raster === null;
    this.dirty = this.conflict = this.problem = null;
    this.origin = raster ? (this.doc.photo.masks[this.classId]?.origin ?? "found") : null;
    this.doc.corrected ||= this.origin === "found";
    this.doc.history.forget(this.classId);
  }
}

export class Doc {
  layers = new Map();
  corrected = false; // the network found a mask here: what a person saves is a correction
  keptOut = false; // the person said that the photo is no example
  notThis = false; // what is being saved was marked as wrong: the photo becomes an example of that

  constructor(photo) {
    this.photo = photo;
    this.width = photo.width;
    this.height = photo.height;
    this.history = new History();
  }

  static async open(id) {
    const photo = await getJson(`/api/photos/${id}`);
    const doc = new Doc(photo);
    await Promise.all(Object.keys(photo.masks).map((classId) => doc.reload(Number(classId))));
    return doc;
  }

  layer(classId) {
    if (!this.layers.has(classId)) this.layers.set(classId, new Layer(this, classId));
    return this.layers.get(classId);
  }

  async reload(classId) {
    const layer = this.layer(classId);
    layer.take(await layer.fetch());
  }

  get bounds() {
    return rect(0, 0, this.width, this.height);
  }

  get waiting() {
    return [...this.layers.values()].some((layer) => layer.waiting || layer.conflict !== null);
  }
}

/** Changes to pixels that are still being made; they become one step of the history, or are taken back. */
export class Edit {
  #tiles = new Map(); // layer -> Map(tile number -> { area, before })

  /** value 1 marks the class, 0 unmarks it; `takeOthers`: marked pixels are taken from the other classes. */
  constructor(doc, classId, value, takeOthers = false) {
    this.doc = doc;
    this.layer = doc.layer(classId);
    this.value = value;
    const others = [...doc.layers.values()].filter((layer) => layer !== this.layer && layer.raster);
    this.others = value && takeOthers ? others : [];
  }

  /** Says that pixels within this rectangle are about to change. */
  touch(area) {
    const inside = clip(area, this.doc.width, this.doc.height);
    if (!inside) return null;
    for (const layer of [this.layer, ...this.others]) {
      layer.ensure();
      if (!this.#tiles.has(layer)) this.#tiles.set(layer, new Map());
      const kept = this.#tiles.get(layer);
      const across = Math.ceil(this.doc.width / TILE);
      for (let ty = Math.floor(inside.y / TILE); ty * TILE < inside.y + inside.height; ty++) {
        for (let tx = Math.floor(inside.x / TILE); tx * TILE < inside.x + inside.width; tx++) {
          const number = ty * across + tx;
          if (kept.has(number)) continue;
          const square = clip(rect(tx * TILE, ty * TILE, TILE, TILE), this.doc.width, this.doc.height);
          kept.set(number, { area: square, before: cut(layer.raster, this.doc.width, square) });
        }
      }
    }
    return inside;
  }

  /** Marks or unmarks a run of pixels in a touched rectangle. */
  run = (y, from, to) => {
    const start = y * this.doc.width;
    this.layer.raster.fill(this.value, start + from, start + to);
    for (const other of this.others) other.raster.fill(0, start + from, start + to);
  };

  /** Puts values (0 and 1) where `area` is. */
  replace(area, values) {
    this.touch(area);
    for (let row = 0; row < area.height; row++) {
      const start = (area.y + row) * this.doc.width + area.x;
      for (let i = 0; i < area.width; i++) {
        const value = values[row * area.width + i];
        this.layer.raster[start + i] = value;
        if (value) for (const other of this.others) other.raster[start + i] = 0;
      }
    }
  }

  /** Marks (or unmarks) the pixels that are 1 in `values`. */
  stamp(area, values) {
    this.touch(area);
    for (let row = 0; row < area.height; row++) {
      const line = values.subarray(row * area.width, (row + 1) * area.width);
      for (let from = line.indexOf(1); from >= 0; ) {
        const end = line.indexOf(0, from);
        const to = end < 0 ? area.width : end;
        this.run(area.y + row, area.x + from, area.x + to);
        from = line.indexOf(1, to);
      }
    }
  }

  /** Takes everything back; returns the rectangle that changed. */
  revert() {
    let changed = null;
    for (const [layer, kept] of this.#tiles) {
      for (const { area, before } of kept.values()) {
        paste(layer.raster, this.doc.width, area, before);
        changed = union(changed, area);
      }
    }
    this.#tiles.clear();
    return changed;
  }

  /** The finished step, or null where no pixel changed. */
  finish(name) {
    const patches = [];
    for (const [layer, kept] of this.#tiles) {
      for (const { area, before } of kept.values()) {
        const after = cut(layer.raster, this.doc.width, area);
        const first = before.findIndex((value, index) => value !== after[index]);
        if (first >= 0) patches.push({ classId: layer.classId, area, before: pack(before), after: pack(after) });
      }
    }
    this.#tiles.clear();
    return patches.length ? { name, patches } : null;
  }
}

/** Puts one side ("before" or "after") of a step into the rasters; returns the changed rectangle by class. */
export function applyStep(doc, step, side) {
  const changed = new Map();
  for (const patch of step.patches) {
    const values = unpack(patch[side], patch.area.width * patch.area.height);
    paste(doc.layer(patch.classId).ensure(), doc.width, patch.area, values);
    changed.set(patch.classId, union(changed.get(patch.classId), patch.area));
  }
  return changed;
}

/** The rectangle by class that a step changed. */
export function extent(step) {
  const changed = new Map();
  for (const { classId, area } of step.patches) changed.set(classId, union(changed.get(classId), area));
  return changed;
}
