// Small pictures of photos with their masks drawn in; what was fetched is kept for a while.

import { imageUrl, raw } from "./api.js";
import { decode } from "./png.js";
import { classOf, get } from "./state.js";

const MOST = 600;
const kept = new Map(); // address -> promise of a bitmap or raster, least recently used first

function remembered(address, make) {
  const found = kept.get(address);
  if (found) {
    kept.delete(address);
    kept.set(address, found);
    return found;
  }
  const made = make();
  kept.set(address, made);
  made.catch(() => kept.delete(address));
  if (kept.size > MOST) kept.delete(kept.keys().next().value);
  return made;
}

const picture = (photo, side) => {
  const address = imageUrl(photo, side);
  return remembered(address, async () => createImageBitmap(await (await raw(address)).blob()));
};

const maskOf = (photo, classId, mask, side, before) => {
  const run = before ? "&run=before" : "";
  const address = `/api/photos/${photo.id}/mask/${classId}?side=${side}&v=${mask.revision}${run}`;
  return remembered(address, async () => {
    const response = await raw(address);
    return response.status === 204 ? null : decode(await response.blob());
  });
};

/** "#rrggbb" as three numbers. */
export const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

function overlay({ values, width, height }, color) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  const data = context.createImageData(width, height);
  const [red, green, blue] = channels(color);
  const colour = (255 << 24) | (blue << 16) | (green << 8) | red;
  const faint = (90 << 24) | (blue << 16) | (green << 8) | red;
  const out = new Uint32Array(data.data.buffer);
  for (let y = 0, i = 0; y < height; y++) {
    for (let x = 0; x < width; x++, i++) {
      if (!values[i]) continue;
      const inner =
        x > 1 && x < width - 2 && y > 1 && y < height - 2 &&
        values[i - 1] && values[i + 1] && values[i - width] && values[i + width] &&
        values[i - 2] && values[i + 2] && values[i - 2 * width] && values[i + 2 * width];
      out[i] = inner ? faint : colour;
    }
  }
  context.putImageData(data, 0, 0);
  return canvas;
}

/** Draws a photo and its masks, or those before the last run, into a canvas, as large as fits. */
export async function drawThumb(canvas, photo, side, { before = false } = {}) {
  const wanted = `${photo.id} ${photo.version ?? 0} ${side} ${before} ${maskKey(photo)} ${canvas.clientWidth}`;
  if (canvas.dataset.drawn === wanted) return;
  canvas.dataset.drawn = wanted;
  const current = () => canvas.dataset.drawn === wanted && canvas.isConnected;
  try {
    const shown = Object.entries(photo.masks).filter(([, mask]) => mask.area || before);
    const [image, ...rasters] = await Promise.all([
      picture(photo, side),
      ...shown.map(([id, mask]) => maskOf(photo, id, mask, side, before).catch(() => null)),
    ]);
    if (!current()) return;
    const ratio = Math.min(2, window.devicePixelRatio);
    const [width, height] = [canvas.clientWidth * ratio, canvas.clientHeight * ratio].map(Math.round);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    const scale = Math.min(width / image.width, height / image.height);
    const [w, h] = [image.width * scale, image.height * scale].map(Math.round);
    const box = [(width - w) >> 1, (height - h) >> 1, w, h];
    context.clearRect(0, 0, width, height);
    context.imageSmoothingQuality = "medium";
    context.drawImage(image, ...box);
    rasters.forEach((raster, index) => {
      if (raster) context.drawImage(overlay(raster, classOf(shown[index][0])?.color ?? "#888888"), ...box);
    });
    canvas.classList.remove("broken");
  } catch {
    if (!current()) return;
    delete canvas.dataset.drawn;
    canvas.classList.add("broken");
  }
}

const maskKey = (photo) => {
  const colors = get("project")?.classes.map((item) => item.color).join("") ?? "";
  return JSON.stringify(Object.entries(photo.masks).map(([id, mask]) => [id, mask.revision])) + colors;
};
