// This module makes elements without HTML strings: text is inserted as text, so that no model can
// write markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  apply(element, props);
  add(element, children);
  return element;
}

export function svg(tag, props, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  add(element, children);
  return element;
}

function apply(element, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style")
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name in PROPERTIES) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

// These are set as properties, since the attribute would only give the initial value.
const PROPERTIES = { value: 1, checked: 1, disabled: 1, selected: 1, indeterminate: 1 };

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

export function link(href, props, ...children) {
  return h("a", { href, ...props }, ...children);
}

export function button(label, props, ...children) {
  return h("button", { type: "button", ...props }, label, ...children);
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
