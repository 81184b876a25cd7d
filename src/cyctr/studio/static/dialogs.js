// Questions, short notes, and problems: each says in one line what is the matter and what can be done.

import { byId, h, iconButton } from "./dom.js";
import { on } from "./state.js";
import { keepMine, takeTheirs } from "./saver.js";

/**
 * Asks a question; resolves to the value of the chosen button, or null when it is dismissed.
 * `choices` are { text, value, kind, act } with kind "primary" or "danger"; `content` are further elements. The question
 * stays until `act` is done; what goes wrong is said in it.
 */
export function ask({ title, text = "", content = [], choices }) {
  return new Promise((resolve) => {
    const buttons = choices.map(({ text: label, value, kind = "", act = null }) => {
      const click = async () => {
        button.disabled = true;
        try {
          if (act) await act();
          close(value);
        } catch (error) {
          problem.hidden = false;
          problem.textContent = error.message;
        }
        button.disabled = false;
      };
      const button = h("button", { type: "button", class: kind, value: String(value), on: { click } }, label);
      return button;
    });
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const dialog = h(
      "dialog",
      { class: "question", "aria-labelledby": "question-title" },
      h("h2", { id: "question-title" }, title),
      text ? h("p", {}, text) : null,
      ...content,
      problem,
      h("div", { class: "choices" }, ...buttons),
    );
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close(null);
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("button.primary") ?? buttons[0]).focus();
  });
}

/** A question with one field. It stays until `act` has done what its text asks for, so that the next key is about that. */
export async function askText({ title, text, label, value = "", button, act }) {
  const input = h("input", { type: "text", maxlength: "100", autocomplete: "off", autofocus: true });
  input.value = value;
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      input.closest("dialog").querySelector("button.primary").click();
    }
  });
  await ask({
    title,
    text,
    content: [h("label", { class: "field" }, h("span", {}, label), input)],
    choices: [
      { text: "Cancel", value: null },
      { text: button, value: null, kind: "primary", act: () => act(input.value.trim()) },
    ],
  });
}

/** A note at the foot of the page; `action` is { text, run }. Problems stay until they are closed. */
export function note(text, { action = null, problem = false, seconds = 8 } = {}) {
  const box = byId("notes");
  const same = [...box.children].find((child) => child.dataset.text === text);
  same?.remove();
  const item = h("div", { class: `note${problem ? " problem" : ""}`, role: problem ? "alert" : null, "data-text": text }, h("span", {}, text));
  if (action) {
    const run = () => {
      item.remove();
      action.run();
    };
    item.append(h("button", { type: "button", on: { click: run } }, action.text));
  }
  item.append(iconButton("close", "Dismiss", () => item.remove()));
  box.append(item);
  while (box.children.length > 3) box.firstElementChild.remove();
  if (!problem) setTimeout(() => item.remove(), 1000 * (action ? 3 * seconds : seconds));
  return item;
}

/** Shows an error of a request; a request that was replaced by a newer one is no error. */
export function tell(error) {
  if (error?.name === "AbortError") return;
  note(error?.message ?? String(error), { problem: true });
}

/** Runs an action and shows what goes wrong. */
export const attempt = async (action) => {
  try {
    return await action();
  } catch (error) {
    tell(error);
    return null;
  }
};

on("trouble", tell);

on("conflict", async (layer) => {
  const choice = await ask({
    title: `${layer.doc.photo.name} was changed elsewhere`,
    text: "Another window saved a newer mask of this photo. Your strokes are still on the screen and not lost.",
    choices: [
      { text: "Decide later", value: null },
      { text: "Take the other mask", value: "theirs" },
      { text: "Keep mine as the newest", value: "mine", kind: "primary" },
    ],
  });
  if (choice === "mine") keepMine(layer);
  if (choice === "theirs") await attempt(() => takeTheirs(layer));
});
