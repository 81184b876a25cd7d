// The stage: three canvases (photo, masks, pointer), the pointer's way to the tools, zoom and pan.

import { drawMasks, onScreen } from "./overlay.js";
import { Source } from "./source.js";
import { emit, get, on, set } from "./state.js";
import { View } from "./view.js";

export const view = new View();

const stage = document.getElementById("stage");
const [photoLayer, maskLayer, pointerLayer] = ["photo-layer", "mask-layer", "pointer-layer"].map((id) => document.getElementById(id));
const contexts = [photoLayer, maskLayer, pointerLayer].map((canvas) => canvas.getContext("2d"));

let source = null;
let tool = null;
let fitted = true; // the whole photo is shown, and stays so when the window changes
let stale = { photo: false, pointer: false, masks: null }; // what the next frame repaints
let asked = false;
let pointer = null; // where the pointer is over the stage
let panning = null;
let drawing = null; // id of the pointer that is pressed for a tool
let spaceHeld = false;

const size = () => [stage.clientWidth, stage.clientHeight];

function ask() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(frame);
}

function frame() {
  asked = false;
  const { photo, masks, pointer: marks } = stale;
  stale = { photo: false, pointer: false, masks: null };
  const doc = get("doc");
  if (photo) {
    contexts[0].clearRect(0, 0, photoLayer.width, photoLayer.height);
    source?.draw(contexts[0], view, ...size());
    stage.dataset.sharp = String(source?.sharp ?? false);
  }
  if (masks) {
    const classes = get("project")?.classes ?? [];
    for (const area of masks) drawMasks(contexts[1], view, doc, classes, area);
  }
  if (marks || photo) drawPointer();
}

/** Repaints everything in the next frame. */
export function repaint() {
  stale.photo = true;
  repaintMasks();
}

export function repaintMasks() {
  stale.masks = [{ x: 0, y: 0, width: maskLayer.width, height: maskLayer.height }];
  ask();
}

/** Repaints the masks within a rectangle of the photo, in the next frame. */
export function repaintArea(area) {
  if (!area) return;
  stale.masks ??= [];
  stale.masks.push(onScreen(view, area));
  ask();
}

export function repaintPointer() {
  stale.pointer = true;
  ask();
}

function moved() {
  const photo = get("photo");
  if (photo) view.keepInSight(...size(), photo.width, photo.height);
  stage.dataset.scale = String(view.scale);
  stage.dataset.x = String(view.x);
  stage.dataset.y = String(view.y);
  emit("view", view);
  repaint();
}

function drawPointer() {
  const context = contexts[2];
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, pointerLayer.width, pointerLayer.height);
  context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  if (!get("doc")) return;
  tool?.draw?.(context, pointer);
  if (cursor) drawCross(context, cursor);
  if (get("compare") !== null) {
    context.fillStyle = "#fff";
    context.fillRect(Math.round(get("compare") * stage.clientWidth) - 1, 0, 2, stage.clientHeight);
  }
}

/** A line that is seen on light and on dark photos. */
export function twoTone(context, path, colour = "#fff", width = 1.5) {
  context.lineWidth = width + 2;
  context.strokeStyle = "rgba(0, 0, 0, 0.65)";
  context.stroke(path);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke(path);
}

// ---- size of the window -------------------------------------------------------------------------------------------

function resize() {
  view.ratio = window.devicePixelRatio || 1;
  const [width, height] = size();
  for (const canvas of [photoLayer, maskLayer, pointerLayer]) {
    canvas.width = Math.round(width * view.ratio);
    canvas.height = Math.round(height * view.ratio);
  }
  if (fitted) fit();
  else moved();
}

function watchRatio() {
  matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`).addEventListener("change", () => {
    resize();
    watchRatio();
  }, { once: true });
}

// ---- zoom and pan -------------------------------------------------------------------------------------------------

export function fit() {
  const photo = get("photo");
  fitted = true;
  if (photo && stage.clientWidth) view.fit(...size(), photo.width, photo.height);
  moved();
}

/** Zooms about a point of the stage: the pointer's, or the middle. */
export function zoomTo(scale, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
  fitted = false;
  view.zoomAt(x, y, scale);
  moved();
}

export const zoomBy = (factor) => zoomTo(view.scale * factor, ...(pointer ? [pointer.x, pointer.y] : []));

export function panBy(dx, dy) {
  fitted = false;
  view.pan(dx, dy);
  moved();
}

stage.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const amount = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 16 : 1);
    if (event.shiftKey) {
      emit("compare-by", -Math.sign(amount) * 0.04);
      return;
    }
    const [x, y] = local(event);
    zoomTo(view.scale * Math.exp(-amount * (event.ctrlKey ? 0.01 : 0.0015)), x, y);
  },
  { passive: false },
);

/** Space is held: the left button pans, whatever the tool. */
export function holdSpace(held) {
  spaceHeld = held;
  stage.classList.toggle("can-pan", held);
}

// ---- pointer ------------------------------------------------------------------------------------------------------

function local(event) {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left - stage.clientLeft, event.clientY - box.top - stage.clientTop];
}

/** A point for the tools: x, y on the stage; ix, iy on the photo; px, py the pixel of the photo. */
function point(event) {
  const [x, y] = local(event);
  return { ...place(x, y), button: event.button ?? 0, ctrl: event.ctrlKey || event.metaKey, shift: event.shiftKey, alt: event.altKey };
}

function place(x, y) {
  const [ix, iy] = view.toPhoto(x, y);
  return { x, y, ix, iy, px: Math.floor(ix), py: Math.floor(iy), button: 0, ctrl: false, shift: false, alt: false };
}

stage.addEventListener("pointerdown", (event) => {
  if (drawing !== null || panning || !get("doc")) return;
  stage.focus({ preventScroll: true });
  event.preventDefault();
  stage.setPointerCapture(event.pointerId);
  if (event.button === 1 || (spaceHeld && event.button === 0)) {
    panning = { id: event.pointerId, x: event.clientX, y: event.clientY };
    stage.classList.add("panning");
    return;
  }
  if (event.button > 2) return;
  hideCursor();
  drawing = event.pointerId;
  pointer = point(event);
  tool?.down(pointer);
  repaintPointer();
});

stage.addEventListener("pointermove", (event) => {
  if (panning?.id === event.pointerId) {
    panBy(event.clientX - panning.x, event.clientY - panning.y);
    Object.assign(panning, { x: event.clientX, y: event.clientY });
    return;
  }
  pointer = { ...point(event), button: pointer?.button ?? 0 };
  if (drawing === event.pointerId) {
    const parts = event.getCoalescedEvents?.() ?? [];
    for (const part of parts.length ? parts : [event]) tool?.move?.(point(part));
  } else if (drawing === null) {
    tool?.hover?.(pointer);
  }
  emit("pointed", pointer);
  repaintPointer();
});

function release(event) {
  if (panning?.id === event.pointerId) {
    panning = null;
    stage.classList.remove("panning");
    return;
  }
  if (drawing !== event.pointerId) return;
  drawing = null;
  if (event.type === "pointercancel") tool?.cancel?.();
  else tool?.up?.(point(event));
  repaintPointer();
}

stage.addEventListener("pointerup", release);
stage.addEventListener("pointercancel", release);
stage.addEventListener("dblclick", () => tool?.twice?.());
stage.addEventListener("contextmenu", (event) => event.preventDefault());
stage.addEventListener("pointerleave", () => {
  if (drawing !== null) return;
  pointer = null;
  tool?.hover?.(null);
  emit("pointed", null);
  repaintPointer();
});

// ---- the keyboard's pointer ---------------------------------------------------------------------------------------

let cursor = null;
let cursorDown = false;

function drawCross(context, { x, y }) {
  const path = new Path2D();
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    path.moveTo(x + 4 * dx, y + 4 * dy);
    path.lineTo(x + 14 * dx, y + 14 * dy);
  }
  twoTone(context, path, cursorDown ? "#ff5a4f" : "#fff", 2);
}

export const hasCursor = () => cursor !== null;

export function toggleCursor() {
  if (cursor) hideCursor();
  else cursor = place(stage.clientWidth / 2, stage.clientHeight / 2);
  stage.dataset.cursor = String(cursor !== null);
  if (cursor) stage.focus({ preventScroll: true });
  emit("pointed", cursor);
  repaintPointer();
}

export function hideCursor() {
  if (!cursor) return;
  if (cursorDown) tool?.cancel?.();
  cursor = null;
  cursorDown = false;
  stage.dataset.cursor = "false";
  repaintPointer();
}

export function moveCursor(dx, dy) {
  const [width, height] = size();
  cursor = place(Math.min(width - 1, Math.max(0, cursor.x + dx)), Math.min(height - 1, Math.max(0, cursor.y + dy)));
  if (cursorDown) tool?.move?.(cursor);
  else tool?.hover?.(cursor);
  emit("pointed", cursor);
  repaintPointer();
}

/** Space or Enter at the keyboard's pointer: a stroke begins or ends; other tools get a whole click. */
export function pressCursor(take = false) {
  const here = { ...place(cursor.x, cursor.y), button: take ? 2 : 0 };
  if (tool?.strokes && !cursorDown) {
    cursorDown = true;
    tool.down(here);
  } else if (cursorDown) {
    cursorDown = false;
    tool.up?.(here);
  } else {
    tool?.down(here);
    tool?.up?.(here);
  }
  repaintPointer();
}

// ---- what is on the stage -----------------------------------------------------------------------------------------

export function useTool(next) {
  if (tool === next) return;
  tool?.leave?.();
  tool = next;
  tool.enter?.();
  stage.dataset.tool = next.name;
  repaintPointer();
}

export const isDrawing = () => drawing !== null || cursorDown;

/** Ends what the tool has begun before the photo changes. */
export const leaveTool = () => tool?.leave?.();

/** Gives a key to the tool first (Backspace drops a point, Escape gives up); says whether it took it. */
export const offerKey = (name) => tool?.key?.(name) ?? false;

/** Shows a photo; its pixels come when they are here. */
export function showPhoto(photo) {
  source?.close();
  source = photo ? new Source(photo, repaint, (error) => emit("trouble", error)) : null;
  hideCursor();
  if (photo) fit();
  else repaint();
}

on("opacity outlineOnly hidden classId compare", repaintMasks);
on("compare brush tool", repaintPointer);
on("brightness contrast", () => {
  photoLayer.style.filter = `brightness(${get("brightness")}) contrast(${get("contrast")})`;
});
on("painted", repaintArea);
on("doc", (doc) => {
  stage.dataset.photo = doc?.photo.name ?? "";
});

export function startStage() {
  new ResizeObserver(resize).observe(stage);
  watchRatio();
  resize();
  set({ compare: null });
}
