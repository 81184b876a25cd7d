// Brings every finished step to the disk. What could not be saved stays in memory and is tried again.

import { ApiError, getJson, put, query, remove } from "./api.js";
import { cut, isEmpty, union } from "./pixels.js";
import { encode } from "./png.js";
import { emit } from "./state.js";

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 15000;

const layers = new Set(); // all that wait, are being sent, or failed
let wait = FIRST_WAIT;
let timer = null;

/** Says that a rectangle of a layer changed; it is sent at once, and again until the server has it. */
export function save(layer, area) {
  layer.dirty = union(layer.dirty, area);
  layers.add(layer);
  tell();
  flush(layer);
}

/** Tries again now whatever waits. */
export function retry() {
  clearTimeout(timer);
  timer = null;
  for (const layer of layers) flush(layer);
}

/** What the header shows: saved, saving, or a problem and its text. */
export function status() {
  for (const layer of layers) {
    const name = layer.doc.photo.name;
    if (layer.conflict !== null) return { state: "problem", text: `${name} was changed elsewhere`, layer };
    if (layer.problem) return { state: "problem", text: layer.problem.message, layer };
  }
  return layers.size ? { state: "saving", text: "Saving" } : { state: "saved", text: "Saved" };
}

const tell = () => emit("saving", status());

async function flush(layer) {
  if (layer.sending || layer.conflict !== null || !layer.dirty) return;
  const area = layer.dirty;
  layer.dirty = null;
  layer.sending = true;
  try {
    const answer = await send(layer, area);
    layer.revision = answer?.revision ?? 0;
    layer.origin = layer.revision ? "person" : null;
    layer.problem = null;
    wait = FIRST_WAIT;
    emit("mask-saved", { layer, area: answer?.area ?? 0 });
  } catch (error) {
    layer.dirty = union(layer.dirty, area);
    if (error instanceof ApiError && error.status === 409) {
      await settle(layer, error.body.revision ?? 0);
    } else {
      layer.problem = error;
      later(error);
    }
  }
  layer.sending = false;
  if (!layer.dirty && layer.conflict === null) layers.delete(layer);
  tell();
  if (layer.dirty && !layer.problem) flush(layer);
}

/** Somebody else saved the mask: a person is asked about; what the network found gives way to the person. */
async function settle(layer, revision) {
  const photo = await getJson(`/api/photos/${layer.doc.photo.id}`).catch(() => null);
  if (photo && photo.masks[layer.classId]?.origin !== "person") {
    layer.revision = photo.masks[layer.classId]?.revision ?? 0;
    layer.startedEmpty = layer.revision === 0;
    layer.dirty = layer.doc.bounds;
  } else {
    layer.conflict = revision;
    emit("conflict", layer);
  }
}

async function send(layer, area) {
  const { doc } = layer;
  if (layer.startedEmpty && isEmpty(layer.raster)) {
    // everything was taken back: the photo is as it was, without a mask
    return layer.revision ? remove(`${layer.path}?base=${layer.revision}`) : { revision: 0, area: 0 };
  }
  const body = await encode(cut(layer.raster, doc.width, area), area.width, area.height);
  return put(`${layer.path}?${query({ ...area, base: layer.revision })}`, body, "image/png");
}

function later(error) {
  if (timer !== null || (error instanceof ApiError && !error.passing)) return;
  timer = setTimeout(retry, wait);
  wait = Math.min(LONGEST_WAIT, 2 * wait);
}

/** Ends a conflict: the mask of this page is saved over the other one, as a new revision. */
export function keepMine(layer) {
  layer.revision = layer.conflict;
  layer.conflict = null;
  layer.startedEmpty = layer.revision === 0;
  layer.dirty = layer.doc.bounds;
  flush(layer);
}

/** Ends a conflict: this page takes the other mask. */
export async function takeTheirs(layer) {
  await layer.doc.reload(layer.classId);
  layers.delete(layer);
  tell();
}

/** Whether leaving the page now would lose something. */
export const somethingWaits = () => layers.size > 0;

window.addEventListener("online", retry);
window.addEventListener("beforeunload", (event) => {
  if (somethingWaits()) event.preventDefault();
});
