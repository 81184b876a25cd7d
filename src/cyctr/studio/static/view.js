// The one transform between the photo and the screen: screen = photo * scale + offset, in CSS pixels of the stage.

const SMALLEST = 0.01;
const LARGEST = 64;

export class View {
  scale = 1;
  x = 0;
  y = 0;
  ratio = 1; // device pixels in a CSS pixel

  /** The point of the photo, in its pixels, that is seen at a point of the stage. */
  toPhoto(screenX, screenY) {
    return [(screenX - this.x) / this.scale, (screenY - this.y) / this.scale];
  }

  toScreen(photoX, photoY) {
    return [photoX * this.scale + this.x, photoY * this.scale + this.y];
  }

  /** Zooms; the point of the photo under (screenX, screenY) stays there. */
  zoomAt(screenX, screenY, scale) {
    const [photoX, photoY] = this.toPhoto(screenX, screenY);
    this.scale = Math.min(LARGEST, Math.max(SMALLEST, scale));
    this.place(screenX - photoX * this.scale, screenY - photoY * this.scale);
  }

  pan(dx, dy) {
    this.place(this.x + dx, this.y + dy);
  }

  /** Puts the photo's corner on a whole device pixel, so that pixels of the photo are drawn sharp. */
  place(x, y) {
    this.x = Math.round(x * this.ratio) / this.ratio;
    this.y = Math.round(y * this.ratio) / this.ratio;
  }

  /** Shows the whole photo in a stage of this size. */
  fit(width, height, photoWidth, photoHeight, margin = 16) {
    const room = Math.min((width - 2 * margin) / photoWidth, (height - 2 * margin) / photoHeight);
    this.scale = Math.min(LARGEST, Math.max(SMALLEST, room));
    this.centre(width, height, photoWidth, photoHeight);
  }

  centre(width, height, photoWidth, photoHeight) {
    this.place((width - photoWidth * this.scale) / 2, (height - photoHeight * this.scale) / 2);
  }

  /** Keeps a strip of the photo within the stage, so that it cannot be lost. */
  keepInSight(width, height, photoWidth, photoHeight) {
    const strip = 48;
    const [w, h] = [photoWidth * this.scale, photoHeight * this.scale];
    this.place(
      Math.min(width - strip, Math.max(strip - w, this.x)),
      Math.min(height - strip, Math.max(strip - h, this.y)),
    );
  }
}
