// Which photo is open, the way to the next one, and what a person decides about it.

import { getJson, post } from "./api.js";
import { isDrawing, leaveTool, repaintMasks, showPhoto } from "./canvas.js";
import { attempt, note, tell } from "./dialogs.js";
import { Doc } from "./document.js";
import { learn, PhotoList, photoOf } from "./photos.js";
import { emit, get, on, set, write } from "./state.js";

const MOST_BYTES = 200 * 1024 * 1024; // rasters of photos that were open before; unsaved ones stay whatever they take

const docs = new Map(); // photo id -> Doc, least recently opened first
let opening = null;

/** The order of the filmstrip, which `A` and `D` follow. */
export const order = new PhotoList(() => emit("order-changed"));

/** Opens a photo on the stage; masks that wait to be saved are still there when one comes back. */
export async function open(id) {
  if (isDrawing()) return;
  leaveTool();
  opening = id;
  const photo = photoOf(id);
  if (photo && get("photo")?.id !== id) {
    set({ doc: null, photo });
    showPhoto(photo.problem ? null : photo);
  }
  await attempt(async () => {
    const doc = await docFor(id);
    if (opening !== id) return;
    const fresh = learn(doc.photo);
    doc.photo = fresh;
    if (fresh.problem) {
      docs.delete(id);
      set({ photo: fresh, doc: null, compare: null });
      showPhoto(null);
      return;
    }
    if (get("photo")?.id !== id || !photo) showPhoto(fresh);
    set({ photo: fresh, doc, compare: null });
    emit("history", doc.history);
    write("photo", id);
    repaintMasks();
    emit("opened", doc);
  });
}

async function docFor(id) {
  const kept = docs.get(id);
  docs.delete(id);
  let doc = kept;
  if (kept?.waiting) {
    kept.photo = photoOf(id) ?? kept.photo;
  } else {
    const fresh = await getJson(`/api/photos/${id}`);
    const same = kept && fresh.width === kept.width && sameRevisions(kept, fresh);
    if (same) kept.photo = fresh;
    else doc = await Doc.open(id);
  }
  docs.set(id, doc);
  trim(id);
  return doc;
}

function sameRevisions(doc, photo) {
  const ids = new Set([...doc.layers.keys(), ...Object.keys(photo.masks).map(Number)]);
  return [...ids].every((id) => (doc.layers.get(id)?.revision ?? 0) === (photo.masks[id]?.revision ?? 0));
}

function trim(present) {
  const size = (doc) => [...doc.layers.values()].filter((layer) => layer.raster).length * doc.width * doc.height;
  let total = [...docs.values()].reduce((sum, doc) => sum + size(doc), 0);
  for (const [id, doc] of docs) {
    if (total <= MOST_BYTES) return;
    if (id === present || doc.waiting) continue;
    total -= size(doc);
    docs.delete(id);
  }
}

/** Opens the photo `by` places further in the order; says so where there is no further one. */
export async function step(by) {
  const present = order.indexOf(get("photo")?.id);
  const next = await attempt(() => order.reach(present + by));
  if (next) await open(next.id);
  else note(by > 0 ? "This is the last photo." : "This is the first photo.", { seconds: 2 });
}

/** Opens the next photo that nobody has looked at, from here on and then from the beginning. */
export async function nextOpen() {
  const present = order.indexOf(get("photo")?.id);
  const photo = await attempt(() => order.next(present, (each) => each.state === "open" && !each.example));
  if (photo) await open(photo.id);
  else note("There is no photo left that nobody looked at.", { seconds: 4 });
}

/** A newer mask is on the server; the open photo takes it unless the person is at work on it. */
export async function refresh(photoId, classId, revision) {
  const doc = docs.get(photoId);
  const layer = doc?.layer(classId);
  const busy = () => layer.waiting || layer.conflict !== null || isDrawing();
  if (!doc || busy() || layer.revision >= revision) return;
  if (doc !== get("doc")) {
    docs.delete(photoId);
    return;
  }
  const found = await attempt(() => layer.fetch());
  if (!found || busy() || layer.revision >= found.revision) return;
  layer.take(found);
  repaintMasks();
}

// ---- decisions ----------------------------------------------------------------------------------------------------

const revisions = (photo) => Object.fromEntries(Object.entries(photo.masks).map(([id, mask]) => [id, mask.revision]));

/** accepted, rejected or open; true when it was stored. */
export async function decide(photo, state) {
  const base = state === "accepted" ? revisions(photo) : undefined;
  try {
    learn(await post(`/api/photos/${photo.id}/state`, { state, base }));
    return true;
  } catch (error) {
    if (error.status !== 409) {
      tell(error);
      return false;
    }
  }
  // what was seen is not what would be accepted: a run has written another mask meanwhile
  const fresh = await attempt(() => getJson(`/api/photos/${photo.id}`));
  if (fresh) learn(fresh);
  note(`${photo.name} was segmented again just now. Look at it, and decide once more.`);
  return false;
}

/** Makes the photo an example, or stops it being one. */
export async function useAsExample(photo, wanted = !photo.example) {
  if (wanted && !Object.values(photo.masks).some((mask) => mask.area > 0)) {
    note("Mark something on this photo first: an example needs a mask.", { seconds: 4 });
    return;
  }
  const answer = await attempt(() => post(`/api/photos/${photo.id}/example`, { on: wanted }));
  if (!answer) return;
  learn(answer);
  const doc = docs.get(photo.id);
  if (doc) doc.keptOut = !wanted;
  emit("examples-changed", answer);
  note(wanted ? `${photo.name} is an example now.` : `${photo.name} is no example any more.`, { seconds: 3 });
}

/** Says that a class is not on the photo, or takes that back. */
export async function notHere(photo, classId, wanted) {
  const answer = await attempt(() => post(`/api/photos/${photo.id}/negative`, { class: classId, on: wanted }));
  if (!answer) return;
  learn(answer);
  emit("examples-changed", answer);
}

on("photo-changed", (photo) => {
  if (photo.id !== get("photo")?.id) return;
  emit("photo", photo);
  // another window may have painted on it
  for (const [classId, mask] of Object.entries(photo.masks)) refresh(photo.id, Number(classId), mask.revision);
});
