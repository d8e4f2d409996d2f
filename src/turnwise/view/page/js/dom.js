// Makes elements. Values are inserted as text, never as HTML, so that no model can write markup.

import htm from "../vendor/htm.js";

const SVG = "http://www.w3.org/2000/svg";

// Makes an element: h("span.chip.is-warn", { title: "..." }, "text", otherElements). A kind without
// a tag is a div; properties may be left out, and so may null, undefined and false as children.
export function h(kind, ...rest) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  if (tag === "button") element.type = "button";
  const props = isPlain(rest[0]) ? rest.shift() : {};
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = `${element.className} ${value}`.trim();
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style")
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name in PROPERTIES) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, rest);
  return element;
}

export function svg(tag, ...rest) {
  const element = document.createElementNS(SVG, tag);
  const props = isPlain(rest[0]) ? rest.shift() : {};
  for (const [name, value] of Object.entries(props)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  add(element, rest);
  return element;
}

// Makes elements of a template: html`<span class="chip" onclick=${work}>${text}</span>`. Its values
// become text, children or properties of `h`; only what is written in our own source is markup.
export const html = htm.bind(function make(...element) {
  this[0] = 3; // a part without values is made anew each time, too
  return h(...element);
});

const isPlain = (value) => value?.constructor === Object;

// These are set as properties, since the attribute would only give the initial value.
const PROPERTIES = { value: 1, checked: 1, disabled: 1, selected: 1, indeterminate: 1 };

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child);
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Draws buttons of which one is chosen; `options` are [title, choose] or [title, choose, more].
export function segments(label, options, chosen) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(
      ([title, choose, more], place) => html`<button aria-pressed=${String(place === chosen)}
        onclick=${choose} ...${more}>
        ${title}
      </button>`,
    )}
  </div>`;
}

// Draws a link to the next or previous of something; it leads nowhere without an address.
export function arrow(href, name, label) {
  return html`<a class="button is-plain" href=${href ?? "#"} title=${label} aria-label=${label}
    aria-disabled=${href ? null : "true"}>
    ${icon(name)}
  </a>`;
}

// Returns a function that does the work once, after its last call for so many milliseconds.
export function later(milliseconds, work) {
  let timer = 0;
  const call = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

// Returns a function that does the work at most once per frame.
export function perFrame(work) {
  let asked = 0;
  const call = () => {
    if (!asked)
      asked = requestAnimationFrame(() => {
        asked = 0;
        work();
      });
  };
  call.cancel = () => {
    cancelAnimationFrame(asked);
    asked = 0;
  };
  return call;
}

export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// ---- This module draws the states without content: loading, empty, failed.

export function loading(rows = 6, height = 44) {
  return html`<div class="loading" aria-busy="true" aria-label="loading">
    ${Array.from(
      { length: rows },
      () => html`<div class="skeleton" style=${{ height: `${height}px`, margin: "10px 14px" }} />`,
    )}
  </div>`;
}

export function empty(title, text, ...more) {
  return h(".state", h("strong", title), h("p", text), more);
}

export function failed(error, again = null) {
  return html`<div class="state is-error" role="alert">
    <strong>Something went wrong</strong><p>${error.message ?? String(error)}</p>
    ${again && html`<button class="button" onclick=${again}>Try again</button>`}
  </div>`;
}

// ---- Icons are line drawings of 24 by 24, in the colour of the text around them.

const PATHS = {
  sun: "M12 4V2M12 22v-2M4 12H2M22 12h-2M6.3 6.3 4.9 4.9M19.1 19.1l-1.4-1.4M6.3 17.7l-1.4 1.4M19.1 4.9l-1.4 1.4M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Z",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM20 20l-4.9-4.9",
  left: "m14.5 6-6 6 6 6",
  right: "m9.5 6 6 6-6 6",
  up: "m6 14.5 6-6 6 6",
  down: "m6 9.5 6 6 6-6",
  save: "M12 4v11M7.5 11 12 15.5 16.5 11M5 20h14",
  link: "M10 14a4 4 0 0 0 5.7 0l3-3A4 4 0 0 0 13 5.3l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.7l1-1",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  tokens: "M4 7h5M11 7h9M4 12h9M15 12h5M4 17h3M9 17h11",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 7.5V12l3 2",
  close: "M6 6l12 12M18 6 6 18",
  check: "m5 12.5 4.5 4.5L19 7.5",
  alert:
    "M12 8v5M12 16.5v.1M10.4 4.3 2.9 17.5A1.9 1.9 0 0 0 4.5 20h15a1.9 1.9 0 0 0 1.6-2.5L13.6 4.3a1.9 1.9 0 0 0-3.2 0Z",
  filter: "M4 6h16M7 12h10M10 18h4",
  edit: "M4 20h4L19 9l-4-4L4 16v4ZM13 7l4 4",
};

export function icon(name) {
  return svg(
    "svg",
    {
      viewBox: "0 0 24 24",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    },
    svg("path", { d: PATHS[name] }),
  );
}

// ---- Draws a short piece of a curve for a legend.

export function lineMark(color, dash, width = 22) {
  const middle = width / 2;
  return svg(
    "svg",
    { viewBox: `0 0 ${width} 8`, width, height: 8, "aria-hidden": "true" },
    svg("path", {
      d: `M1 4h${width - 2}`,
      stroke: color,
      "stroke-width": dash ? 1.75 : 2.5,
      "stroke-dasharray": dash ? dash.join(" ") : null,
    }),
    dash && svg("circle", { cx: middle, cy: 4, r: 2.4, fill: color }),
  );
}
