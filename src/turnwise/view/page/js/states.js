// This module draws the states without content: loading, empty, failed.

import { button, h } from "./dom.js";

export function loading(rows = 6, height = 44) {
  return h(
    "div",
    { class: "loading", "aria-busy": "true", "aria-label": "loading" },
    Array.from({ length: rows }, () =>
      h("div", { class: "skeleton", style: { height: `${height}px`, margin: "10px 14px" } }),
    ),
  );
}

export function empty(title, text, ...more) {
  return h("div", { class: "state" }, h("strong", null, title), h("p", null, text), more);
}

export function failed(error, again = null) {
  return h(
    "div",
    { class: "state is-error", role: "alert" },
    h("strong", null, "Something went wrong"),
    h("p", null, error.message ?? String(error)),
    again && button("Try again", { class: "button", onclick: again }),
  );
}
