// Segmenting the whole folder: start, progress, stop, go on, and what changed.

import { getJson, post, query } from "./api.js";
import { ask, attempt, note } from "./dialogs.js";
import { byId, plural } from "./dom.js";
import { reload, showChanges } from "./grid.js";
import { tellIfLoading } from "./model.js";
import { emit, on } from "./state.js";

let job = null;

const running = () => job?.state === "running";

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s left`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min left`;
  return `${(seconds / 3600).toFixed(1)} h left`;
}

/** Photos a second, or a minute where that is slow. */
function speed(rate) {
  const [count, unit] = rate < 0.5 ? [60 * rate, "min"] : [rate, "s"];
  return `${count < 10 ? count.toFixed(1) : Math.round(count)}/${unit}`;
}

function draw() {
  const box = byId("job");
  const started = job && job.state !== "finished" && job.total > 0;
  box.hidden = !started;
  byId("segment-all").hidden = running();
  if (!started) return;
  box.dataset.state = job.state;
  byId("job-bar").max = job.total;
  byId("job-bar").value = job.done;
  const rate = job.rate ? speed(job.rate) : "";
  const parts = [`${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}`];
  if (running()) parts.push(rate, duration(job.seconds_left));
  else parts.push(job.state);
  byId("job-text").textContent = parts.filter(Boolean).join(" · ");
  byId("job-stop").hidden = !running();
  byId("job-go-on").hidden = running();
}

/** Takes the event `job`. */
export function jobNews(news) {
  const before = job;
  job = news;
  draw();
  if (!job || before?.state !== "running" || running()) return;
  emit("job-ended", job);
  if (job.state === "finished") {
    byId("job-live").textContent = `All ${job.total} photos are segmented.`;
    const text = job.changed ? `${plural(job.changed, "mask differs", "masks differ")} from the run before.` : `${plural(job.done, "photo")} segmented.`;
    note(text, { action: { text: job.changed ? "Look at them" : "Review", run: job.changed ? showChanges : review }, seconds: 10 });
  } else if (job.state === "failed") {
    note(job.problem ?? "The run failed.", { problem: true, action: { text: "Go on", run: () => start("all not accepted") } });
  }
}

async function review() {
  emit("screen-wanted", "review");
  await reload();
}

async function start(only) {
  const news = await attempt(() => post("/api/job", { what: "segment", only }));
  if (!news) return;
  job = { ...news, state: "running" };
  byId("job-live").textContent = "Segmenting.";
  tellIfLoading();
  jobNews(news);
}

/** Asks which photos, and begins. */
export async function segmentAll() {
  if (running()) return;
  const project = await attempt(() => getJson("/api/project"));
  if (!project) return;
  if (!project.counts.examples) {
    note("Label at least one photo first: the network needs an example.", { seconds: 5 });
    return;
  }
  const count = async (state) => (await getJson(`/api/photos?${query({ state, limit: 1 })}`)).total;
  const open = await attempt(() => count("open"));
  if (open === null) return;
  const { photos, accepted } = project.counts;
  const rest = Math.max(0, photos - accepted);
  const only = await ask({
    title: "Segment all photos",
    text: `With ${plural(project.counts.examples, "example")}. Accepted masks stay as they are. You may close this page meanwhile.`,
    choices: [
      { text: "Cancel", value: null },
      { text: `Only those nobody looked at (${open})`, value: "open" },
      { text: `All that are not accepted (${rest})`, value: "all not accepted", kind: "primary" },
    ],
  });
  if (only) await start(only);
}

export const stop = () => attempt(async () => jobNews(await post("/api/job/stop")));

export function startJobs() {
  byId("segment-all").addEventListener("click", segmentAll);
  byId("job-stop").addEventListener("click", stop);
  byId("job-go-on").addEventListener("click", () => start(job?.only ?? "all not accepted"));
  on("examples-changed", (photo) => {
    // after a first run, one more example is a reason to run again
    if (!job || running() || !photo.example || photo.id === job.offered) return;
    job.offered = photo.id;
    note("Segment the photos that are not accepted again?", { action: { text: "Segment again", run: () => start("all not accepted") } });
  });
}
