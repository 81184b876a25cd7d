// What the page knows of the photos: one record an id, and lists that load the part that is looked at.

import { getJson, query } from "./api.js";
import { emit } from "./state.js";

const PAGE = 100;
const known = new Map();

export const photoOf = (id) => known.get(id) ?? null;

/** Takes news of a photo; everything that shows it is told by the event `photo-changed`. */
export function learn(photo) {
  const present = known.get(photo.id);
  if (present) Object.assign(present, photo);
  else known.set(photo.id, photo);
  const record = known.get(photo.id);
  emit("photo-changed", record);
  return record;
}

/** Takes news of one mask of a photo. */
export function learnMask(photoId, classId, mask) {
  const photo = known.get(photoId);
  if (!photo) return;
  const masks = { ...photo.masks };
  if (mask) masks[classId] = { ...masks[classId], ...mask };
  else delete masks[classId];
  learn({ ...photo, masks });
}

/** A long list of photos in an order of the server's; positions that were not asked for are not loaded. */
export class PhotoList {
  total = 0;
  #ids = []; // sparse: position -> id
  #asked = new Map(); // page -> promise
  #generation = 0;

  /** `changed` is called when something arrived. */
  constructor(changed) {
    this.changed = changed;
    this.filters = { sort: "name" };
  }

  /** Begins again with other filters; the first page is loaded when this resolves. */
  async show(filters = this.filters) {
    this.filters = filters;
    this.#generation++;
    this.#asked.clear();
    this.#ids = [];
    await this.#load(0);
  }

  /** A list that the page puts together itself. */
  showThese(photos) {
    this.#generation++;
    this.#ids = photos.map((photo) => learn(photo).id);
    this.total = photos.length;
    this.changed();
  }

  at(index) {
    const id = this.#ids[index];
    // a part that could not be loaded is asked for again when it is looked at again
    if (id === undefined && index < this.total) this.#load(Math.floor(index / PAGE)).catch(() => null);
    return id === undefined ? null : photoOf(id);
  }

  indexOf(id) {
    return this.#ids.indexOf(id);
  }

  /** The photo at a position, loaded if need be. */
  async reach(index) {
    if (index < 0 || index >= this.total) return null;
    if (this.#ids[index] === undefined) await this.#load(Math.floor(index / PAGE));
    return this.at(index);
  }

  /** The position of a photo that may not be loaded yet, or -1; for the order by name. */
  async find(id) {
    if (this.indexOf(id) < 0) {
      const { index } = await getJson(`/api/photos/${id}/position`);
      await this.#load(Math.floor(index / PAGE));
    }
    return this.indexOf(id);
  }

  /** The first photo after a position, and then from the beginning, that `fits`; or null. */
  async next(index, fits) {
    for (let step = 1; step <= this.total; step++) {
      const photo = await this.reach((index + step) % this.total);
      if (photo && fits(photo)) return photo;
    }
    return null;
  }

  #load(page) {
    if (this.#asked.has(page)) return this.#asked.get(page);
    const generation = this.#generation;
    const request = getJson(`/api/photos?${query({ ...this.filters, offset: page * PAGE, limit: PAGE })}`)
      .then(({ total, items }) => {
        if (generation !== this.#generation) return;
        this.total = total;
        items.forEach((photo, index) => {
          this.#ids[page * PAGE + index] = learn(photo).id;
        });
        this.changed();
      })
      .catch((error) => {
        this.#asked.delete(page);
        throw error;
      });
    this.#asked.set(page, request);
    return request;
  }
}

/** "cup, 83 %, 12 % of the image": what a picture of the mask would say. */
export function describeMask(photo, name, mask) {
  const share = (100 * mask.area) / Math.max(1, photo.width * photo.height);
  const size = mask.area === 0 ? "nothing marked" : `${share < 1 ? share.toFixed(1) : Math.round(share)} % of the image`;
  const who = mask.origin === "person" ? "by hand" : `${Math.round(100 * (mask.confidence ?? 0))} %`;
  return `${name}, ${who}, ${size}`;
}

/** The smallest confidence among the masks the network found, or null. */
export function confidence(photo) {
  const found = Object.values(photo.masks).filter((mask) => mask.origin === "found" && mask.confidence !== null);
  return found.length ? Math.min(...found.map((mask) => mask.confidence)) : null;
}
