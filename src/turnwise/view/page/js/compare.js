// The comparison shows several runs side by side: their results, the settings that differ, changed
// code.

import { fill, h, html, icon } from "./dom.js";
import { plural, visible } from "./format.js";
import { address } from "./route.js";
import { RESULTS } from "./runs.js";

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
    h(".head-title", h("h1", `Comparing ${plural(runs.length, "run")}`)),
    html`<details class="card fold compare" open=${isOpen}>
      <summary>Results and settings${summary(numDiffering)}</summary>
      <div class="compare-scroll">
        <table class="table">
          ${heads(runs, colors, remove, main)}${results(runs)}
          ${Object.entries(GROUPS).map(([group, title]) =>
            section(
              title,
              compared.rows.filter((row) => row.group === group && (showsAll || row.differs)),
              runs.length,
            ),
          )}
        </table>
      </div>
      <div class="compare-end">
        <button class="button"
          onclick=${() => change({ settings: showsAll ? null : "all" }, { replace: true })}>
          ${showsAll ? "Only differences" : `All ${compared.rows.length} settings`}
        </button>
        ${
          compared.without_settings.length > 0 &&
          html`<span class="faint">
            The settings cannot be read of: ${compared.without_settings.join(", ")}
          </span>`
        }
      </div>
    </details>`,
  );
  Object.assign(place.querySelector(".compare-scroll"), { scrollTop, scrollLeft });
}

function summary(number) {
  return h("span.faint", number ? plural(number, "difference") : "all settings are the same");
}

function heads(runs, colors, remove, main) {
  return html`<thead>
    <tr>
      <th />
      ${runs.map(
        (run) => html`<th>
          <span class="compare-run">
            <i style=${{ background: colors.get(run.key) }} />
            <a href=${address({ run: run.key, view: "learn" })} title=${run.path}>
              ${run.key}
            </a>
            ${
              run.key !== main &&
              html`<button class="icon-button" title=${`Compare without ${run.key}`}
                aria-label=${`Compare without ${run.key}`} onclick=${() => remove(run.key)}>
                ${icon("close")}
              </button>`
            }
          </span>
        </th>`,
      )}
    </tr>
  </thead>`;
}

function results(runs) {
  return html`<tbody>
    ${RESULTS.filter((column) => COMPARED.includes(column.name)).map(
      (column) => html`<tr data-result=${column.name}>
        <th scope="row" title=${column.help ?? ""}>${column.title}</th>
        ${runs.map(
          (run) => html`<td class="num">
            ${visible(String(column.text(run)))}
            ${column.detail?.(run) && html`<span class="result-detail">${visible(column.detail(run))}</span>`}
          </td>`,
        )}
      </tr>`,
    )}
  </tbody>`;
}

// Lets long names break after a dot or an underscore, and nowhere else.
function breakable(name) {
  return name.split(/(?<=[._])/).map((part) => [visible(part), h("wbr")]);
}

function section(title, rows, numRuns) {
  if (!rows.length) return null;
  return html`<tbody>
    <tr class="compare-group"><th scope="rowgroup" colspan=${numRuns + 1}>${title}</th></tr>
    ${rows.map(
      (row) => html`<tr class=${row.differs ? "" : "is-same"} data-setting=${row.name}
        data-group=${row.group}>
        <th scope="row">
          ${breakable(row.name)}
          ${row.note && html`<span class="chip is-warn">${row.note}</span>`}
        </th>
        ${row.values.map(
          (value) => html`<td class="mono">
            ${value === null ? html`<span class="faint">–</span>` : visible(value)}
          </td>`,
        )}
      </tr>`,
    )}
  </tbody>`;
}
