// Live previews: half a second after the last saved step the network runs again on a few photos, the newest request first.

import { getJson, post } from "./api.js";
import { tell } from "./dialogs.js";
import { byId, debounced } from "./dom.js";
import { isMissing, tellIfLoading } from "./model.js";
import { notHere, order, refresh } from "./opening.js";
import { learn, learnMask, photoOf } from "./photos.js";
import { emit, get, on, read, write } from "./state.js";

const REST = 500; // milliseconds after the last stroke
const MOST = 6;

const strip = byId("filmstrip");
const due = new Set(); // what may still lead to a request
const stale = new Set(); // ids whose masks are of an earlier request
let outdated = 0; // number of the request before the newest
let newest = 0; // that of the newest, once the server has given it one
const pinned = new Set(read("pinned") ?? []);

export const isStale = (id) => stale.has(id);
export const isPinned = (id) => pinned.has(id);

export function togglePin(id) {
  if (!pinned.delete(id)) pinned.add(id);
  write("pinned", [...pinned]);
  emit("order-changed");
  schedule();
}

const byHand = (photo) => Object.values(photo.masks).some((mask) => mask.origin === "person");
const wantsPreview = (photo) => photo && photo.state !== "accepted" && photo.state !== "rejected" && !photo.example && !byHand(photo);

/** The open photo, the pinned ones, and those after the open one, as far as a run may change them. */
function targets() {
  const at = Math.max(0, order.indexOf(get("photo")?.id));
  const following = Array.from({ length: 4 * MOST }, (_, index) => order.at(at + index));
  const wanted = [get("photo"), ...[...pinned].map(photoOf), ...following].filter(wantsPreview);
  return [...new Set(wanted.map((photo) => photo.id))].slice(0, Math.max(MOST, 1));
}

/** The strip is busy from a step that was saved until its last preview is shown. */
function drawBusy() {
  strip.setAttribute("aria-busy", String(due.size + stale.size > 0));
}

function expect(what, isDue) {
  if (isDue) due.add(what);
  else due.delete(what);
  drawBusy();
}

const hasExamples = () => (get("project")?.counts.examples ?? 0) > 0;

async function request() {
  const photos = hasExamples() && !isMissing() ? targets() : [];
  if (photos.length) stale.clear(); // the newest request replaces the one before
  for (const id of photos) stale.add(id);
  expect("request", false);
  if (!photos.length) return;
  tellIfLoading();
  emit("order-changed");
  if (newest < Infinity) outdated = newest;
  newest = Infinity;
  try {
    newest = (await post("/api/previews", { photos, class: null })).request;
    if (newest < outdated) outdated = 0; // a server that was started again counts from one
  } catch (error) {
    newest = outdated;
    stale.clear();
    drawBusy();
    emit("order-changed");
    tell(error);
  }
}

const requestSoon = debounced(REST, request);

function schedule() {
  expect("request", true);
  requestSoon();
}

/** Takes the event `preview`. */
export function arrived({ photo, class: classId, revision, confidence, area }) {
  learnMask(photo, classId, { origin: "found", revision, confidence, area, changed: Date.now() / 1000 });
  emit("order-changed");
  refresh(photo, classId, revision);
}

/** Takes the event `previewed`: the server has done a photo, whether it found anything or not. */
export function previewed({ photo, request }) {
  if (request > newest) stale.clear(); // another window asks for other photos
  else if (request > outdated) stale.delete(photo);
  drawBusy();
  emit("order-changed");
}

async function setExample(photo, wanted) {
  try {
    const answer = await post(`/api/photos/${photo.id}/example`, { on: wanted });
    learn({ ...answer, masks: photo.masks }); // a step that was saved meanwhile is newer than the answer
  } catch (error) {
    tell(error);
  }
}

/** What a step that is on the disk means for the examples. */
async function follow({ layer, area }) {
  const { doc, classId } = layer;
  const photo = photoOf(doc.photo.id) ?? doc.photo;
  const was = photo.example;
  const marked = Object.values(photo.masks).some((each) => each.area > 0);
  // what is labelled from nothing is an example at once; a corrected mask becomes one when the person says so
  if (marked && !was && !doc.keptOut && (!doc.corrected || doc.notThis)) await setExample(photo, true);
  // an example without any mark would say nothing
  if (!marked && was) await setExample(photo, false);
  if (doc.notThis && area === 0) await notHere(photo, classId, true);
  doc.notThis = false;
  if (was || photo.example) emit("examples-changed", photo);
}

on("examples-changed", async () => {
  const news = {};
  expect(news, true);
  try {
    emit("project-news", await getJson("/api/project"));
    schedule();
  } catch {
    // the connection's own note says so
  }
  expect(news, false);
});

let following = Promise.resolve(); // one step after another: an undo must not be overtaken by the stroke it takes back

on("mask-saved", (step) => {
  const { doc, classId, revision } = step.layer;
  learnMask(doc.photo.id, classId, revision ? { origin: "person", revision, confidence: null, area: step.area } : null);
  expect(step, true);
  following = following.then(() => follow(step)).catch(tell).finally(() => expect(step, false));
});

on("opened", (doc) => {
  if (wantsPreview(doc.photo) && !Object.keys(doc.photo.masks).length) schedule();
});
