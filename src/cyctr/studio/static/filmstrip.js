// The strip of photos under the stage: only those in sight have elements.

import { attempt } from "./dialogs.js";
import { byId, debounced, h, icon } from "./dom.js";
import { open, order } from "./opening.js";
import { confidence } from "./photos.js";
import { isPinned, isStale, togglePin } from "./previews.js";
import { get, on } from "./state.js";
import { drawThumb } from "./thumbs.js";

const WIDTH = 118; // of a photo with its gap, in CSS pixels; the same in style.css

const strip = byId("filmstrip");
const inner = byId("filmstrip-inner");
const frames = new Map(); // position -> elements

function make(index) {
  const canvas = h("canvas", { class: "thumb", "aria-hidden": "true" });
  const caption = h("span", { class: "caption" });
  const badge = h("span", { class: "badge" });
  const button = h("button", { type: "button", class: "frame-button", on: { click: () => frame.photo && open(frame.photo.id) } }, canvas, badge, caption);
  const pin = h("button", { type: "button", class: "pin quiet", on: { click: () => frame.photo && togglePin(frame.photo.id) } }, icon("pin"));
  const root = h("li", { class: "frame" }, button, pin);
  root.style.left = `${index * WIDTH}px`;
  inner.append(root);
  const frame = { root, button, canvas, caption, badge, pin, photo: null };
  return frame;
}

const MARKS = { accepted: "check", rejected: "cross", open: null };

function fill(frame, index) {
  const photo = order.at(index);
  frame.photo = photo;
  frame.root.classList.toggle("loading", !photo);
  if (!photo) return;
  const sure = confidence(photo);
  const state = photo.example ? "example" : photo.state;
  frame.root.dataset.photo = photo.id;
  frame.root.dataset.state = state;
  frame.root.classList.toggle("stale", isStale(photo.id));
  frame.button.setAttribute("aria-current", String(photo.id === get("photo")?.id));
  frame.button.title = photo.name;
  frame.caption.textContent = photo.name;
  frame.button.setAttribute("aria-label", `${photo.name}, ${state}${sure === null ? "" : `, found with ${Math.round(100 * sure)} %`}`);
  const mark = photo.example ? "star" : MARKS[photo.state];
  const text = sure === null || mark ? "" : String(Math.round(100 * sure));
  frame.badge.replaceChildren(...(mark ? [icon(mark)] : []), text);
  frame.pin.setAttribute("aria-pressed", String(isPinned(photo.id)));
  frame.pin.setAttribute("aria-label", `Keep previewing ${photo.name}`);
  frame.pin.title = "Keep previewing this photo";
  drawThumb(frame.canvas, photo, 160);
}

function draw() {
  inner.style.width = `${order.total * WIDTH}px`;
  const first = Math.max(0, Math.floor(strip.scrollLeft / WIDTH) - 2);
  const last = Math.min(order.total, Math.ceil((strip.scrollLeft + strip.clientWidth) / WIDTH) + 2);
  for (const [index, frame] of frames) {
    if (index >= first && index < last) continue;
    frame.root.remove();
    frames.delete(index);
  }
  for (let index = first; index < last; index++) {
    if (!frames.has(index)) frames.set(index, make(index));
    fill(frames.get(index), index);
  }
}

let asked = false;
function ask() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (strip.clientWidth) draw();
  });
}

/** Brings the open photo into sight. */
async function reveal() {
  const index = await attempt(() => order.find(get("photo")?.id));
  if (index === null || index < 0) return;
  const left = index * WIDTH;
  if (left < strip.scrollLeft + WIDTH || left + 2 * WIDTH > strip.scrollLeft + strip.clientWidth) {
    strip.scrollLeft = left - strip.clientWidth / 2 + WIDTH / 2;
  }
  ask();
}

export function startFilmstrip() {
  strip.addEventListener("scroll", ask, { passive: true });
  strip.addEventListener("wheel", (event) => {
    if (event.deltaX || event.ctrlKey) return;
    event.preventDefault();
    strip.scrollLeft += event.deltaY;
  }, { passive: false });
  new ResizeObserver(ask).observe(strip);
  on("order-changed photo-changed project", ask);
  on("opened", debounced(0, reveal));
  on("photo", ask);
}
