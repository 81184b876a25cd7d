// Wires the page: screens, header, tools, the server's events.

import { getJson, listen, post, raw } from "./api.js";
import { fit, repaint, repaintMasks, startStage, useTool, view, zoomBy, zoomTo } from "./canvas.js";
import { decideOpen, listCommands } from "./commands.js";
import { attempt, note } from "./dialogs.js";
import { byId, debounced, plural } from "./dom.js";
import { redo, undo } from "./editor.js";
import { startExplain } from "./explain.js";
import { startExports } from "./exports.js";
import { startFilmstrip } from "./filmstrip.js";
import { reload, startGrid } from "./grid.js";
import { jobNews, startJobs } from "./jobs.js";
import { showKeys, startKeys } from "./keys.js";
import { nextOpen, open, order, step, useAsExample } from "./opening.js";
import { startModel } from "./model.js";
import { startPanel } from "./panel.js";
import { learn } from "./photos.js";
import { decode } from "./png.js";
import { arrived, previewed } from "./previews.js";
import { retry } from "./saver.js";
import { emit, get, on, read, rememberChoices, set, write } from "./state.js";
import { box, frame, region } from "./tools/box.js";
import { brush, eraser, notThis } from "./tools/brush.js";
import { polygon } from "./tools/polygon.js";
import { click, wand, why } from "./tools/smart.js";

const TOOLS = { brush, eraser, click, frame, wand, polygon, box, "not-this": notThis, region, why };

const HINTS = {
  brush: "Paint. Right button or Ctrl erases. Shift and a click draws a straight line.",
  eraser: "Erase from the chosen class.",
  click: "Click on the thing. Right button: not this. Click a point to drop it. Ctrl collects points. Enter finishes.",
  frame: "Two corners around the thing: its mask is found within.",
  wand: "Press and drag: the further, the more colours. Right button takes away.",
  polygon: "Click corners or draw freehand; close on the first corner. Right button takes away.",
  box: "Two corners: the box is filled. Right button takes away.",
  "not-this": "Paint over what is wrong: it is erased, and the photo becomes an example of what not to mark.",
  region: "Two corners: the network looks at this part only, and its answer is placed back.",
  why: "Click on a place: what speaks for it?",
};

// ---- screens ------------------------------------------------------------------------------------------------------

function drawScreen(screen) {
  for (const name of ["label", "review", "export"]) {
    byId(`screen-${name}`).hidden = name !== screen;
    byId(`go-${name}`).setAttribute("aria-current", name === screen ? "page" : "false");
  }
  document.body.dataset.screen = screen;
  history.replaceState(null, "", `#${screen}`);
  if (screen === "label") repaint();
}

// ---- header -------------------------------------------------------------------------------------------------------

const trouble = { lost: false, text: "" };

/** One line under the header for as long as something cannot be saved. */
function drawTrouble() {
  const text = trouble.text || (trouble.lost ? "The studio's server does not answer." : "");
  const line = text ? `${text} What you mark stays on the screen, and is saved as soon as that is possible.` : "";
  byId("trouble").hidden = !line;
  if (byId("trouble").textContent !== line) byId("trouble").textContent = line;
}

function drawSaving({ state, text }) {
  const box = byId("save-state");
  box.dataset.state = state;
  byId("save-text").textContent = state === "problem" ? "Not saved" : text;
  trouble.text = state === "problem" ? text.replace(/([^.?!])$/, "$1.") : "";
  drawTrouble();
  byId("save-retry").hidden = state !== "problem";
}

function drawTheme(theme) {
  const dark = theme === "dark" || (theme === null && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function drawProject(project) {
  const { counts } = project;
  const name = project.folder.split(/[\\/]/).findLast(Boolean) ?? project.folder;
  document.title = `${name} · cyctr Studio`;
  byId("folder").textContent = name;
  byId("folder").title = `Photos: ${project.folder}\nProject: ${project.project}`;
  byId("count-accepted").textContent = counts.accepted.toLocaleString("en");
  byId("count-open").textContent = counts.open.toLocaleString("en");
  byId("count-rejected").textContent = counts.rejected.toLocaleString("en");
  byId("counts").title = `${plural(counts.photos, "photo")}: ${counts.accepted} accepted, ${counts.rejected} rejected, ${counts.open} open`;
  drawSam(project.sam);
}

function drawSam(sam) {
  const ready = Boolean(sam?.ready);
  byId("sam-offer").hidden = ready || !sam;
  byId("click-kind").hidden = !ready;
  if (!sam || ready) return;
  const size = `${Math.round(sam.size / 1e6)} MB`;
  byId("sam-fetch").disabled = sam.fetching;
  byId("sam-fetch").textContent = sam.fetching ? `Fetching SAM: ${Math.round(sam.bytes / 1e6)} of ${size}` : `Fetch SAM (${size}, ${sam.licence})`;
  byId("sam-fetch").title = "Sharper smart clicks. They work without it, too.";
}

function projectNews(news) {
  const project = { ...get("project"), ...news };
  set({ project });
  if (!project.classes.some((item) => item.id === get("classId"))) set({ classId: project.classes[0]?.id ?? null });
  jobNews(project.job ?? null);
}

// ---- the bar over the stage ---------------------------------------------------------------------------------------

function drawTool(name) {
  for (const button of document.querySelectorAll("button[data-tool]")) button.setAttribute("aria-pressed", String(button.dataset.tool === name));
  byId("tool-hint").textContent = HINTS[name];
  byId("brush-options").hidden = !["brush", "eraser", "not-this"].includes(name);
  byId("wand-options").hidden = name !== "wand";
  byId("click-options").hidden = !["click", "frame"].includes(name);
  useTool(TOOLS[name]);
}

function drawHistory(history) {
  byId("undo").disabled = !history?.canUndo;
  byId("redo").disabled = !history?.canRedo;
}

function bind(id, name, { read: toValue = Number, show = null } = {}) {
  const input = byId(id);
  const draw = (value) => {
    if (input.type === "checkbox") input.checked = value;
    else input.value = String(value);
    show?.(value);
  };
  input.addEventListener(input.type === "checkbox" ? "change" : "input", () => {
    set({ [name]: input.type === "checkbox" ? input.checked : toValue(input.value) });
  });
  on(name, draw);
  draw(get(name));
}

const press = (id, run) => byId(id).addEventListener("click", () => void attempt(async () => run()));

function bindBar() {
  bind("brush-size", "brush", { show: (value) => (byId("brush-size-text").textContent = `${value} px`) });
  bind("tolerance", "tolerance", { show: (value) => (byId("tolerance-text").textContent = `± ${value}`) });
  bind("take-others", "takeOthers");
  bind("opacity", "opacity");
  bind("brightness", "brightness");
  bind("contrast", "contrast");
  bind("click-kind", "clickKind", { read: String });
  on("outlineOnly", (value) => byId("outline").setAttribute("aria-pressed", String(value)));
  byId("outline").setAttribute("aria-pressed", String(get("outlineOnly")));
  press("outline", () => set({ outlineOnly: !get("outlineOnly") }));
  press("zoom-in", () => zoomBy(1.25));
  press("zoom-out", () => zoomBy(0.8));
  press("fit", fit);
  press("undo", undo);
  press("redo", redo);
  press("compare", () => emit("compare-wanted"));
  press("sam-fetch", () => post("/api/sam"));
  const zoom = byId("zoom");
  zoom.addEventListener("change", () => {
    const wanted = Number.parseFloat(zoom.value);
    if (wanted > 0) zoomTo(wanted / 100);
    drawZoom();
  });
  on("view", drawZoom);
}

function drawZoom() {
  const value = 100 * view.scale;
  byId("zoom").value = `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

// ---- before and after ---------------------------------------------------------------------------------------------

async function toggleCompare() {
  const doc = get("doc");
  if (!doc) return;
  if (get("compare") !== null) {
    set({ compare: null });
    return;
  }
  let some = false;
  for (const item of get("project").classes) {
    const response = await attempt(() => raw(`/api/photos/${doc.photo.id}/mask/${item.id}?run=before`));
    const there = response && response.status === 200;
    doc.layer(item.id).earlier = there ? (await decode(await response.blob())).values : null;
    some ||= there;
  }
  if (doc !== get("doc")) return;
  if (some) set({ compare: 0.5 });
  else note("There is no earlier run to compare this photo with.", { seconds: 4 });
}

function bindCompare() {
  on("compare-wanted", toggleCompare);
  on("compare-by", (amount) => {
    if (get("compare") !== null) set({ compare: Math.min(1, Math.max(0, get("compare") + amount)) });
  });
  const slider = byId("compare-slider");
  slider.addEventListener("input", () => set({ compare: Number(slider.value) }));
  on("compare", (value) => {
    byId("compare").setAttribute("aria-pressed", String(value !== null));
    byId("compare-field").hidden = value === null;
    if (value !== null) slider.value = String(value);
  });
}

// ---- everything together ------------------------------------------------------------------------------------------

function bindButtons() {
  for (const name of ["label", "review", "export"]) press(`go-${name}`, () => set({ screen: name }));
  for (const button of document.querySelectorAll("button[data-tool]")) {
    button.addEventListener("click", () => set({ tool: button.dataset.tool }));
  }
  press("save-retry", () => {
    const { layer } = byId("save-state");
    if (layer?.conflict !== null && layer) emit("conflict", layer);
    else retry();
  });
  press("theme", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    write("theme", theme);
    drawTheme(theme);
  });
  press("show-keys", showKeys);
  press("accept", () => decideOpen("accepted", true));
  press("reject", () => decideOpen("rejected", true));
  press("use-example", () => useAsExample(get("photo")));
  press("next", () => step(1));
  press("previous", () => step(-1));
  press("next-open", nextOpen);
  // after a click of the mouse the keys belong to the screen again; by keyboard, the focus stays on the button
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (event.detail === 0 || !button || button.closest("dialog")) return;
    if (get("screen") === "label") byId("stage").focus({ preventScroll: true });
    if (get("screen") === "review" && !button.closest("form")) byId("review-scroller").focus({ preventScroll: true });
  });
}

function listenToServer() {
  const projectSoon = debounced(200, async () => {
    const news = await getJson("/api/project").catch(() => null); // a lost connection has its own note
    if (news) projectNews(news);
  });
  listen({
    begun: projectSoon, // what happened between the first answer and now, such as a network that is ready
    preview: arrived,
    previewed,
    job: jobNews,
    photo: (photo) => learn(photo),
    project: projectNews,
    sam: (sam) => {
      set({ project: { ...get("project"), sam } });
      if (sam.problem) note(sam.problem, { problem: true });
    },
    problem: ({ text }) => note(text, { problem: true }),
    lost: () => {
      trouble.lost = true;
      drawTrouble();
    },
    back: () => {
      trouble.lost = false;
      drawTrouble();
      retry();
      projectSoon();
      order.show().catch(() => null);
      if (get("screen") === "review") reload();
    },
  });
  on("decided mask-saved job-ended", projectSoon);
}

async function firstPhoto() {
  await order.show({ sort: "name" });
  const kept = read("photo");
  const at = kept ? await order.find(kept).catch(() => -1) : -1;
  const photo = at >= 0 ? order.at(at) : await order.reach(0);
  if (photo) await open(photo.id);
  byId("no-photos").hidden = order.total > 0;
  if (!get("project").classes.length && get("screen") === "label") byId("first-class-name").focus();
}

async function start() {
  rememberChoices();
  drawTheme(read("theme"));
  listCommands();
  startKeys();
  startStage();
  startFilmstrip();
  startPanel();
  startGrid();
  startJobs();
  startExports();
  startExplain();
  startModel();
  bindButtons();
  bindBar();
  bindCompare();
  on("tool", drawTool);
  on("screen", drawScreen);
  on("screen-wanted", (screen) => set({ screen }));
  on("history", drawHistory);
  on("project", drawProject);
  on("project", repaintMasks);
  on("project-news", projectNews);
  on("saving", (status) => {
    byId("save-state").layer = status.layer;
    drawSaving(status);
  });
  on("thinking", (busy) => byId("stage").classList.toggle("thinking", busy));
  on("pointed", (p) => {
    const photo = get("photo");
    const inside = p && photo && p.px >= 0 && p.py >= 0 && p.px < photo.width && p.py < photo.height;
    byId("position").textContent = inside ? `${p.px}, ${p.py}` : "";
  });
  drawTool(get("tool"));
  const wanted = location.hash.slice(1);
  drawScreen("label");
  await attempt(async () => {
    projectNews(await getJson("/api/project"));
    if (["review", "export"].includes(wanted)) set({ screen: wanted });
    for (const text of get("project").problems ?? []) note(text, { problem: true });
    listenToServer();
    await firstPhoto();
  });
  document.body.dataset.ready = "true";
}

start();
