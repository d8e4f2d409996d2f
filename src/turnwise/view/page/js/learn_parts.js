// This module draws what is around the curves: the run's results, findings, settings and log.

import { runExportAddress } from "./api.js";
import { AXES, axisOf, KINDS, kindOf } from "./charts.js";
import { fill, h, html, icon, lineMark, link } from "./dom.js";
import { num, percent, plural, seconds, visible, words } from "./format.js";
import { notesLine } from "./notes.js";
import { address } from "./route.js";

export function drawHead(head, run, state, app) {
  const last = run.last ?? {};
  const steps = run.total_steps;
  const done = steps ? Math.min(1, run.step / steps) : null;
  const left =
    steps && state?.is_live && last["time/step"] ? (steps - run.step) * last["time/step"] : null;
  const { headline: main, best_checkpoint: best } = run;
  const tile = (
    label,
    value,
    note,
    extra,
    name,
  ) => html`<div class="tile ${name ? "is-wide" : ""}" data-tile=${name ?? label}>
    <span class="tile-label">${label}</span><strong class="num">${value}</strong>
    <span class="tile-note num">${note ?? ""}</span>${extra ?? null}
  </div>`;
  fill(
    head,
    html`<div class="head-title">
      <h1>${run.name ?? run.key}</h1>
      <span class="faint">
        ${run.environment === run.name ? "" : (run.environment ?? "")}
      </span>
      <span class="mono path">${run.path ?? ""}</span>
      <a class="button" href=${runExportAddress(run.key)}
        title="Save the whole run as one HTML file" download="" data-action="export-run">
        ${icon("save")}Export
      </a>
    </div>`,
    state && notesLine(app, state),
    html`<div class="tiles">
      ${main && tile(main.metric, main.number, main.about, null, "headline")}
      ${
        best &&
        tile("best checkpoint", `step ${num(best.step)}`, best.about, null, "best-checkpoint")
      }
      ${tile(
        "last training step",
        num(last.reward),
        last.success === undefined ? "reward" : `reward, success ${percent(last.success)}`,
      )}
      ${tile(
        "step",
        steps ? `${num(run.step)} of ${num(steps)}` : num(run.step),
        left === null ? "" : `about ${seconds(left)} left`,
        done === null
          ? null
          : html`<span class="progress"><span style=${{ width: `${100 * done}%` }} /></span>`,
      )}
      ${tile(
        "episodes",
        num(run.num_episodes),
        last.turns === undefined ? "" : `${num(last.turns, 2)} turns each`,
      )}
      ${tile(
        "speed",
        last["time/step"] === undefined ? "–" : seconds(last["time/step"]),
        last["time/tokens_per_second"] === undefined
          ? ""
          : `a step, ${num(last["time/tokens_per_second"], 3)} tokens/s`,
      )}
    </div>`,
  );
}

// Lists what cannot be read of a run, with the reasons; the rest is shown as usual.
function unreadable(problems) {
  return h(
    ".problem",
    { role: "note" },
    icon("alert"),
    h("pre.words.mono", `Some files of this run cannot be read.\n${problems.join("\n")}`),
  );
}

export function drawDoctor(place, { key, findings, problems }, pinned, choose, isOneOfMany) {
  const note = problems?.length ? unreadable(problems) : null;
  if (!findings?.length) {
    fill(place, note);
    return;
  }
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
          ${findings
            .map((one) => one.name)
            .filter((name, i, all) => all.indexOf(name) === i)
            .join(", ")}
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
        html`<dd class="mono">${visible(written(value))}</dd>`,
      ])}
    </dl>
  </section>`;
  return html`<div class="settings">
    ${sections.map(([name, fields]) => list(name, Object.entries(fields)))}
    ${others.length > 0 && list("outside of sections", others)}
  </div>`;
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// ---- The bar above the curves has the smoothing, the axes, the legend and the chosen step.

export function makeBar({ change, setSmooth }) {
  const slider = html`<input type="range" min=${0} max=${0.95} step=${0.05} id="smooth"
    oninput=${(event) => setSmooth(event.target.value)}
  />`;
  const axis = h(
    "select.select",
    {
      id: "axis",
      // A range of one axis means nothing on another.
      onchange: (event) =>
        change({ axis: event.target.value === "step" ? null : event.target.value, x: null }),
    },
    AXES.map((one) => h("option", { value: one.name, title: one.help }, one.title)),
  );
  const log = html`<input type="checkbox" id="log"
    onchange=${(event) => change({ y: event.target.checked ? "log" : null })}
  />`;
  return html`<div class="learn-bar">
    <label class="control smooth" for="smooth">
      Smoothing${slider}<output class="num" />
    </label>
    <label class="control" for="axis">x axis${axis}</label>
    <label class="control" for="log"
      title="Logarithmic y axis, in charts whose values are not negative">
      ${log}Log y
    </label>
    <span class="at-step num faint" /><div class="pin" /><div class="legend" />
  </div>`;
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
  const focused = legend.contains(document.activeElement)
    ? document.activeElement.dataset.item
    : null;
  const entry = (
    className,
    name,
    title,
    mark,
    isHidden,
    toggle,
  ) => html`<button class="legend-item ${className}" data-item=${`${className} ${name}`}
    aria-pressed=${String(!isHidden)}
    title=${isHidden ? `Show ${title}` : `Hide ${title}`} onclick=${toggle}>
    ${mark}<span>${title}</span>
  </button>`;
  fill(
    legend,
    !(shown.length < 2) &&
      shown.map((run) =>
        entry(
          "legend-run",
          run.key,
          run.key,
          lineMark(colors.get(run.key), null),
          state.hiddenRuns.has(run.key),
          () => change({ hide_runs: toggled(state.hiddenRuns, run.key) }),
        ),
      ),
    shown.length > 1 && kinds.length > 1 && h("span.legend-gap"),
    !(kinds.length < 2) &&
      kinds.map((kind) =>
        entry(
          "legend-kind",
          kind.name,
          kind.title,
          lineMark("currentColor", kind.dash),
          state.hiddenKinds.has(kind.name),
          () => change({ hide: toggled(state.hiddenKinds, kind.name) }),
        ),
      ),
    notDrawn(shown, state),
  );
  if (focused) legend.querySelector(`[data-item="${CSS.escape(focused)}"]`)?.focus();
}

function notDrawn(shown, { axis }) {
  const without = shown.filter((run) => run.xs === null).map((run) => run.key);
  if (!without.length) return null;
  return html`<span class="legend-note" role="note">
    Not drawn, because ${axis.needs} was not recorded: ${without.join(", ")}
  </span>`;
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
          link(address({ run, view: "time", item: step }), { class: "button" }, "Time"),
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
