// The page's one store of values, and the announcer of events: everything else listens to it.

const values = {
  project: null, // what GET /api/project says
  photo: null, // the open photo
  doc: null, // its masks, as rasters
  classId: null, // what a stroke marks
  tool: "brush",
  screen: "label",
  brush: 25, // diameter in pixels of the photo
  tolerance: 12, // of the magic wand
  clickKind: "auto", // what a smart click asks: SAM, our features, or the best there is
  takeOthers: false, // painting a class takes its pixels from the others
  opacity: 0.45,
  outlineOnly: false,
  hidden: false, // while H is held
  brightness: 1,
  contrast: 1,
  compare: null, // 0..1, where the earlier mask ends and the present one begins
};

const listeners = new Map();

export const get = (name) => values[name];

/** Changes values and tells the listeners of those that differ. */
export function set(changes) {
  const changed = Object.keys(changes).filter((name) => values[name] !== changes[name]);
  Object.assign(values, changes);
  for (const name of changed) emit(name, values[name]);
}

/** Calls `listener` with the value of each change of `name`, or with what is sent by `emit`. */
export function on(names, listener) {
  for (const name of names.split(" ")) {
    if (!listeners.has(name)) listeners.set(name, new Set());
    listeners.get(name).add(listener);
  }
}

export function emit(name, value) {
  for (const listener of listeners.get(name) ?? []) listener(value, name);
}

const REMEMBERED = ["brush", "takeOthers", "opacity", "outlineOnly"];

/** Brings back what this browser remembered of the person's choices, and keeps it up to date. */
export function rememberChoices() {
  for (const name of REMEMBERED) {
    const kept = read(name);
    if (kept !== null && typeof kept === typeof values[name]) values[name] = kept;
    on(name, (value) => write(name, value));
  }
}

/** A value kept by this browser, or null; a browser that keeps nothing is no error. */
export function read(name) {
  try {
    return JSON.parse(localStorage.getItem(`cyctr-studio-${name}`));
  } catch {
    return null;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(`cyctr-studio-${name}`, JSON.stringify(value));
  } catch {
    // a private window may refuse; the choice then lasts until the page is closed
  }
}

export const classOf = (id) => get("project")?.classes.find((item) => item.id === Number(id)) ?? null;
