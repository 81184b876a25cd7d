// Arithmetic on rasters of bytes (0 or 1), in whole pixels of the photo. Nothing here knows the screen.

/** A rectangle of whole pixels: x, y, width, height. */
export const rect = (x, y, width, height) => ({ x, y, width, height });

export function union(a, b) {
  if (!a) return b;
  if (!b) return a;
  const [x, y] = [Math.min(a.x, b.x), Math.min(a.y, b.y)];
  return rect(x, y, Math.max(a.x + a.width, b.x + b.width) - x, Math.max(a.y + a.height, b.y + b.height) - y);
}

/** The part of `a` within a raster of this size, or null. */
export function clip(a, width, height) {
  const [x, y] = [Math.max(0, a.x), Math.max(0, a.y)];
  const [right, bottom] = [Math.min(width, a.x + a.width), Math.min(height, a.y + a.height)];
  return right > x && bottom > y ? rect(x, y, right - x, bottom - y) : null;
}

/** The rectangle that holds every pixel of a stroke of this diameter from one pixel to another. */
export function strokeBounds(from, to, diameter) {
  const reach = Math.ceil(diameter / 2);
  const [x, y] = [Math.min(from.x, to.x) - reach, Math.min(from.y, to.y) - reach];
  return rect(x, y, Math.abs(from.x - to.x) + 2 * reach + 1, Math.abs(from.y - to.y) + 2 * reach + 1);
}

/**
 * Calls `run(y, x0, x1)` for each row of a stroke: pixels whose centre is no further than half the diameter from the
 * line between the centres of two pixels.
 */
export function strokeRows(from, to, diameter, width, height, run) {
  const bounds = clip(strokeBounds(from, to, diameter), width, height);
  if (!bounds) return;
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  const limit = (diameter * diameter) / 4;
  for (let y = bounds.y; y < bounds.y + bounds.height; y++) {
    let first = -1;
    let last = -1;
    for (let x = bounds.x; x < bounds.x + bounds.width; x++) {
      const [px, py] = [x - from.x, y - from.y];
      const along = length ? Math.min(1, Math.max(0, (px * dx + py * dy) / length)) : 0;
      const [ox, oy] = [px - along * dx, py - along * dy];
      if (ox * ox + oy * oy <= limit + 1e-9) {
        if (first < 0) first = x;
        last = x;
      } else if (first >= 0) {
        break; // a stroke is convex: a row has one run
      }
    }
    if (first >= 0) run(y, first, last + 1);
  }
}

/** Calls `run(y, x0, x1)` for the pixels whose centre is within a polygon (even-odd rule). */
export function polygonRows(points, width, height, run) {
  const top = Math.max(0, Math.floor(Math.min(...points.map((p) => p[1]))));
  const bottom = Math.min(height, Math.ceil(Math.max(...points.map((p) => p[1]))));
  for (let y = top; y < bottom; y++) {
    const middle = y + 0.5;
    const crossings = [];
    points.forEach(([x0, y0], index) => {
      const [x1, y1] = points[(index + 1) % points.length];
      if (y0 <= middle !== y1 <= middle) crossings.push(x0 + ((middle - y0) / (y1 - y0)) * (x1 - x0));
    });
    crossings.sort((a, b) => a - b);
    for (let i = 0; i + 1 < crossings.length; i += 2) {
      const first = Math.max(0, Math.ceil(crossings[i] - 0.5));
      const last = Math.min(width, Math.ceil(crossings[i + 1] - 0.5));
      if (last > first) run(y, first, last);
    }
  }
}

export function polygonBounds(points) {
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [x, y] = [Math.floor(Math.min(...xs)), Math.floor(Math.min(...ys))];
  return rect(x, y, Math.ceil(Math.max(...xs)) - x + 1, Math.ceil(Math.max(...ys)) - y + 1);
}

/** A rectangle of a raster, copied. */
export function cut(raster, width, area) {
  const out = new Uint8Array(area.width * area.height);
  for (let row = 0; row < area.height; row++) {
    const start = (area.y + row) * width + area.x;
    out.set(raster.subarray(start, start + area.width), row * area.width);
  }
  return out;
}

export function paste(raster, width, area, values) {
  for (let row = 0; row < area.height; row++) {
    raster.set(values.subarray(row * area.width, (row + 1) * area.width), (area.y + row) * width + area.x);
  }
}

/** Eight pixels in a byte: what the history keeps. */
export function pack(values) {
  const out = new Uint8Array((values.length + 7) >> 3);
  for (let i = 0; i < values.length; i++) if (values[i]) out[i >> 3] |= 1 << (i & 7);
  return out;
}

export function unpack(bits, length) {
  const out = new Uint8Array(length);
  for (let i = 0; i < length; i++) out[i] = (bits[i >> 3] >> (i & 7)) & 1;
  return out;
}

export const isEmpty = (raster) => !raster || raster.indexOf(1) < 0;
