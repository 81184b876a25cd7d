// Why was this pixel marked, or not: what the network looked at, side by side.

import { post } from "./api.js";
import { ask, attempt } from "./dialogs.js";
import { h } from "./dom.js";
import { tellIfLoading } from "./model.js";
import { classOf, emit, get, on } from "./state.js";

export function startExplain() {
  on("explain", async ({ x, y }) => {
    const [photo, item] = [get("photo"), classOf(get("classId"))];
    if (!item) {
      emit("class-needed");
      return;
    }
    emit("thinking", true);
    tellIfLoading();
    const answer = await attempt(() => post(`/api/photos/${photo.id}/explain`, { class: item.id, x, y }));
    emit("thinking", false);
    if (!answer) return;
    const figures = answer.images.map(({ name, text, png }) => {
      const image = h("img", { alt: `${name}: ${text}`, src: `data:image/png;base64,${png}` });
      return h("figure", {}, image, h("figcaption", {}, h("strong", {}, name), " ", text));
    });
    await ask({
      title: `Why ${item.name} here?`,
      text: `${photo.name}, pixel ${x}, ${y}`,
      content: [h("div", { class: "figures" }, ...figures)],
      choices: [{ text: "Close", value: null, kind: "primary" }],
    });
  });
}
