// What narrows the list of episodes. Every choice is a part of the address.

import { button, fill, h, later } from "./dom.js";
import { num } from "./format.js";
import { icon } from "./icons.js";

export const FILTERS = [
  "kind",
  "status",
  "tool",
  "min_reward",
  "max_reward",
  "min_turns",
  "max_turns",
  "min_tokens",
  "max_tokens",
  "step",
  "min_step",
  "max_step",
  "seed",
  "text",
];
const RANGES = [
  ["reward", "any"],
  ["turns", "1"],
  ["tokens", "1"],
  ["step", "1"],
];
const SORTS = [
  ["-step", "newest first"],
  ["step", "oldest first"],
  ["-reward", "highest reward"],
  ["reward", "lowest reward"],
  ["-turns", "most turns"],
  ["turns", "fewest turns"],
  ["-tokens", "most tokens"],
  ["tokens", "fewest tokens"],
  ["seed", "by seed"],
  ["-seconds", "slowest"],
];

export function query(params) {
  const asked = Object.fromEntries(FILTERS.map((name) => [name, params.get(name)]));
  return { ...asked, sort: params.get("sort") ?? "-step" };
}

export function statusWord(status) {
  return status.replaceAll("_", " ");
}

export function statusClass(status) {
  if (status === "done" || status === "completed") return "is-good";
  if (status.startsWith("truncated")) return "is-warn";
  return status.includes("error") || status === "failed" ? "is-bad" : "";
}

export class Filters {
  constructor(change) {
    this.change = change;
    this.open = false;
    const type = later(220, () => this.set("text", this.search.value.trim(), true));
    this.search = h("input", {
      class: "field search",
      type: "search",
      placeholder: "Search in what was said",
      "aria-label": "Search in what was said",
      oninput: type,
      onkeydown: (event) => this.searchKey(event),
    });
    this.selects = h("div", { class: "filter-row" });
    this.panel = h("div", { class: "filter-panel" });
    this.chips = h("div", { class: "filter-chips" });
    this.toggle = button(icon("filter"), {
      class: "button",
      title: "More filters",
      "aria-label": "More filters",
      "aria-expanded": "false",
      onclick: () => this.flip(),
    });
    this.element = h(
      "div",
      { class: "filters" },
      h(
        "div",
        { class: "search-row" },
        h(
          "label",
          { class: "search-box" },
          icon("search"),
          this.search,
          h("kbd", { "aria-hidden": "true" }, "/"),
        ),
        this.toggle,
      ),
      this.selects,
      this.panel,
      this.chips,
    );
  }

  searchKey(event) {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      this.search.blur();
    }
  }

  flip() {
    this.open = !this.open;
    this.draw(this.params, this.run);
  }

  set(name, value, replace = false) {
    this.change({ [name]: value === "" ? null : value }, replace);
  }

  draw(params, run) {
    this.params = params;
    this.run = run;
    if (document.activeElement !== this.search) this.search.value = params.get("text") ?? "";
    const active = this.element.contains(document.activeElement)
      ? document.activeElement.name
      : null;
    this.toggle.setAttribute("aria-expanded", String(this.open));
    fill(
      this.selects,
      this.select(
        "kind",
        "all kinds",
        (run?.kinds ?? []).map((kind) => [kind, kind]),
      ),
      this.select(
        "status",
        "any status",
        Object.entries(run?.statuses ?? {}).map(([status, count]) => [
          status,
          `${statusWord(status)} (${num(count)})`,
        ]),
      ),
      this.select("sort", null, SORTS),
    );
    if (!(this.open && active && this.panel.contains(document.activeElement))) {
      fill(this.panel, this.open ? this.ranges(run) : null);
    }
    this.panel.classList.toggle("hidden", !this.open);
    this.drawChips();
    if (active && active !== document.activeElement?.name)
      this.element.querySelector(`[name="${active}"]`)?.focus();
  }

  select(name, none, options) {
    const value = this.params.get(name) ?? (name === "sort" ? "-step" : "");
    const known =
      options.some(([one]) => one === value) || !value ? options : [...options, [value, value]];
    return h(
      "select",
      {
        class: "select",
        name,
        "aria-label": name,
        onchange: (event) => this.set(name, event.target.value),
      },
      none === null ? null : h("option", { value: "" }, none),
      known.map(([one, label]) => h("option", { value: one, selected: one === value }, label)),
    );
  }

  ranges(run) {
    const tools = Object.entries(run?.tools ?? {}).map(([tool, count]) => [
      tool,
      `${tool} (${num(count)})`,
    ]);
    const number = (name, placeholder) =>
      h("input", {
        class: "field num",
        type: "number",
        step: "any",
        name,
        placeholder,
        "aria-label": name.replace("_", " "),
        value: this.params.get(name) ?? "",
        onchange: (event) => this.set(name, event.target.value),
      });
    return [
      RANGES.map(([name]) =>
        h(
          "div",
          { class: "range" },
          h("span", null, name),
          number(`min_${name}`, "from"),
          number(`max_${name}`, "to"),
        ),
      ),
      h("div", { class: "range" }, h("span", null, "seed"), number("seed", "any")),
      tools.length
        ? h(
            "div",
            { class: "range is-wide" },
            h("span", null, "tool"),
            this.select("tool", "any tool", tools),
          )
        : null,
    ];
  }

  drawChips() {
    const active = FILTERS.filter(
      (name) => !["text", "kind", "status"].includes(name) && this.params.get(name),
    );
    const label = (name) => name.replace(/^min_(.*)/, "$1 ≥").replace(/^max_(.*)/, "$1 ≤");
    const any = FILTERS.some((name) => this.params.get(name));
    fill(
      this.chips,
      active.map((name) =>
        button(
          `${label(name)} ${this.params.get(name)}`,
          {
            class: "chip is-accent",
            title: "Remove this filter",
            onclick: () => this.set(name, null),
          },
          icon("close"),
        ),
      ),
      any
        ? button("clear all", {
            class: "chip",
            onclick: () => this.change(Object.fromEntries(FILTERS.map((name) => [name, null]))),
          })
        : null,
    );
  }
}
