// Finished steps: what a tool has done goes into the history and to the disk; undo and redo do the same.

import { note } from "./dialogs.js";
import { applyStep, Edit, extent } from "./document.js";
import { save } from "./saver.js";
import { emit, get } from "./state.js";

/** Begins an edit of the chosen class, or asks for a class first and returns null. */
export function begin(value) {
  if (get("classId") === null) {
    emit("class-needed");
    return null;
  }
  return new Edit(get("doc"), get("classId"), value, get("takeOthers"));
}

/** Makes the edit one step: it can be undone, and it is saved. Returns the step, or null where nothing changed. */
export function commit(edit, name, session = null) {
  const step = edit.finish(name);
  if (!step) return null;
  step.session = session;
  edit.doc.history.push(step);
  store(edit.doc, extent(step));
  return step;
}

function store(doc, changed) {
  for (const [classId, area] of changed) {
    const layer = doc.layer(classId);
    layer.origin = "person";
    emit("painted", area);
    save(layer, area);
  }
  emit("history", doc.history);
}

function step(direction, side) {
  const doc = get("doc");
  const taken = doc?.history[direction]();
  if (!taken) {
    note(direction === "undo" ? "There is nothing to undo on this photo." : "There is nothing to redo on this photo.", { seconds: 2 });
    return;
  }
  store(doc, applyStep(doc, taken, side));
  emit("step-moved", { step: taken, side });
}

export const undo = () => step("undo", "before");
export const redo = () => step("redo", "after");
