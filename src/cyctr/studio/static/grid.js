// The review: a grid or a list of photos, least certain first. Only rows in sight have elements.

import { getJson, post, query } from "./api.js";
import { ask, attempt, note } from "./dialogs.js";
import { byId, debounced, h, icon, percent, plural, swatch } from "./dom.js";
import { decide, open, useAsExample } from "./opening.js";
import { confidence, describeMask, learn, PhotoList } from "./photos.js";
import { classOf, emit, get, on, set } from "./state.js";
import { drawThumb } from "./thumbs.js";

const CELL = { width: 196, caption: 46, gap: 10 };
const ROW = 40; // height of a row of the list

const scroller = byId("review-scroller");
const inner = byId("review-inner");
const cells = new Map(); // position -> elements
const changes = new Map(); // photo id -> overlap with the mask before, while changes are shown

let focused = 0;
let asList = false;
let outdated = true; // the order is not that of the masks there are now

export const list = new PhotoList(() => {
  drawTotal();
  ask_();
});

const layout = () => {
  const width = scroller.clientWidth - 2 * CELL.gap;
  const columns = asList ? 1 : Math.max(1, Math.floor((width + CELL.gap) / (CELL.width + CELL.gap)));
  const cellWidth = asList ? width : Math.floor((width + CELL.gap) / columns) - CELL.gap;
  const height = asList ? ROW : Math.round(cellWidth * 0.72) + CELL.caption;
  return { columns, cellWidth, height, pitch: height + (asList ? 0 : CELL.gap) };
};

export const focusedPhoto = () => list.at(focused);

// ---- cells --------------------------------------------------------------------------------------------------------

function make() {
  const canvas = h("canvas", { class: "thumb", "aria-hidden": "true" });
  const name = h("span", { class: "cell-name" });
  const state = h("span", { class: "cell-state" });
  const facts = h("span", { class: "cell-facts" });
  const badge = h("span", { class: "badge" });
  const root = h("div", { class: "cell", role: "option" }, h("div", { class: "cell-picture" }, canvas, badge), h("div", { class: "cell-text" }, name, state, facts));
  inner.append(root);
  return { root, canvas, name, state, facts, badge };
}

function facts(photo) {
  const masks = Object.entries(photo.masks).filter(([id]) => classOf(id));
  if (!masks.length) return photo.state === "rejected" ? "nothing here" : "no mask yet";
  return masks.map(([id, mask]) => describeMask(photo, classOf(id).name, mask)).join("; ");
}

function fill(cell, index, { columns, cellWidth, height, pitch }) {
  const photo = list.at(index);
  const { root } = cell;
  root.id = `cell-${index}`;
  root.style.transform = `translate(${CELL.gap + (index % columns) * (cellWidth + CELL.gap)}px, ${CELL.gap + Math.floor(index / columns) * pitch}px)`;
  root.style.width = `${cellWidth}px`;
  root.style.height = `${height}px`;
  root.dataset.index = String(index);
  root.setAttribute("aria-setsize", String(list.total));
  root.setAttribute("aria-posinset", String(index + 1));
  root.setAttribute("aria-selected", String(index === focused));
  root.classList.toggle("loading", !photo);
  if (!photo) return;
  const sure = confidence(photo);
  const changed = changes.get(photo.id);
  const text = changed === undefined ? facts(photo) : `${percent(1 - changed)} of the mask differs; ${facts(photo)}`;
  root.dataset.photo = photo.id;
  root.dataset.state = photo.example ? "example" : photo.state;
  cell.name.textContent = photo.name;
  cell.state.textContent = root.dataset.state;
  cell.facts.textContent = text;
  root.title = `${photo.name}\n${text}`;
  root.setAttribute("aria-label", `${photo.name}, ${photo.example ? "example" : photo.state}. ${text}`);
  const mark = photo.example ? "star" : { accepted: "check", rejected: "cross" }[photo.state];
  cell.badge.replaceChildren(...(mark ? [icon(mark)] : []), sure === null ? "" : percent(sure));
  drawThumb(cell.canvas, photo, asList ? 160 : 320);
}

function draw() {
  const sizes = layout();
  const { columns, pitch } = sizes;
  inner.style.height = `${Math.ceil(list.total / columns) * pitch + 2 * CELL.gap}px`;
  const first = Math.max(0, Math.floor(scroller.scrollTop / pitch) - 1) * columns;
  const last = Math.min(list.total, (Math.ceil((scroller.scrollTop + scroller.clientHeight) / pitch) + 1) * columns);
  const free = [];
  for (const [index, cell] of cells) {
    if (index >= first && index < last) continue;
    free.push(cell);
    cells.delete(index);
  }
  for (let index = first; index < last; index++) {
    if (!cells.has(index)) cells.set(index, free.pop() ?? make());
    fill(cells.get(index), index, sizes);
  }
  for (const cell of free) cell.root.remove();
  scroller.setAttribute("aria-activedescendant", `cell-${focused}`);
  byId("review-empty").hidden = list.total > 0;
}

let asked = false;
function ask_() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (get("screen") === "review" && scroller.clientWidth) {
      draw();
      drawLoupe();
    }
  });
}

// ---- the chosen photo, larger -------------------------------------------------------------------------------------

function drawLoupe() {
  const photo = focusedPhoto();
  byId("loupe").hidden = !photo;
  if (!photo) return;
  byId("loupe-name").textContent = photo.name;
  const compared = changes.has(photo.id);
  byId("loupe-before").hidden = !compared;
  byId("loupe-now-title").hidden = !compared;
  drawThumb(byId("loupe-picture"), photo, 640);
  if (compared) drawThumb(byId("loupe-earlier"), photo, 640, { before: true });
  const chip = byId("loupe-state");
  chip.textContent = photo.example ? "example" : { open: "not looked at", accepted: "accepted", rejected: "rejected" }[photo.state];
  chip.dataset.state = photo.example ? "example" : photo.state;
  byId("loupe-masks").replaceChildren(
    ...Object.entries(photo.masks)
      .filter(([id]) => classOf(id))
      .map(([id, mask]) => h("li", {}, swatch(classOf(id).color), h("span", {}, describeMask(photo, classOf(id).name, mask)))),
  );
}

// ---- moving and deciding ------------------------------------------------------------------------------------------

export function focusCell(index) {
  focused = Math.max(0, Math.min(list.total - 1, index));
  const { columns, pitch } = layout();
  const top = Math.floor(focused / columns) * pitch;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  if (top + pitch + CELL.gap > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + pitch + CELL.gap - scroller.clientHeight;
  ask_();
}

/** Moves the choice by places, or by rows. */
export const moveFocus = (places, rows = 0) => focusCell(focused + places + rows * layout().columns);

export async function decideFocused(state, takesBack = false) {
  const [photo, place] = [focusedPhoto(), focused];
  if (!photo) return;
  const wanted = takesBack && photo.state === state ? "open" : state;
  if (wanted !== "open") moveFocus(1); // at once: the next key is about the next photo
  if (await decide(photo, wanted)) emit("decided");
  else focusCell(place);
}

export async function editFocused() {
  const photo = focusedPhoto();
  if (!photo) return;
  set({ screen: "label", cameFrom: "review" });
  await open(photo.id);
  if (changes.has(photo.id)) emit("compare-wanted");
}

export const useFocused = () => focusedPhoto() && useAsExample(focusedPhoto());

// ---- filters ------------------------------------------------------------------------------------------------------

const share = (id) => Number(byId(id).value) / 100;

function filters() {
  const [low, high] = [share("review-min"), share("review-max")].sort((a, b) => a - b);
  return {
    sort: byId("review-sort").value,
    state: byId("review-state").value,
    class: byId("review-class").value,
    min: low > 0 ? low : null,
    max: high < 1 ? high : null,
  };
}

export async function reload() {
  outdated = false;
  changes.clear();
  byId("changes-bar").hidden = true;
  await attempt(() => list.show(filters()));
  focusCell(0);
  scroller.scrollTop = 0;
}

/** Shows the photos whose masks the last run changed, most different first. */
export async function showChanges() {
  const answer = await attempt(() => getJson("/api/changes?limit=500"));
  if (!answer) return;
  set({ screen: "review" });
  const worst = new Map();
  for (const { photo, iou_with_before: overlap } of answer.items) worst.set(photo, Math.min(overlap, worst.get(photo) ?? 1));
  const ids = [...worst.keys()];
  const photos = await attempt(() => Promise.all(ids.map((id) => getJson(`/api/photos/${id}`))));
  if (!photos) return;
  outdated = false;
  changes.clear();
  for (const [id, overlap] of worst) changes.set(id, overlap);
  list.showThese(photos);
  byId("changes-text").textContent = `${plural(answer.total, "mask differs", "masks differ")} from the run before, most different first.`;
  byId("changes-bar").hidden = false;
  focusCell(0);
}

function drawTotal() {
  byId("review-total").textContent = plural(list.total, "photo");
}

function drawRange() {
  const [low, high] = [share("review-min"), share("review-max")].sort((a, b) => a - b);
  byId("review-range").textContent = `${percent(low)} – ${percent(high)}`;
}

function drawClassChoice() {
  const select = byId("review-class");
  const chosen = select.value;
  const items = get("project")?.classes ?? [];
  select.replaceChildren(h("option", { value: "" }, "all classes"), ...items.map((item) => h("option", { value: String(item.id) }, item.name)));
  select.value = items.some((item) => String(item.id) === chosen) ? chosen : "";
}

// ---- accept many --------------------------------------------------------------------------------------------------

const wanted = () => ({ min: share("accept-min"), class: byId("review-class").value ? Number(byId("review-class").value) : null });

const countAccepted = debounced(150, async () => {
  if (get("screen") !== "review") return;
  const answer = await post("/api/accept", { ...wanted(), dry: true }).catch(() => null);
  byId("accept-many").textContent = answer ? `Accept ${answer.count.toLocaleString("en")}` : "Accept";
  byId("accept-many").disabled = !answer?.count;
});

async function acceptMany() {
  const dry = await attempt(() => post("/api/accept", { ...wanted(), dry: true }));
  if (!dry?.count) return;
  const choice = await ask({
    title: `Accept ${plural(dry.count, "photo")}?`,
    text: `All open photos whose least certain mask has at least ${percent(wanted().min)}. A run never changes accepted masks.`,
    choices: [
      { text: "Cancel", value: null },
      { text: `Accept ${dry.count.toLocaleString("en")}`, value: "accept", kind: "primary" },
    ],
  });
  if (choice !== "accept") return;
  const done = await attempt(() => post("/api/accept", { ...wanted(), dry: false }));
  if (!done) return;
  note(`${plural(done.count, "photo")} accepted.`);
  emit("decided");
  await reload();
}

export function startGrid() {
  scroller.addEventListener("scroll", ask_, { passive: true });
  new ResizeObserver(ask_).observe(scroller);
  inner.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    focusCell(Number(cell.dataset.index));
    scroller.focus();
  });
  inner.addEventListener("dblclick", editFocused);
  for (const id of ["review-sort", "review-state", "review-class"]) byId(id).addEventListener("change", reload);
  const again = debounced(200, reload);
  for (const id of ["review-min", "review-max"]) {
    byId(id).addEventListener("input", () => {
      drawRange();
      again();
    });
  }
  byId("changes-close").addEventListener("click", reload);
  byId("accept-min").addEventListener("input", countAccepted);
  byId("accept-many").addEventListener("click", acceptMany);
  for (const name of ["grid", "list"]) {
    byId(`as-${name}`).addEventListener("click", () => {
      asList = name === "list";
      byId("as-grid").setAttribute("aria-pressed", String(!asList));
      byId("as-list").setAttribute("aria-pressed", String(asList));
      scroller.classList.toggle("as-list", asList);
      focusCell(focused);
    });
  }
  const decisions = { "loupe-accept": () => decideFocused("accepted", true), "loupe-reject": () => decideFocused("rejected", true), "loupe-edit": editFocused, "loupe-use": useFocused };
  for (const [id, run] of Object.entries(decisions)) byId(id).addEventListener("click", () => attempt(run));
  on("photo-changed", ask_);
  on("project", () => {
    drawClassChoice();
    ask_();
  });
  on("decided project", countAccepted);
  on("job-ended", () => {
    outdated = true;
  });
  on("screen", async (screen) => {
    if (screen !== "review") return;
    drawRange();
    countAccepted();
    if (outdated) await reload();
    ask_();
    scroller.focus({ preventScroll: true });
  });
}
