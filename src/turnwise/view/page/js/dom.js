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

// Fills an element anew; it stays scrolled, and what has the same `data-name` keeps the focus.
export function refill(element, ...children) {
  const { scrollTop, scrollLeft } = element;
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  const name = active?.dataset.name;
  fill(element, ...children);
  Object.assign(element, { scrollTop, scrollLeft });
  const again = name && element.querySelector(`[data-name="${CSS.escape(name)}"]`);
  again?.focus({ preventScroll: true });
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

// Returns the pen of a canvas that is emptied, in the pixels of the page.
export function emptyCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
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

// Draws one of the icons of index.html.
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", "aria-hidden": "true" },
    svg("use", { href: `#icon-${name}` }),
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
