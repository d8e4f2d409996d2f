// This module formats numbers for people.

import { h } from "./dom.js";

export function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en").replace("-", "−");
  if (size >= 1e6 || size < 1e-4)
    return value.toExponential(2).replace("e+", "e").replaceAll("-", "−");
  if (size >= 1000) return Math.round(value).toLocaleString("en").replace("-", "−");
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return value > 0 ? `+${num(value, digits)}` : num(value, digits);
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes}:${String(Math.floor(value % 60)).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export function ago(when) {
  const date = typeof when === "number" ? new Date(when * 1000) : new Date(when);
  const passed = (Date.now() - date.getTime()) / 1000;
  if (!Number.isFinite(passed)) return "";
  if (passed < 10) return "just now";
  if (passed < 90) return `${Math.round(passed)} s ago`;
  if (passed < 5400) return `${Math.round(passed / 60)} min ago`;
  if (passed < 129600) return `${Math.round(passed / 3600)} h ago`;
  return date.toISOString().slice(0, 10);
}

export function plural(number, one, many = `${one}s`) {
  return `${num(number)} ${number === 1 ? one : many}`;
}

// Returns a value of a tool, an environment or a setting as text: structures as JSON.
export function written(value, indent = 0) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, indent);
}

export function words(name) {
  return name.replaceAll("_", " ").replaceAll("/", " / ");
}

export function seedText(seed) {
  const text = String(seed);
  return text.length > 9 ? `${text.slice(0, 4)}…${text.slice(-4)}` : text;
}

// ---- This module shows a model's text as it is: characters that a terminal or a browser would obey,
// hide or reorder are shown by name.

const NAMES = new Map(
  (
    "0 NUL, 7 BEL, 8 BS, 9 TAB, a LF, b VT, c FF, d CR, 1b ESC, 7f DEL, 85 NEL, ad SHY, 61c ALM, " +
    "180e MVS, 200b ZWSP, 200c ZWNJ, 200d ZWJ, 200e LRM, 200f RLM, 2028 LSEP, 2029 PSEP, 202a LRE, " +
    "202b RLE, 202c PDF, 202d LRO, 202e RLO, 2060 WJ, 2066 LRI, 2067 RLI, 2068 FSI, 2069 PDI, " +
    "feff BOM, fffd no text"
  )
    .split(", ")
    .map((one) => [Number.parseInt(one, 16), one.slice(one.indexOf(" ") + 1)]),
);

// Matches an escape sequence of a terminal as one piece, or a character without a visible shape.
const ESCAPES =
  "\\u001b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\\u0007\\u001b]{0,200}(?:\\u0007|\\u001b\\\\)|[@-Z\\\\-_])";
const HIDDEN =
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f" +
  "\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}\\ud800-\\udfff]";
const ODD = new RegExp(`${ESCAPES}|${HIDDEN}`, "gu");

export function hasHidden(text) {
  return text.search(ODD) >= 0;
}

// Returns text for reading: line ends and tabs take effect, other invisible characters are boxed.
export function visible(text, hit = null) {
  const fragment = document.createDocumentFragment();
  if (hit === null) append(fragment, text);
  else {
    append(fragment, text.slice(0, hit.start));
    const mark = h("mark");
    append(mark, text.slice(hit.start, hit.end));
    fragment.append(mark);
    append(fragment, text.slice(hit.end));
  }
  return fragment;
}

function append(parent, text) {
  let last = 0;
  for (const match of text.matchAll(ODD)) {
    if (match[0] === "\r" && text[match.index + 1] === "\n") continue;
    if (match.index > last) parent.append(text.slice(last, match.index));
    parent.append(box(match[0]));
    last = match.index + match[0].length;
  }
  if (last < text.length) parent.append(text.slice(last));
}

function box(odd) {
  const code = odd.codePointAt(0);
  const point = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  const isEscape = odd.length > 1 && code === 27;
  const name = isEscape
    ? `ESC${odd.slice(1).replaceAll("\u001b", "ESC").replaceAll("\u0007", "BEL")}`
    : (NAMES.get(code) ?? point);
  const title = isEscape ? "a terminal's escape sequence" : `${point}: does not show by itself`;
  return h("span.odd", { title }, name);
}

// Marks every occurrence of a word, ignoring case.
export function marked(text, word) {
  if (!word) return visible(text);
  const fragment = document.createDocumentFragment();
  const low = text.toLowerCase();
  const sought = word.toLowerCase();
  // Where lower case changes the length of the text, offsets would be wrong, so nothing is marked.
  if (low.length !== text.length) return visible(text);
  let last = 0;
  for (let at = low.indexOf(sought); at >= 0; at = low.indexOf(sought, last)) {
    fragment.append(visible(text.slice(last, at)));
    fragment.append(h("mark", visible(text.slice(at, at + sought.length))));
    last = at + sought.length;
  }
  fragment.append(visible(text.slice(last)));
  return fragment;
}
