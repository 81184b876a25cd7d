// The network: the page says when it is still loading, when it is ready, and when there is none.

import { note } from "./dialogs.js";
import { byId } from "./dom.js";
import { get, on } from "./state.js";

const READY_SHOWN = 5000; // milliseconds

let was = null; // "loading", "ready" or "problem"

const stateOf = (model) => (model.ready ? "ready" : model.problem ? "problem" : "loading");

export const isLoading = () => was === "loading";
export const isMissing = () => was === "problem";

/** Says that what was asked for comes when the network is ready, if it is not yet. */
export function tellIfLoading() {
  if (isLoading()) note("The network is still loading. What you asked for comes as soon as it is ready.", { seconds: 6 });
}

function draw({ model }) {
  const state = stateOf(model);
  if (state === was) return;
  const waited = was === "loading";
  was = state;
  const box = byId("model-state");
  box.dataset.state = state;
  box.hidden = state === "ready" && !waited;
  box.title = model.problem ?? "It finds masks and previews; painting works without it.";
  byId("model-text").textContent = { loading: "Loading network …", ready: "Network ready", problem: "No network" }[state];
  if (state === "ready" && waited) setTimeout(() => (box.hidden = stateOf(get("project").model) === "ready"), READY_SHOWN);
}

export function startModel() {
  on("project", draw);
}
