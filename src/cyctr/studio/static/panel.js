// The right side of the label screen: this photo, the classes, the examples.

import { getJson, patch, post, remove } from "./api.js";
import { ask, askText, attempt } from "./dialogs.js";
import { byId, debounced, h, iconButton, plural, swatch } from "./dom.js";
import { notHere, open } from "./opening.js";
import { describeMask, learn } from "./photos.js";
import { classOf, emit, get, on, set } from "./state.js";
import { drawThumb } from "./thumbs.js";

// seen apart by people who see few colours, and on dark and light photos
const COLORS = ["#ff7a1a", "#2aa5ff", "#3ecf6e", "#f54d8f", "#ffd23f", "#9b6bff", "#17c3b2", "#e5383b", "#b0d636"];

// ---- classes ------------------------------------------------------------------------------------------------------

export async function addClass(name) {
  const project = get("project");
  const color = COLORS.find((each) => !project.classes.some((item) => item.color === each)) ?? COLORS[project.classes.length % COLORS.length];
  const made = await post("/api/classes", { name, color });
  emit("project-news", await getJson("/api/project"));
  set({ classId: made.id });
  return made;
}

/** Asks for a name and makes a class. */
export const newClass = () =>
  askText({
    title: "New class",
    text: "Name what you want to find, for example: cup.",
    label: "Name",
    button: "Add",
    act: async (name) => name && addClass(name),
  });

const rename = (item) =>
  askText({ title: "Rename the class", label: "Name", value: item.name, button: "Rename", act: async (name) => name && name !== item.name && change(item, { name }) });

async function change(item, changes) {
  await patch(`/api/classes/${item.id}`, changes);
  emit("project-news", await getJson("/api/project"));
}

async function drop(item) {
  const labelled = item.examples > 0 ? ` It has ${plural(item.examples, "example")}, whose masks are deleted, too.` : "";
  const choice = await ask({
    title: `Delete the class ${item.name}?`,
    text: `All masks of this class are deleted from the project.${labelled} This cannot be undone.`,
    choices: [
      { text: "Cancel", value: null, kind: "primary" },
      { text: "Delete", value: "delete", kind: "danger" },
    ],
  });
  if (choice !== "delete") return;
  if ((await attempt(() => remove(`/api/classes/${item.id}`, { force: true }))) === null) return;
  emit("project-news", await getJson("/api/project"));
  if (get("classId") === item.id) set({ classId: get("project").classes[0]?.id ?? null });
  if (get("photo")) await open(get("photo").id);
}

function row(item, index) {
  const color = h("input", { type: "color", "aria-label": `Colour of ${item.name}`, title: "Colour" });
  color.value = item.color;
  color.addEventListener("change", () => attempt(() => change(item, { color: color.value })));
  const counts = [`${item.examples} ex`, item.found ? `${item.found} found` : null].filter(Boolean).join(" · ");
  const choose = h(
    "button",
    { type: "button", class: "class-choose", "aria-pressed": String(item.id === get("classId")), on: { click: () => set({ classId: item.id }) } },
    h("kbd", {}, index < 9 ? String(index + 1) : "·"),
    swatch(item.color),
    h("span", { class: "class-name" }, item.name),
    h("span", { class: "muted counts" }, counts),
  );
  return h(
    "li",
    { class: "class-row", "data-class": String(item.id) },
    choose,
    h("span", { class: "class-tools" }, color, iconButton("pencil", `Rename ${item.name}`, () => rename(item)), iconButton("trash", `Delete ${item.name}`, () => drop(item))),
  );
}

function drawClasses() {
  const project = get("project");
  if (!project) return;
  byId("classes").replaceChildren(...project.classes.map(row));
  byId("first-class").hidden = project.classes.length > 0;
  byId("take-others-field").hidden = project.classes.length < 2;
}

// ---- this photo ---------------------------------------------------------------------------------------------------

const STATES = { open: "not looked at", accepted: "accepted", rejected: "rejected" };

function drawPhoto() {
  const photo = get("photo");
  byId("photo-panel").hidden = !photo;
  if (!photo) return;
  byId("photo-name").textContent = photo.name;
  byId("photo-name").title = photo.name;
  byId("photo-problem").hidden = !photo.problem;
  byId("photo-problem").textContent = photo.problem ?? "";
  byId("photo-size").textContent = `${photo.width} × ${photo.height}`;
  const chip = byId("photo-state");
  chip.textContent = photo.example ? "example" : STATES[photo.state];
  chip.dataset.state = photo.example ? "example" : photo.state;
  const items = get("project")?.classes ?? [];
  byId("photo-masks").replaceChildren(
    ...items.map((item) => {
      const mask = photo.masks[item.id];
      const absent = photo.negative?.includes(item.id);
      const text = mask ? describeMask(photo, item.name, mask) : `${item.name}, ${absent ? "not on this photo" : "no mask"}`;
      const label = `${item.name} is not on this photo`;
      const toggle = h("button", { type: "button", class: "quiet tiny", "aria-pressed": String(Boolean(absent)), title: label, "aria-label": label, on: { click: () => notHere(photo, item.id, !absent) } }, "not here");
      return h("li", { class: mask ? "" : "muted" }, swatch(item.color), h("span", {}, text), mask?.area ? null : toggle);
    }),
  );
  byId("use-example").setAttribute("aria-pressed", String(Boolean(photo.example)));
  byId("accept").setAttribute("aria-pressed", String(photo.state === "accepted"));
  byId("reject").setAttribute("aria-pressed", String(photo.state === "rejected"));
}

// ---- examples -----------------------------------------------------------------------------------------------------

const drawExamples = debounced(60, async () => {
  const answer = await getJson("/api/photos?example=1&limit=60").catch(() => null);
  if (!answer) return;
  const items = answer.items.map(learn).filter((photo) => photo.example);
  byId("examples-count").textContent = String(items.length);
  byId("no-examples").hidden = items.length > 0;
  byId("examples").replaceChildren(
    ...items.map((photo) => {
      const names = Object.keys(photo.masks).map((id) => classOf(id)?.name).filter(Boolean).join(", ");
      const canvas = h("canvas", { class: "thumb" });
      requestAnimationFrame(() => drawThumb(canvas, photo, 160));
      return h("li", {}, h("button", { type: "button", title: `${photo.name}: ${names}`, "aria-label": `Example ${photo.name}: ${names}`, on: { click: () => open(photo.id) } }, canvas));
    }),
  );
});

export function startPanel() {
  on("project classId", drawClasses);
  on("project", drawPhoto);
  on("photo", drawPhoto);
  on("project examples-changed", drawExamples);
  on("screen", (screen) => {
    if (screen === "label") drawExamples(); // a picture drawn while it was hidden has no size
  });
  byId("add-class").addEventListener("click", newClass);
  byId("first-class").addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = byId("first-class-name").value.trim();
    if (name && (await attempt(() => addClass(name)))) byId("stage").focus();
  });
  on("class-needed", () => {
    if (get("project")?.classes.length) set({ classId: get("project").classes[0].id });
    else byId("first-class-name").focus();
  });
}
