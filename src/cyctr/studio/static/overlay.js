// Draws masks over the photo: samples the full-size rasters at the pixels of the screen, so its cost is the screen's.

import { clip, rect } from "./pixels.js";
import { get } from "./state.js";
import { channels } from "./thumbs.js";

const MARGIN = 2; // device pixels around a rectangle that its outline needs

/** The pixel of the photo under each device pixel of a range, or -1 outside of it. */
function positions(from, count, offset, scale, size) {
  const out = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const at = Math.floor((from + i + 0.5 - offset) / scale);
    out[i] = at >= 0 && at < size ? at : -1;
  }
  return out;
}

function sample(raster, width, columns, rows) {
  const out = new Uint8Array(columns.length * rows.length);
  for (let y = 0; y < rows.length; y++) {
    if (rows[y] < 0) continue;
    const start = rows[y] * width;
    const to = y * columns.length;
    for (let x = 0; x < columns.length; x++) if (columns[x] >= 0) out[to + x] = raster[start + columns[x]];
  }
  return out;
}

/** Device pixels that a rectangle of the photo covers, with the margin of its outline. */
export function onScreen(view, area) {
  const [left, top] = view.toScreen(area.x, area.y);
  const [right, bottom] = view.toScreen(area.x + area.width, area.y + area.height);
  const [x, y] = [Math.floor(left * view.ratio) - MARGIN, Math.floor(top * view.ratio) - MARGIN];
  return rect(x, y, Math.ceil(right * view.ratio) + MARGIN - x, Math.ceil(bottom * view.ratio) + MARGIN - y);
}

/** Repaints a rectangle (device pixels) of the canvas of masks. */
export function drawMasks(context, view, doc, classes, wanted) {
  const area = clip(wanted, context.canvas.width, context.canvas.height);
  if (!area) return;
  context.clearRect(area.x, area.y, area.width, area.height);
  if (!doc || get("hidden")) return;
  const edge = Math.max(1, Math.round(view.ratio));
  const scale = view.scale * view.ratio;
  const [w, h] = [area.width + 2 * edge, area.height + 2 * edge];
  const columns = positions(area.x - edge, w, view.x * view.ratio, scale, doc.width);
  const rows = positions(area.y - edge, h, view.y * view.ratio, scale, doc.height);
  const picture = context.createImageData(area.width, area.height);
  const out = new Uint32Array(picture.data.buffer);
  const compare = get("compare");
  const split = compare === null ? -1 : Math.round(compare * context.canvas.width) - area.x;
  for (const item of classes) {
    const layer = doc.layers.get(item.id);
    if (!layer || !(layer.raster || layer.earlier)) continue;
    const chosen = item.id === get("classId");
    const paint = { out, area, edge, w, colour: channels(item.color), chosen, hatched: layer.origin === "found" };
    if (split < area.width && layer.raster) {
      fill(sample(layer.raster, doc.width, columns, rows), { ...paint, from: Math.max(0, split), to: area.width });
    }
    if (split > 0 && layer.earlier) {
      fill(sample(layer.earlier, doc.width, columns, rows), { ...paint, from: 0, to: Math.min(split, area.width), hatched: true });
    }
  }
  context.putImageData(picture, area.x, area.y);
}

/** Colours the marked pixels: an outline, and a fill that is hatched where the network found it. */
function fill(marked, { out, area, edge, w, colour: [red, green, blue], chosen, hatched, from, to }) {
  const solid = (255 << 24) | (blue << 16) | (green << 8) | red;
  const opacity = get("outlineOnly") ? 0 : get("opacity") * (chosen ? 1 : 0.8);
  const tint = (alpha) => (Math.round(255 * Math.min(1, alpha)) << 24) | (blue << 16) | (green << 8) | red;
  const [full, faint] = [tint(opacity), tint(opacity * 0.55)];
  for (let y = 0; y < area.height; y++) {
    for (let x = from; x < to; x++) {
      const i = (y + edge) * w + x + edge;
      if (!marked[i]) continue;
      const inner = marked[i - edge] && marked[i + edge] && marked[i - edge * w] && marked[i + edge * w];
      const striped = hatched && (x + area.x + y + area.y) % (12 * edge) >= 6 * edge;
      out[y * area.width + x] = inner ? (striped ? faint : full) : solid;
    }
  }
}
