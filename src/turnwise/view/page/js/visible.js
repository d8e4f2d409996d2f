// This module shows a model's text as it is: characters that a terminal or a browser would obey,
// hide or reorder are shown by name.

import { h } from "./dom.js";

const NAMES = new Map(
  Object.entries({
    0: "NUL",
    7: "BEL",
    8: "BS",
    9: "TAB",
    10: "LF",
    11: "VT",
    12: "FF",
    13: "CR",
    27: "ESC",
    127: "DEL",
    0x85: "NEL",
    0xad: "SHY",
    0x61c: "ALM",
    0x180e: "MVS",
    0x200b: "ZWSP",
    0x200c: "ZWNJ",
    0x200d: "ZWJ",
    0x200e: "LRM",
    0x200f: "RLM",
    0x2028: "LSEP",
    0x2029: "PSEP",
    0x202a: "LRE",
    0x202b: "RLE",
    0x202c: "PDF",
    0x202d: "LRO",
    0x202e: "RLO",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xfeff: "BOM",
    0xfffd: "no text",
  }).map(([code, name]) => [Number(code), name]),
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
  return h("span", { class: "odd", title }, name);
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
    fragment.append(h("mark", null, visible(text.slice(at, at + sought.length))));
    last = at + sought.length;
  }
  fragment.append(visible(text.slice(last)));
  return fragment;
}
