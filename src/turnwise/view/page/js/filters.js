// The filters narrow the list of episodes. Every choice is part of the address.

import { fill, h, html, icon, later } from "./dom.js";
import { num } from "./format.js";

const RANGES = ["reward", "turns", "tokens", "step"];
const CHOICES = ["text", "in", "kind", "part", "status", "success", "min_branches"];
const FILTERS = [
  ...CHOICES,
  ...["task", "tool", "step", "seed", "max_branches"],
  ...RANGES.flatMap((name) => [`min_${name}`, `max_${name}`]),
];
const SCOPES = [
  ["", "in anything"],
  ["task", "in the task"],
  ["answer", "in the answer"],
];
const SUCCESSES = { yes: "success", no: "no success" };
const SORTS = [
  ["-step", "newest first"],
  ["step", "oldest first"],
  ["-reward", "highest reward"],
  ["reward", "lowest reward"],
  ["-turns", "most turns"],
  ["turns", "fewest turns"],
  ["-branches", "most branches"],
  ["-tokens", "most tokens"],
  ["tokens", "fewest tokens"],
  ["seed", "by seed"],
  ["-seconds", "slowest"],
  ["status", "by status"],
  ["-success", "successes first"],
];

export function query(params) {
  const asked = Object.fromEntries(FILTERS.map((name) => [name, params.get(name)]));
  return { ...asked, sort: params.get("sort") ?? "-step" };
}

export function isFiltered(params) {
  return FILTERS.some((name) => name !== "in" && params.get(name));
}

export function statusWord(status) {
  return status.replaceAll("_", " ");
}

export function statusClass(status) {
  if (status === "done" || status === "completed") return "is-good";
  if (status.startsWith("truncated")) return "is-warn";
  return status.includes("error") || status === "failed" ? "is-bad" : "";
}

export function numFailed(statuses) {
  const errors = Object.entries(statuses ?? {}).filter(([status]) => status.endsWith("_error"));
  return errors.reduce((sum, [, count]) => sum + count, 0);
}

// Returns the options of a select: each value with its number of episodes.
function counted(counts, word = (name) => name) {
  const known = Object.entries(counts ?? {});
  return known.map(([name, count]) => [name, `${word(name)} (${num(count)})`]);
}

export class Filters {
  constructor(change) {
    this.change = change;
    this.open = false;
    const type = later(220, () => this.set("text", this.search.value.trim(), true));
    const leave = (event) => {
      if (event.key !== "Enter" && event.key !== "ArrowDown") return;
      event.preventDefault();
      this.search.blur();
    };
    const flip = () => {
      this.open = !this.open;
      this.draw(this.params, this.run);
    };
    this.search = html`<input class="field search" type="search" placeholder="Search the conversations"
      aria-label="Search the conversations" oninput=${type} onkeydown=${leave}
    />`;
    this.scope = h("span.search-scope");
    this.sort = h("span.list-sort");
    this.selects = h(".filter-row");
    this.panel = h(".filter-panel");
    this.chips = h(".filter-chips");
    this.toggle = html`<button class="button" title="More filters" aria-label="More filters"
      aria-expanded="false" onclick=${flip}>
      ${icon("filter")}
    </button>`;
    this.element = html`<div class="filters">
      <div class="search-row">
        <label class="search-box">
          ${icon("search")}${this.search}<kbd aria-hidden="true">/</kbd>
        </label>
        ${this.scope}${this.toggle}
      </div>
      ${this.selects}${this.panel}${this.chips}
    </div>`;
  }

  set(name, value, replace = false) {
    this.change({ [name]: value === "" ? null : value }, replace);
  }

  draw(params, run) {
    this.params = params;
    this.run = run;
    if (document.activeElement !== this.search) this.search.value = params.get("text") ?? "";
    const places = [this.element, this.sort];
    const active = places.some((one) => one.contains(document.activeElement))
      ? document.activeElement.name
      : null;
    const failed = numFailed(run?.statuses);
    this.toggle.setAttribute("aria-expanded", String(this.open));
    fill(this.scope, this.select("in", null, SCOPES, "search in"));
    fill(
      this.selects,
      this.select(
        "kind",
        "all kinds",
        (run?.kinds ?? []).map((kind) => [kind, kind]),
      ),
      (Object.keys(run?.parts ?? {}).length || params.get("part")) &&
        this.select("part", "all environments", counted(run?.parts), "environment"),
      this.select("status", "any status", [
        ...counted(run?.statuses, statusWord),
        ...(failed ? [["error", `any error (${num(failed)})`]] : []),
      ]),
      (Object.keys(run?.successes ?? {}).length || params.get("success")) &&
        this.select(
          "success",
          "any success",
          counted({ yes: 0, no: 0, ...run?.successes }, (name) => SUCCESSES[name]),
        ),
      (run?.branched || params.get("min_branches")) &&
        this.select(
          "min_branches",
          "any branches",
          [["2", `with branches (${num(run?.branched ?? 0)})`]],
          "branches",
        ),
    );
    fill(this.sort, this.select("sort", null, SORTS));
    if (!(this.open && active && this.panel.contains(document.activeElement))) {
      fill(this.panel, this.open && this.ranges(run));
    }
    this.panel.classList.toggle("hidden", !this.open);
    this.drawChips();
    if (active && active !== document.activeElement?.name)
      for (const place of places) place.querySelector(`[name="${active}"]`)?.focus();
  }

  select(name, none, options, label = name) {
    const value = this.params.get(name) ?? (name === "sort" ? "-step" : "");
    const known =
      options.some(([one]) => one === value) || !value ? options : [...options, [value, value]];
    return html`<select class="select" name=${name} aria-label=${label}
      onchange=${(event) => this.set(name, event.target.value)}>
      ${none !== null && html`<option value="">${none}</option>`}
      ${known.map(([one, label]) => html`<option value=${one} selected=${one === value}>${label}</option>`)}
    </select>`;
  }

  ranges(run) {
    const tools = counted(run?.tools);
    const number = (name, hint) => html`<input class="field num" type="number" step="any"
      name=${name} placeholder=${hint} aria-label=${name.replace("_", " ")}
      value=${this.params.get(name) ?? ""} onchange=${(event) => this.set(name, event.target.value)}
    />`;
    return [
      RANGES.map((name) =>
        h(".range", h("span", name), number(`min_${name}`, "from"), number(`max_${name}`, "to")),
      ),
      h(".range", h("span", "seed"), number("seed", "any")),
      tools.length
        ? h(".range.is-wide", h("span", "tool"), this.select("tool", "any tool", tools))
        : null,
    ];
  }

  drawChips() {
    const active = FILTERS.filter((name) => !CHOICES.includes(name) && this.params.get(name));
    const clear = () => this.change(Object.fromEntries(FILTERS.map((name) => [name, null])));
    const label = (name) => name.replace(/^min_(.*)/, "$1 ≥").replace(/^max_(.*)/, "$1 ≤");
    fill(
      this.chips,
      active.map(
        (name) => html`<button class="chip is-accent" title="Remove this filter"
          onclick=${() => this.set(name, null)}>
          ${label(name)} ${this.params.get(name)}${icon("close")}
        </button>`,
      ),
      isFiltered(this.params) && html`<button class="chip" onclick=${clear}>clear all</button>`,
    );
  }
}
