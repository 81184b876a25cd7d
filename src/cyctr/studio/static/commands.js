// What every key and every button of the page does.

import { fit, hasCursor, hideCursor, holdSpace, moveCursor, offerKey, pressCursor, toggleCursor, zoomBy, zoomTo } from "./canvas.js";
import { redo, undo } from "./editor.js";
import { decideFocused, editFocused, moveFocus, useFocused } from "./grid.js";
import { segmentAll } from "./jobs.js";
import { addCommands, showKeys } from "./keys.js";
import { decide, nextOpen, step, useAsExample } from "./opening.js";
import { newClass } from "./panel.js";
import { emit, get, set } from "./state.js";

const tool = (name) => () => set({ tool: name });

/** Makes the brush wider or narrower, in even jumps as it grows. */
export function resizeBrush(direction) {
  const present = get("brush");
  const jump = present < 10 || (present === 10 && direction < 0) ? 1 : present < 100 ? 5 : 20;
  set({ brush: Math.max(1, Math.min(1000, present + direction * jump)) });
}

let deciding = null;

/**
 * Accepts or rejects the open photo and goes on; a photo that came from the review leads back there. Only the buttons
 * take a decision back: the key on a photo that is accepted already says once more that it is right.
 */
export async function decideOpen(state, takesBack = false) {
  const photo = get("photo");
  if (!photo || photo === deciding) return; // a second key on the same photo, before the first is stored
  const wanted = takesBack && photo.state === state ? "open" : state;
  deciding = photo;
  const stored = await decide(photo, wanted);
  deciding = null;
  if (!stored) return;
  emit("decided");
  if (wanted === "open") return;
  if (get("cameFrom") === "review") {
    set({ screen: "review", cameFrom: null });
    moveFocus(1);
  } else {
    await step(1);
  }
}

function chooseClass(event) {
  const item = get("project").classes[Number(event.key) - 1];
  if (item) set({ classId: item.id });
}

const onCursor = (run) => () => {
  if (!hasCursor()) return false;
  run();
  return true;
};

const ARROWS = { arrowleft: [-1, 0], arrowright: [1, 0], arrowup: [0, -1], arrowdown: [0, 1] };

/** Moves the keyboard's pointer by so many pixels of the screen; the arrows have their other meaning without it. */
function arrow(event, distance) {
  if (!hasCursor()) return false;
  const [dx, dy] = ARROWS[event.key.toLowerCase()] ?? [0, 0];
  moveCursor(dx * distance, dy * distance);
  return true;
}

export const listCommands = () =>
  addCommands([
    { id: "brush", group: "Tools", text: "Brush", keys: ["b"], scope: "label", run: tool("brush") },
    { id: "eraser", group: "Tools", text: "Eraser", keys: ["e"], scope: "label", run: tool("eraser") },
    { id: "click", group: "Tools", text: "Smart click", keys: ["s"], scope: "label", run: tool("click") },
    { id: "frame", group: "Tools", text: "Smart box", keys: ["g"], scope: "label", run: tool("frame") },
    { id: "wand", group: "Tools", text: "Magic wand", keys: ["w"], scope: "label", run: tool("wand") },
    { id: "polygon", group: "Tools", text: "Polygon", keys: ["p"], scope: "label", run: tool("polygon") },
    { id: "box", group: "Tools", text: "Box", keys: ["r"], scope: "label", run: tool("box") },
    { id: "not-this", group: "Tools", text: "Not this", keys: ["n"], scope: "label", run: tool("not-this") },
    { id: "region", group: "Tools", text: "Segment a region", keys: ["q"], scope: "label", run: tool("region") },
    { id: "why", group: "Tools", text: "Why here?", keys: ["i"], scope: "label", run: tool("why") },
    { id: "smaller", group: "Tools", text: "Smaller brush", keys: ["["], scope: "label", run: () => resizeBrush(-1) },
    { id: "larger", group: "Tools", text: "Larger brush", keys: ["]"], scope: "label", run: () => resizeBrush(1) },
    { id: "drop", group: "Tools", text: "Drop the last corner", keys: ["backspace"], scope: "label", run: () => offerKey("drop") },
    { id: "finish", group: "Tools", text: "Finish the polygon or the points", keys: ["enter"], scope: "label", run: () => (hasCursor() ? false : offerKey("finish")) },
    { id: "give-up", group: "Tools", text: "Give up what is begun", keys: ["escape"], scope: "label", run: () => offerKey("give-up") || (hasCursor() ? hideCursor() : false) },
    { id: "undo", group: "Steps", text: "Undo", keys: ["ctrl+z"], scope: "label", run: () => void (offerKey("drop") || undo()) },
    { id: "redo", group: "Steps", text: "Redo", keys: ["ctrl+shift+z", "ctrl+y"], scope: "label", run: redo },

    { id: "fit", group: "View", text: "Whole photo", keys: ["f"], scope: "label", run: fit },
    { id: "full-size", group: "View", text: "100 %", keys: ["z"], scope: "label", run: () => zoomTo(1) },
    { id: "zoom-in", group: "View", text: "Zoom in", keys: ["+", "="], scope: "label", run: () => zoomBy(1.25) },
    { id: "zoom-out", group: "View", text: "Zoom out", keys: ["-"], scope: "label", run: () => zoomBy(0.8) },
    { id: "hide", group: "View", text: "Hide masks while held", keys: ["h"], scope: "label", held: true, run: (held) => set({ hidden: held }) },
    { id: "outline", group: "View", text: "Outline only", keys: ["o"], scope: "label", run: () => set({ outlineOnly: !get("outlineOnly") }) },
    { id: "compare", group: "View", text: "Before and after the last run", keys: ["c"], scope: "label", run: () => emit("compare-wanted") },

    { id: "cursor", group: "Keyboard pointer", text: "Keyboard pointer on or off", keys: ["k"], scope: "label", run: toggleCursor },
    { id: "cursor-press", group: "Keyboard pointer", text: "Press; begin or end a stroke", keys: ["space", "enter"], scope: "label", run: onCursor(() => pressCursor()) },
    { id: "cursor-take", group: "Keyboard pointer", text: "Press for the opposite", keys: ["shift+space", "shift+enter"], scope: "label", run: onCursor(() => pressCursor(true)) },
    { id: "cursor-move", group: "Keyboard pointer", text: "Move it", keys: Object.keys(ARROWS), scope: "label", fixed: true, run: (event) => arrow(event, 16) },
    { id: "cursor-fine", group: "Keyboard pointer", text: "Move it a little", keys: Object.keys(ARROWS).map((key) => `shift+${key}`), scope: "label", fixed: true, run: (event) => arrow(event, 1) },
    { id: "pan", group: "View", text: "Drag pans while held (or middle button)", keys: ["space"], scope: "label", held: true, run: (held) => !hasCursor() && holdSpace(held) },

    { id: "next", group: "Photos", text: "Next photo", keys: ["d", "arrowright"], scope: "label", run: () => void step(1) },
    { id: "previous", group: "Photos", text: "Previous photo", keys: ["a", "arrowleft"], scope: "label", run: () => void step(-1) },
    { id: "next-open", group: "Photos", text: "Next open photo", keys: ["ctrl+shift+d", "shift+d"], scope: "label", run: () => void nextOpen() },
    { id: "accept", group: "Photos", text: "Accept and next", keys: ["enter"], scope: "label", run: () => void decideOpen("accepted") },
    { id: "reject", group: "Photos", text: "Nothing here and next", keys: ["x"], scope: "label", run: () => void decideOpen("rejected") },
    { id: "use", group: "Photos", text: "Use as example", keys: ["u"], scope: "label", run: () => void (get("photo") && useAsExample(get("photo"))) },

    { id: "class", group: "Classes", text: "Class by its number", keys: [..."123456789"], scope: "label", fixed: true, run: chooseClass },
    { id: "new-class", group: "Classes", text: "New class", keys: ["shift+n"], scope: "label", run: () => void newClass() },

    { id: "review-accept", group: "Review", text: "Accept and next", keys: ["enter"], scope: "review", run: () => void decideFocused("accepted") },
    { id: "review-reject", group: "Review", text: "Nothing here and next", keys: ["x"], scope: "review", run: () => void decideFocused("rejected") },
    { id: "review-edit", group: "Review", text: "Edit", keys: ["e"], scope: "review", run: () => void editFocused() },
    { id: "review-use", group: "Review", text: "Use as example", keys: ["u"], scope: "review", run: () => void useFocused() },
    { id: "review-next", group: "Review", text: "Next", keys: ["d", "arrowright"], scope: "review", run: () => moveFocus(1) },
    { id: "review-previous", group: "Review", text: "Previous", keys: ["a", "arrowleft"], scope: "review", run: () => moveFocus(-1) },
    { id: "review-down", group: "Review", text: "Row below", keys: ["arrowdown"], scope: "review", run: () => moveFocus(0, 1) },
    { id: "review-up", group: "Review", text: "Row above", keys: ["arrowup"], scope: "review", run: () => moveFocus(0, -1) },

    { id: "segment-all", group: "Everywhere", text: "Segment all", keys: ["ctrl+enter"], scope: "any", run: () => void segmentAll() },
    { id: "label", group: "Everywhere", text: "Label", keys: ["shift+1"], scope: "any", run: () => set({ screen: "label" }) },
    { id: "review", group: "Everywhere", text: "Review", keys: ["shift+2"], scope: "any", run: () => set({ screen: "review" }) },
    { id: "export", group: "Everywhere", text: "Export", keys: ["shift+3"], scope: "any", run: () => set({ screen: "export" }) },
    { id: "keys", group: "Everywhere", text: "Show all keys", keys: ["?"], scope: "any", run: () => void showKeys() },
  ]);
