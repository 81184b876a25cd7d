// Makes elements. Text is always set as text, so names with markup stay text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; `props` are attributes, `on` holds listeners, and children are elements or text. */
export function h(name, props = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (key === "class") element.className = value;
    else if (key in element && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** One of the drawings at the top of index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button with a drawing and a name that is read out and shown on hovering. */
export const iconButton = (name, label, click, props = {}) =>
  h("button", { type: "button", class: "quiet icon-only", "aria-label": label, title: label, on: { click }, ...props }, icon(name));

/** A spot in the colour of a class. */
export function swatch(color) {
  const spot = h("span", { class: "swatch", "aria-hidden": "true" });
  spot.style.background = color;
  return spot;
}

/** Calls `action` once, some time after the last call. */
export function debounced(milliseconds, action) {
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

export const percent = (value) => `${Math.round(100 * value)} %`;

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
