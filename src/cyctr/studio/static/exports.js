// The export screen: a format, which photos, what the folder will look like, and the count before anything is written.

import { post } from "./api.js";
import { attempt, note } from "./dialogs.js";
import { byId, debounced, h, icon, plural } from "./dom.js";
import { get, on } from "./state.js";

const chosen = () => ({
  format: document.querySelector("#formats input:checked")?.value ?? null,
  accepted_only: document.querySelector("#export-which input:checked").value === "accepted",
});

let asked = 0;

const look = debounced(80, async () => {
  const wanted = chosen();
  if (!wanted.format || get("screen") !== "export") return;
  const number = ++asked;
  const answer = await post("/api/export", { ...wanted, dry: true }).catch((error) => ({ problem: error.message }));
  if (number !== asked) return;
  byId("export-tree").textContent = answer.tree ?? "";
  const counts = answer.problem ?? `${plural(answer.photos, "photo")}, ${plural(answer.masks, "mask")}`;
  byId("export-count").textContent = counts;
  const skipped = answer.skipped ?? [];
  byId("export-skipped").hidden = !skipped.length;
  byId("export-skipped").textContent = `Left out: ${skipped.join("; ")}.`;
  byId("export-run").disabled = Boolean(answer.problem) || !answer.photos;
  byId("export-run").dataset.ready = String(!answer.problem);
});

async function run() {
  const button = byId("export-run");
  button.disabled = true;
  byId("export-count").textContent = "Writing";
  const answer = await attempt(() => post("/api/export", { ...chosen(), dry: false }));
  button.disabled = false;
  if (answer) {
    byId("export-done").hidden = false;
    byId("export-done-text").textContent = `${plural(answer.photos, "photo")} and ${plural(answer.masks, "mask")} are in`;
    byId("export-folder").textContent = answer.folder;
    byId("export-done").focus();
  }
  look();
}

function drawFormats() {
  const formats = get("project")?.formats ?? [];
  const box = byId("formats");
  if (box.dataset.drawn === JSON.stringify(formats)) return;
  box.dataset.drawn = JSON.stringify(formats);
  box.replaceChildren(
    ...formats.map((format, index) => {
      const input = h("input", { type: "radio", name: "format", value: format.name, on: { change: look } });
      input.checked = index === 0;
      const exact = h("span", { class: "chip", "data-state": format.exact ? "accepted" : "open" }, format.exact ? "exact" : "outlines, not exact");
      return h("label", { class: "format" }, input, h("span", { class: "format-text" }, h("strong", {}, format.name.toUpperCase()), h("span", { class: "muted" }, format.text.replace(/^[^:]+: /, ""))), exact);
    }),
  );
}

export function startExports() {
  on("project", () => {
    drawFormats();
    look();
  });
  on("screen", (screen) => {
    if (screen !== "export") return;
    byId("export-done").hidden = true;
    look();
  });
  for (const input of document.querySelectorAll("#export-which input")) input.addEventListener("change", look);
  byId("export-run").addEventListener("click", run);
  byId("export-copy").prepend(icon("copy"));
  byId("export-copy").addEventListener("click", async () => {
    await attempt(() => navigator.clipboard.writeText(byId("export-folder").textContent));
    note("The folder's path is copied.", { seconds: 2 });
  });
}
