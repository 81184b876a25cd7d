// Undo and redo of one photo: one stroke, one polygon, one click is one step.

const MOST_STEPS = 200;
const MOST_BYTES = 128 * 1024 * 1024;

const bytes = (step) => step.patches.reduce((sum, patch) => sum + patch.before.length + patch.after.length, 0);

export class History {
  #done = [];
  #undone = [];

  push(step) {
    this.#undone = [];
    this.#done.push(step);
    let total = this.#done.reduce((sum, each) => sum + bytes(each), 0);
    while (this.#done.length > 1 && (this.#done.length > MOST_STEPS || total > MOST_BYTES)) {
      total -= bytes(this.#done.shift());
    }
  }

  get canUndo() {
    return this.#done.length > 0;
  }

  get canRedo() {
    return this.#undone.length > 0;
  }

  undo() {
    const step = this.#done.pop();
    if (step) this.#undone.push(step);
    return step ?? null;
  }

  redo() {
    const step = this.#undone.pop();
    if (step) this.#done.push(step);
    return step ?? null;
  }

  /** Drops all steps where a mask of this class came from elsewhere: they no longer fit it. */
  forget(classId) {
    const fits = (step) => step.patches.every((patch) => patch.classId !== classId);
    if (this.#done.every(fits) && this.#undone.every(fits)) return;
    this.#done = [];
    this.#undone = [];
  }
}
