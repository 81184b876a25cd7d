// Live previews: half a second after the last saved step the network runs again on a few photos, the newest request first.

import { getJson, post } from "./api.js";
import { tell } from "./dialogs.js";
import { debounced } from "./dom.js";
import { notHere, order, refresh } from "./opening.js";
import { learn, learnMask, photoOf } from "./photos.js";
import { emit, get, on, read, write } from "./state.js";

const REST = 500; // milliseconds after the last stroke
const MOST = 6;

const stale = new Set(); // ids whose masks are of an earlier request
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

const hasExamples = () => (get("project")?.counts.examples ?? 0) > 0;

async function request() {
  if (!hasExamples()) return;
  const photos = targets();
  if (!photos.length) return;
  for (const id of stale) if (!photos.includes(id)) stale.delete(id);
  for (const id of photos) stale.add(id);
  emit("order-changed");
  try {
    await post("/api/previews", { photos, class: null });
  } catch (error) {
    stale.clear();
    emit("order-changed");
    tell(error);
  }
}

const schedule = debounced(REST, request);

/** Takes the event `preview`. */
export function arrived({ photo, class: classId, revision, confidence, area }) {
  stale.delete(photo);
  learnMask(photo, classId, { origin: "found", revision, confidence, area, changed: Date.now() / 1000 });
  emit("order-changed");
  refresh(photo, classId, revision);
}

async function setExample(photo, wanted) {
  try {
    learn(await post(`/api/photos/${photo.id}/example`, { on: wanted }));
  } catch (error) {
    tell(error);
  }
}

on("mask-saved", async ({ layer, area }) => {
  const { doc, classId } = layer;
  const mask = layer.revision ? { origin: "person", revision: layer.revision, confidence: null, area } : null;
  learnMask(doc.photo.id, classId, mask);
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
});

on("examples-changed", async () => {
  try {
    emit("project-news", await getJson("/api/project"));
  } catch {
    return; // the connection's own note says so
  }
  schedule();
});

on("opened", (doc) => {
  if (wantsPreview(doc.photo) && !Object.keys(doc.photo.masks).length) schedule();
});
