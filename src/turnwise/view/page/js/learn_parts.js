// This module draws what is around the curves: the run's results, findings, settings and log.

import { exportAddress } from "./api.js";
import { AXES, axisOf, KINDS, kindOf } from "./charts.js";
import { fill, h, html, icon, lineMark, refill } from "./dom.js";
import { num, percent, plural, seconds, visible, words, written } from "./format.js";
import { notesLine } from "./notes.js";
import { address } from "./route.js";
import { RESULTS } from "./runs.js";
import { stepsWords } from "./shell.js";

export function drawHead(head, run, state, app) {
  const last = run.last ?? {};
  const steps = run.total_steps;
  const done = steps ? Math.min(1, run.step / steps) : null;
  const left =
    steps && state?.is_live && last["time/step"] ? (steps - run.step) * last["time/step"] : null;
  const { headline: main, best_checkpoint: best } = run;
  const tile = (label, value, note, { extra = null, name = null } = {}) => {
    return html`<div class="tile ${name ? "is-wide" : ""}" data-tile=${name ?? label}>
      <span class="tile-label">${label}</span><strong class="num">${value}</strong>
      <span class="tile-note num">${note}</span>${extra}
    </div>`;
  };
  const bestStep = best && `step ${num(best.step)}`;
  const earned = last.success === undefined ? "reward" : `reward, success ${percent(last.success)}`;
  const width = `${100 * (done ?? 0)}%`;
  const extra = done !== null && html`<span class="progress"><span style=${{ width }} /></span>`;
  const turns = last.turns === undefined ? "" : `${num(last.turns, 2)} turns each`;
  const rate = last["time/tokens_per_second"];
  const speed = rate === undefined ? "" : `a step, ${num(rate, 3)} tokens/s`;
  fill(
    head,
    html`<div class="head-title">
      <h1>${run.name ?? run.key}</h1>
      <span class="faint">
        ${run.environment === run.name ? "" : (run.environment ?? "")}
      </span>
      <span class="mono path">${run.path ?? ""}</span>
      <a class="button" href=${exportAddress(run.key)}
        title="Save the whole run as one HTML file" download="" data-action="export-run">
        ${icon("save")}Export
      </a>
    </div>`,
    state && notesLine(app, state),
    html`<div class="tiles">
      ${main && tile(main.metric, main.number, main.about, { name: "headline" })}
      ${best && tile("best checkpoint", bestStep, best.about, { name: "best-checkpoint" })}
      ${tile("last training step", num(last.reward), earned)}
      ${tile("step", stepsWords(run), left === null ? "" : `about ${seconds(left)} left`, { extra })}
      ${tile("episodes", num(run.num_episodes), turns)}
      ${tile("speed", seconds(last["time/step"]), speed)}
    </div>`,
  );
}

export function drawDoctor(place, { key, findings, problems }, pinned, choose, isOneOfMany) {
  const text = `Some files of this run cannot be read.\n${problems.join("\n")}`;
  const note =
    problems.length > 0 &&
    html`<div class="problem" role="note">
      ${icon("alert")}<pre class="words mono">${text}</pre>
    </div>`;
  if (!findings.length) return void fill(place, note);
  const open = place.querySelector("details")?.open ?? (findings.length <= 3 && !isOneOfMany);
  fill(
    place,
    note,
    html`<details class="card" open=${open}>
      <summary>
        ${icon("alert")}
        <strong>
          The doctor has ${plural(findings.length, "finding")}${isOneOfMany ? ` for ${key}` : ""}
        </strong>
        <span class="faint">
          ${[...new Set(findings.map((one) => one.name))].join(", ")}
        </span>
      </summary>
      <ol>
        ${findings.map(
          (finding) => html`<li class=${finding.step === pinned ? "is-pinned" : ""}>
            <button class="chip is-warn num" title="Show this step in the curves"
              onclick=${() => choose(finding.step)}>
              step ${num(finding.step)}
            </button>
            <div>
              <strong>${finding.name}</strong>${" "}<span>${finding.text}</span>
              <p class="fix"><span>${"Try: "}</span>${finding.fix}</p>
            </div>
          </li>`,
        )}
      </ol>
    </details>`,
  );
}

// Draws the settings and the end of the log.
export function drawMore(place, run) {
  const was = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const fold = (name, title, content) =>
    content &&
    h("details.card.fold", { data: { name }, open: was.has(name) }, h("summary", title), content);
  const config = run.config ?? {};
  fill(
    place,
    Object.keys(config).length > 0 && fold("config", `Settings of ${run.key}`, settings(config)),
    run.log_tail && fold("log", "End of the log", h("pre.log.mono", visible(run.log_tail))),
  );
}

const isSection = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;

function settings(config) {
  const sections = Object.entries(config).filter(([, value]) => isSection(value));
  const others = Object.entries(config).filter(([, value]) => !isSection(value));
  const list = (title, fields) => html`<section>
    <h3>${title}</h3>
    <dl>
      ${fields.map(([name, value]) => [
        html`<dt>${words(name)}</dt>`,
        html`<dd class="mono">${visible(value === null ? "null" : written(value))}</dd>`,
      ])}
    </dl>
  </section>`;
  return html`<div class="settings">
    ${sections.map(([name, fields]) => list(name, Object.entries(fields)))}
    ${others.length > 0 && list("outside of sections", others)}
  </div>`;
}

// ---- The bar above the curves has the smoothing, the axes, the legend and the chosen step.

export function makeBar({ change, setSmooth }) {
  const bar = document.getElementById("learn-bar").content.firstElementChild.cloneNode(true);
  const part = (selector) => bar.querySelector(selector);
  part("#smooth").oninput = (event) => setSmooth(event.target.value);
  part("#log").onchange = (event) => change({ y: event.target.checked ? "log" : null });
  // A range of one axis means nothing on another.
  part("#axis").onchange = (event) =>
    change({ axis: event.target.value === "step" ? null : event.target.value, x: null });
  fill(
    part("#axis"),
    AXES.map((one) => h("option", { value: one.name, title: one.help }, one.title)),
  );
  return bar;
}

export function drawBar(bar, { state, shown, colors, run, change, zoom, pin }) {
  const slider = bar.querySelector("#smooth");
  if (document.activeElement !== slider) slider.value = state.smooth;
  bar.querySelector("output").textContent = state.smooth ? state.smooth.toFixed(2) : "none";
  const axis = bar.querySelector("#axis");
  axis.value = state.axis.name;
  axis.title = state.axis.help;
  bar.querySelector("#log").checked = state.isLog;
  drawLegend(bar.querySelector(".legend"), { state, shown, colors, change });
  drawPin(bar.querySelector(".pin"), { state, run, zoom, pin });
}

// The legend has a colour for each run and a line style for each kind of episodes; a click hides
// it.
function drawLegend(legend, { state, shown, colors, change }) {
  const present = new Set(
    shown.flatMap((run) => Object.keys(run.metrics.series)).map((name) => kindOf(name)),
  );
  const kinds = KINDS.filter((kind) => present.has(kind.name));
  const entry = (className, name, title, mark, isHidden, toggle) => {
    return html`<button class="legend-item ${className}" data-name=${`${className} ${name}`}
      aria-pressed=${String(!isHidden)} title=${`${isHidden ? "Show" : "Hide"} ${title}`}
      onclick=${toggle}>
      ${mark}<span>${title}</span>
    </button>`;
  };
  const { hiddenRuns, hiddenKinds } = state;
  const without = shown.filter((run) => run.xs === null).map((run) => run.key);
  const runEntry = ({ key }) =>
    entry("legend-run", key, key, lineMark(colors.get(key), null), hiddenRuns.has(key), () =>
      change({ hide_runs: toggled(hiddenRuns, key) }),
    );
  const kindEntry = ({ name, title, dash }) =>
    entry("legend-kind", name, title, lineMark("currentColor", dash), hiddenKinds.has(name), () =>
      change({ hide: toggled(hiddenKinds, name) }),
    );
  refill(
    legend,
    shown.length > 1 && shown.map(runEntry),
    shown.length > 1 && kinds.length > 1 && h("span.legend-gap"),
    kinds.length > 1 && kinds.map(kindEntry),
    without.length > 0 &&
      html`<span class="legend-note" role="note">
        Not drawn, because ${state.axis.sums[0]} was not recorded: ${without.join(", ")}
      </span>`,
  );
}

function drawPin(place, { state, run, zoom, pin }) {
  const { range, axis, step } = state;
  fill(
    place,
    range &&
      html`<button class="chip is-accent" title="Show the whole axis"
        onclick=${() => zoom(null, null)}>
        ${axis.label(range[0])} to ${axis.label(range[1])}${icon("close")}
      </button>`,
    step === null
      ? h("span.faint.hint", "Click a curve to choose a step, drag to zoom in")
      : [
          h("span.pin-step", h("strong.num", `Step ${num(step)}`)),
          html`<a class="button" href=${address({ run, view: "episodes", params: { step } })}>
            Episodes
          </a>`,
          html`<a class="button" href=${address({ run, view: "time", item: step })}>Time</a>`,
          html`<button class="icon-button" aria-label="Clear the step" onclick=${() => pin(null)}>
            ${icon("close")}
          </button>`,
        ],
  );
}

// ---- This module reads from the address which runs are drawn, on which axis, and what is hidden.

const MOST_RUNS = 24;

export function readState(route, app) {
  const { params } = route;
  const list = (name) => (params.get(name) ?? "").split(",").filter(Boolean);
  const others = [...new Set(list("with"))].filter((key) => key !== route.run && app.run(key));
  const step = Number(params.get("step") || NaN);
  const range = params.get("x")?.match(/^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/);
  return {
    keys: [route.run, ...others].slice(0, MOST_RUNS),
    smooth: Math.min(0.99, Math.max(0, Number(params.get("smooth") ?? 0) || 0)),
    step: Number.isInteger(step) ? step : null,
    range: range ? range.slice(1).map(Number) : null,
    axis: axisOf(params.get("axis")),
    isLog: params.get("y") === "log",
    showsAll: params.get("all") === "1",
    showsAllSettings: params.get("settings") === "all",
    hiddenKinds: new Set(list("hide")),
    hiddenRuns: new Set(list("hide_runs")),
  };
}

// Returns a set with one element added or removed, in the form of the address.
export function toggled(set, name) {
  const next = new Set(set);
  if (!next.delete(name)) next.add(name);
  return [...next].join(",");
}

// ---- The comparison shows several runs side by side: their results, the settings that differ, changed
// code.

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
      <summary>
        Results and settings
        <span class="faint">
          ${numDiffering ? plural(numDiffering, "difference") : "all settings are the same"}
        </span>
      </summary>
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
