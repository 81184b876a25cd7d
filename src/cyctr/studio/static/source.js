// The photo's own pixels: one bitmap up to 4,000 px, tiles of a pyramid above, a small picture until they are here.

import { imageUrl, raw } from "./api.js";

const WHOLE = 4000; // longer side up to which a photo is fetched in one piece
const TILE = 512;
const MOST_TILES = 160; // 1 MB each

const bitmapOf = async (path) => createImageBitmap(await (await raw(path)).blob());

export class Source {
  #rough = null;
  #whole = null;
  #tiles = new Map(); // "z/x/y" -> bitmap, or null while it is on its way; least recently used first
  #closed = false;

  /** `arrived` is called when there is more to draw; `failed` with an error. */
  constructor(photo, arrived, failed) {
    this.photo = photo;
    this.arrived = arrived;
    this.failed = failed;
    this.tiled = Math.max(photo.width, photo.height) > WHOLE;
    this.#fetch();
  }

  async #fetch() {
    try {
      if (this.tiled) {
        this.#keep("rough", await bitmapOf(imageUrl(this.photo, 1280)));
      } else {
        // the small picture is a courtesy; if it fails, so does the whole one, which says why
        bitmapOf(imageUrl(this.photo, 320)).then((bitmap) => this.#keep("rough", bitmap)).catch(() => null);
        this.#keep("whole", await bitmapOf(imageUrl(this.photo, 4096)));
      }
    } catch (error) {
      if (!this.#closed) this.failed(error);
    }
  }

  #keep(name, bitmap) {
    if (this.#closed) {
      bitmap.close();
      return;
    }
    if (name === "rough") this.#rough = bitmap;
    else this.#whole = bitmap;
    this.arrived();
  }

  /** Whether the pixels that the last `draw` needed were all there. */
  sharp = false;

  /** Draws what `view` shows of the photo on a context of device pixels. */
  draw(context, view, width, height) {
    const scale = view.scale * view.ratio;
    context.setTransform(scale, 0, 0, scale, view.x * view.ratio, view.y * view.ratio);
    context.imageSmoothingEnabled = view.scale <= 2;
    context.imageSmoothingQuality = "high";
    this.sharp = this.#whole !== null;
    const under = this.#whole ?? this.#rough;
    if (under) context.drawImage(under, 0, 0, this.photo.width, this.photo.height);
    if (this.tiled) this.#drawTiles(context, view, width, height);
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  #drawTiles(context, view, width, height) {
    const levels = Math.ceil(Math.log2(Math.max(this.photo.width, this.photo.height) / TILE));
    const level = Math.min(levels, Math.max(0, Math.floor(-Math.log2(view.scale * view.ratio) + 0.01)));
    const size = TILE * 2 ** level; // pixels of the photo along a tile
    const [left, top] = view.toPhoto(0, 0);
    const [right, bottom] = view.toPhoto(width, height);
    const across = Math.ceil(this.photo.width / size);
    const down = Math.ceil(this.photo.height / size);
    this.sharp = true;
    for (let y = Math.max(0, Math.floor(top / size)); y < Math.min(down, Math.ceil(bottom / size)); y++) {
      for (let x = Math.max(0, Math.floor(left / size)); x < Math.min(across, Math.ceil(right / size)); x++) {
        const bitmap = this.#tile(`${level}/${x}/${y}`);
        if (!bitmap) {
          this.sharp = false;
          continue;
        }
        const w = Math.min(size, this.photo.width - x * size);
        const h = Math.min(size, this.photo.height - y * size);
        context.drawImage(bitmap, x * size, y * size, w, h);
      }
    }
  }

  #tile(key) {
    if (this.#tiles.has(key)) {
      const bitmap = this.#tiles.get(key);
      this.#tiles.delete(key);
      this.#tiles.set(key, bitmap);
      return bitmap;
    }
    this.#tiles.set(key, null);
    bitmapOf(`/api/photos/${this.photo.id}/tile/${key}`)
      .then((bitmap) => {
        if (this.#closed) return bitmap.close();
        this.#tiles.set(key, bitmap);
        this.#trim();
        return this.arrived();
      })
      .catch(() => this.#tiles.delete(key));
    return null;
  }

  #trim() {
    for (const [key, bitmap] of this.#tiles) {
      if (this.#tiles.size <= MOST_TILES) return;
      bitmap?.close();
      this.#tiles.delete(key);
    }
  }

  close() {
    this.#closed = true;
    for (const bitmap of [this.#rough, this.#whole, ...this.#tiles.values()]) bitmap?.close();
    this.#rough = this.#whole = null;
    this.#tiles.clear();
  }
}
