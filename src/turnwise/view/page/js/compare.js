// The comparison shows several runs side by side: their results, the settings that differ, changed
// code.

import { button, fill, h, link } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";
import { address } from "./route.js";
import { RESULTS } from "./run_columns.js";
import { visible } from "./visible.js";

const COMPARED = ["status", "step", "headline", "best", "reward", "success"];
const GROUPS = {
  code: "Code and data",
  setting: "Settings",
  start: "Started with",
};

export function drawComparison(place, { compared, runs, colors, showsAll, change, remove, main }) {
  const isOpen = place.querySelector("details")?.open ?? true;
  const { scrollTop = 0, scrollLeft = 0 } = place.querySelector(".compare-scroll") ?? {};
  const numDiffering = compared.rows.filter((row) => row.differs).length;
  fill(
    place,
    h("div", { class: "head-title" }, h("h1", null, `Comparing ${plural(runs.length, "run")}`)),
    h(
      "details",
      { class: "card fold compare", open: isOpen },
      h("summary", null, "Results and settings", summary(numDiffering)),
      h(
        "div",
        { class: "compare-scroll" },
        h(
          "table",
          { class: "table" },
          heads(runs, colors, remove, main),
          results(runs),
          Object.entries(GROUPS).map(([group, title]) =>
            section(
              title,
              compared.rows.filter((row) => row.group === group && (showsAll || row.differs)),
              runs.length,
            ),
          ),
        ),
      ),
      h(
        "div",
        { class: "compare-end" },
        button(showsAll ? "Only differences" : `All ${compared.rows.length} settings`, {
          class: "button",
          onclick: () => change({ settings: showsAll ? null : "all" }, { replace: true }),
        }),
        compared.without_settings.length
          ? h(
              "span",
              { class: "faint" },
              `The settings cannot be read of: ${compared.without_settings.join(", ")}`,
            )
          : null,
      ),
    ),
  );
  Object.assign(place.querySelector(".compare-scroll"), { scrollTop, scrollLeft });
}

function summary(number) {
  return h(
    "span",
    { class: "faint" },
    number ? plural(number, "difference") : "all settings are the same",
  );
}

function heads(runs, colors, remove, main) {
  return h(
    "thead",
    null,
    h(
      "tr",
      null,
      h("th", null, ""),
      runs.map((run) =>
        h(
          "th",
          null,
          h(
            "span",
            { class: "compare-run" },
            h("i", { style: { background: colors.get(run.key) } }),
            link(address({ run: run.key, view: "learn" }), { title: run.path }, run.key),
            run.key === main
              ? null
              : button(icon("close"), {
                  class: "icon-button",
                  title: `Compare without ${run.key}`,
                  "aria-label": `Compare without ${run.key}`,
                  onclick: () => remove(run.key),
                }),
          ),
        ),
      ),
    ),
  );
}

function results(runs) {
  return h(
    "tbody",
    null,
    RESULTS.filter((column) => COMPARED.includes(column.name)).map((column) =>
      h(
        "tr",
        { data: { result: column.name } },
        h("th", { scope: "row", title: column.help ?? "" }, column.title),
        runs.map((run) =>
          h(
            "td",
            { class: "num" },
            visible(String(column.text(run))),
            column.detail?.(run)
              ? h("span", { class: "result-detail" }, visible(column.detail(run)))
              : null,
          ),
        ),
      ),
    ),
  );
}

// Lets long names break after a dot or an underscore, and nowhere else.
function breakable(name) {
  return name.split(/(?<=[._])/).map((part) => [visible(part), h("wbr")]);
}

function section(title, rows, numRuns) {
  if (!rows.length) return null;
  return h(
    "tbody",
    null,
    h(
      "tr",
      { class: "compare-group" },
      h("th", { scope: "rowgroup", colspan: numRuns + 1 }, title),
    ),
    rows.map((row) =>
      h(
        "tr",
        { class: row.differs ? "" : "is-same", data: { setting: row.name, group: row.group } },
        h(
          "th",
          { scope: "row" },
          breakable(row.name),
          row.note ? h("span", { class: "chip is-warn" }, row.note) : null,
        ),
        row.values.map((value) =>
          h(
            "td",
            { class: "mono" },
            value === null ? h("span", { class: "faint" }, "–") : visible(value),
          ),
        ),
      ),
    ),
  );
}
