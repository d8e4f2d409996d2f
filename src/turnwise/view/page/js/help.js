// The help dialog lists the keys and explains the views.

import { button, h } from "./dom.js";
import { icon } from "./icons.js";

const KEYS = [
  [
    "Everywhere",
    [
      ["r", "all runs"],
      ["1 – 4", "learn, episodes, tokens, time"],
      ["/", "search the conversations"],
      ["t", "dark or light"],
      ["?", "this help"],
      ["Esc", "close, or leave a field"],
    ],
  ],
  [
    "Episodes",
    [
      ["j k", "next, previous episode"],
      ["Enter", "tokens of the episode"],
      ["b", "next branch, of an agent that has some"],
      ["s", "this task at other steps"],
      ["e", "export as one HTML file"],
    ],
  ],
  [
    "Tokens",
    [
      ["← →", "previous, next token"],
      ["↑ ↓", "the line above, below"],
      ["[ ]", "previous, next turn"],
      ["b", "next branch"],
      ["c", "colour by the next column"],
      ["f", "fold prompt tokens"],
      ["j k", "next, previous episode"],
    ],
  ],
  [
    "Curves and time",
    [
      ["drag", "zoom in"],
      ["double click", "zoom out"],
      ["click", "choose a step, or an episode"],
      ["← →", "previous, next step"],
    ],
  ],
];

export function showHelp() {
  const dialog = h("dialog", { class: "help", "aria-label": "Keys" });
  dialog.append(
    h(
      "div",
      { class: "help-body" },
      h(
        "header",
        null,
        h("h2", null, "Keys"),
        button(icon("close"), {
          class: "icon-button",
          "aria-label": "Close",
          onclick: () => dialog.close(),
        }),
      ),
      h(
        "div",
        { class: "help-columns" },
        KEYS.map(([title, keys]) =>
          h(
            "section",
            null,
            h("h3", null, title),
            h(
              "dl",
              null,
              keys.map(([key, what]) => [
                h(
                  "dt",
                  null,
                  key
                    .split(" ")
                    .map((one) =>
                      /^[a-z]{2,}$/.test(one) || one === "–" ? ` ${one} ` : h("kbd", null, one),
                    ),
                ),
                h("dd", null, what),
              ]),
            ),
          ),
        ),
      ),
      h(
        "p",
        { class: "faint", style: { "margin-top": "18px" } },
        "The URL contains the current view: copy it to share the view. The viewer never changes a run; your tags and notes are saved in its folder, in notes.json.",
      ),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "?") {
      event.preventDefault();
      dialog.close();
    }
  });
  addEventListener("hashchange", () => dialog.close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
}
