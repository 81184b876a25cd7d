// Masks as PNG: a grey picture with the values 0 and 255 only, exact in both directions.

const CRC = new Uint32Array(256).map((_, n) => {
  let c = n;
  for (let k = 0; k < 8; k++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
  return c;
});

function crc(bytes) {
  let c = 0xffffffff;
  for (const byte of bytes) c = CRC[(c ^ byte) & 255] ^ (c >>> 8);
  return (c ^ 0xffffffff) >>> 0;
}

function chunk(name, data) {
  const out = new Uint8Array(12 + data.length);
  const numbers = new DataView(out.buffer);
  numbers.setUint32(0, data.length);
  for (let i = 0; i < 4; i++) out[4 + i] = name.charCodeAt(i);
  out.set(data, 8);
  numbers.setUint32(8 + data.length, crc(out.subarray(4, 8 + data.length)));
  return out;
}

/** A PNG of a raster of 0 and 1; the canvas is not asked, because some browsers change its colours. */
export async function encode(values, width, height) {
  const rows = new Uint8Array((width + 1) * height); // each row begins with its filter: 0
  for (let y = 0; y < height; y++) {
    const to = y * (width + 1) + 1;
    for (let x = 0; x < width; x++) rows[to + x] = values[y * width + x] ? 255 : 0;
  }
  const packed = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const data = new Uint8Array(await new Response(packed).arrayBuffer());
  const head = new Uint8Array(13);
  const numbers = new DataView(head.buffer);
  numbers.setUint32(0, width);
  numbers.setUint32(4, height);
  head[8] = 8; // bits a pixel; the remaining zeros say grey, deflate, plain filters, not interlaced
  const signature = new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10]);
  return new Blob([signature, chunk("IHDR", head), chunk("IDAT", data), chunk("IEND", new Uint8Array(0))], {
    type: "image/png",
  });
}

const STRIP = 1024; // rows read at once: a photo of 50 megapixels would need 200 MB as a whole

/** The raster (0 or 1) of a PNG. */
export async function decode(blob) {
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  const { width, height } = bitmap;
  const values = new Uint8Array(width * height);
  const rows = Math.min(STRIP, height);
  const context = new OffscreenCanvas(width, rows).getContext("2d", { willReadFrequently: true });
  for (let top = 0; top < height; top += rows) {
    const count = Math.min(rows, height - top);
    context.drawImage(bitmap, 0, top, width, count, 0, 0, width, count);
    const { data } = context.getImageData(0, 0, width, count);
    for (let i = 0, to = top * width; i < width * count; i++) values[to + i] = data[4 * i] > 127 ? 1 : 0;
  }
  bitmap.close();
  return { values, width, height };
}

/** The raster of a PNG that came as base64 within an answer. */
export function decodeBase64(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return decode(new Blob([bytes], { type: "image/png" }));
}
