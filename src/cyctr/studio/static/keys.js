// Keys: which key does what on which screen, the overlay that shows them, and changing them.

import { ask, note } from "./dialogs.js";
import { h } from "./dom.js";
import { get, read, write } from "./state.js";

const commands = [];
const remapped = read("keys") ?? {}; // command id -> its keys, where the person changed them
let singles = read("single-keys") ?? true;

/**
 * Adds commands: { id, group, text, keys, scope, run, held }. `scope` is a screen or "any"; `held` commands get
 * true when the key goes down and false when it comes up; `fixed` ones keep their keys. A `run` that returns false lets the key pass.
 */
export const addCommands = (list) => commands.push(...list);

export const keysOf = (command) => remapped[command.id] ?? command.keys;

/** The name of what was pressed: "ctrl+shift+z", "b", "[", "shift+1", "arrowleft". */
function combination(event) {
  let key = event.key.toLowerCase();
  if (key === " ") key = "space";
  if (/^Digit\d$/.test(event.code)) key = event.code.slice(5);
  else if (key.length === 1 && key > "~" && /^Key[A-Z]$/.test(event.code)) key = event.code.slice(3).toLowerCase();
  const named = key.length > 1 || /[a-z0-9]/.test(key); // "?" needs Shift on some keyboards and none on others
  const held = [];
  if (event.ctrlKey || event.metaKey) held.push("ctrl");
  if (event.altKey) held.push("alt");
  if (event.shiftKey && named) held.push("shift");
  return [...held, key].join("+");
}

const NAMES = { arrowleft: "←", arrowright: "→", arrowup: "↑", arrowdown: "↓", enter: "Enter", escape: "Esc", space: "Space", backspace: "Backspace", ctrl: "Ctrl", shift: "Shift", alt: "Alt" };

/** "Ctrl+Shift+Z" as people write it. */
export const spell = (keys) => keys.split("+").map((part) => NAMES[part] ?? part.toUpperCase()).join("+");

const inScope = (command) => command.scope === "any" || command.scope === get("screen");

const ACTIVATES = new Set(["enter", "space"]);
const MOVES = new Set(["arrowleft", "arrowright", "arrowup", "arrowdown", "home", "end", "space"]);

/** Whether the element under the focus needs the key itself. */
function belongsTo(target, keys) {
  if (document.querySelector("dialog[open]")) return true;
  if (!(target instanceof Element)) return false;
  if (target.matches("textarea, select, input:not([type=range], [type=checkbox], [type=radio], [type=color])")) return true;
  if (target.matches("input")) return MOVES.has(keys) || ACTIVATES.has(keys);
  return target.matches("button, a, summary") && ACTIVATES.has(keys);
}

const isCharacter = (keys) => !keys.startsWith("ctrl") && keys.split("+").at(-1).length === 1;

const find = (keys) => commands.filter((command) => inScope(command) && keysOf(command).includes(keys));

function pressed(event) {
  const keys = combination(event);
  if (belongsTo(event.target, keys)) {
    if (keys === "escape" && event.target.matches?.("input, select")) event.target.blur();
    return;
  }
  if (!singles && isCharacter(keys)) return;
  for (const command of find(keys)) {
    if (command.held) {
      if (!event.repeat) command.run(true);
    } else if (command.run(event) === false) {
      continue;
    }
    event.preventDefault();
    return;
  }
}

function released(event) {
  const key = combination(event).split("+").at(-1);
  for (const command of commands) if (command.held && keysOf(command).includes(key)) command.run(false);
}

const releaseAll = () => commands.filter((command) => command.held).forEach((command) => command.run(false));

// ---- the overlay --------------------------------------------------------------------------------------------------

const sharesScope = (a, b) => a.scope === b.scope || a.scope === "any" || b.scope === "any";

/** Waits for a key for a command; a key that has another meaning is given only after a warning. */
function change(command, button) {
  button.textContent = "Press a key";
  button.addEventListener(
    "keydown",
    async (event) => {
      event.preventDefault();
      event.stopPropagation();
      const keys = combination(event);
      if (["shift", "control", "alt", "meta"].includes(event.key.toLowerCase())) {
        change(command, button);
        return;
      }
      const other = commands.find((each) => each !== command && sharesScope(each, command) && keysOf(each).includes(keys));
      if (keys !== "escape" && other) {
        const choice = await ask({
          title: `${spell(keys)} has a meaning already`,
          text: `It does: ${other.text}. If you take it, that has no key until you give it one.`,
          choices: [
            { text: "Leave it", value: null, kind: "primary" },
            { text: "Take it", value: "take" },
          ],
        });
        if (choice !== "take") return redraw();
        remapped[other.id] = keysOf(other).filter((each) => each !== keys);
      }
      if (keys !== "escape") {
        remapped[command.id] = [keys];
        write("keys", remapped);
      }
      return redraw();
    },
    { once: true },
  );
}

let redraw = () => {};

function table() {
  const groups = Map.groupBy ? Map.groupBy(commands, (command) => command.group) : group(commands);
  const box = h("div", { class: "keys" });
  for (const [name, list] of groups) {
    const rows = list.map((command) => {
      const keys = keysOf(command);
      const text = (keys.length > 4 ? [keys[0], keys.at(-1)].map(spell).join(" – ") : keys.map(spell).join("  ")) || "none";
      if (command.fixed) return h("li", {}, h("span", {}, command.text), h("kbd", {}, text));
      const label = `Change the key of: ${command.text}. Now ${text}`;
      const button = h("button", { type: "button", class: "key", title: "Change this key", "aria-label": label, on: { click: () => change(command, button) } }, text);
      return h("li", {}, h("span", {}, command.text), button);
    });
    box.append(h("section", {}, h("h3", {}, name), h("ul", {}, ...rows)));
  }
  return box;
}

function group(list) {
  const groups = new Map();
  for (const command of list) groups.set(command.group, [...(groups.get(command.group) ?? []), command]);
  return groups;
}

/** Shows all keys; a click on one changes it. */
export async function showKeys() {
  const content = h("div", {});
  const check = h("input", { type: "checkbox", on: { change: () => {
    singles = check.checked;
    write("single-keys", singles);
  } } });
  check.checked = singles;
  redraw = () => content.replaceChildren(table());
  redraw();
  const choice = await ask({
    title: "Keys",
    text: "Click on a key to change it. The right button or Ctrl does the opposite of a tool.",
    content: [content, h("label", { class: "inline" }, check, "Single keys such as B work (switch off for speech input)")],
    choices: [
      { text: "Keys as they were", value: "reset" },
      { text: "Close", value: null, kind: "primary" },
    ],
  });
  redraw = () => {};
  if (choice !== "reset") return;
  for (const id of Object.keys(remapped)) delete remapped[id];
  write("keys", remapped);
  note("All keys are as they were.", { seconds: 3 });
}

/** Puts the key of a command into the tooltip of its button: [data-command]. */
export function labelButtons() {
  for (const button of document.querySelectorAll("[data-command]")) {
    const command = commands.find((each) => each.id === button.dataset.command);
    const keys = command ? keysOf(command)[0] : null;
    const name = button.dataset.name ?? command?.text ?? button.title;
    button.title = keys ? `${name}  ${spell(keys)}` : name;
    if (button.classList.contains("icon-only")) button.setAttribute("aria-label", name);
    if (keys) button.setAttribute("aria-keyshortcuts", spell(keys).replaceAll("Ctrl", "Control"));
  }
}

export function startKeys() {
  document.addEventListener("keydown", pressed);
  document.addEventListener("keyup", released);
  window.addEventListener("blur", releaseAll);
  labelButtons();
}
