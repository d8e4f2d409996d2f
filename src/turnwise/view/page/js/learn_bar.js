// The bar above the curves has the smoothing, the axes, the legend and the chosen step.

import { AXES } from "./axis.js";
import { KINDS, kindOf } from "./curves.js";
import { button, fill, h, link } from "./dom.js";
import { num } from "./format.js";
import { icon } from "./icons.js";
import { toggled } from "./learn_state.js";
import { lineMark } from "./line_mark.js";
import { address } from "./route.js";

export function makeBar({ change, setSmooth }) {
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.95,
    step: 0.05,
    id: "smooth",
    oninput: (event) => setSmooth(event.target.value),
  });
  const axis = h(
    "select",
    {
      class: "select",
      id: "axis",
      // A range of one axis means nothing on another.
      onchange: (event) =>
        change({ axis: event.target.value === "step" ? null : event.target.value, x: null }),
    },
    AXES.map((one) => h("option", { value: one.name, title: one.help }, one.title)),
  );
  const log = h("input", {
    type: "checkbox",
    id: "log",
    onchange: (event) => change({ y: event.target.checked ? "log" : null }),
  });
  return h(
    "div",
    { class: "learn-bar" },
    h(
      "label",
      { class: "control smooth", for: "smooth" },
      "Smoothing",
      slider,
      h("output", { class: "num" }),
    ),
    h("label", { class: "control", for: "axis" }, "x axis", axis),
    h(
      "label",
      {
        class: "control",
        for: "log",
        title: "Logarithmic y axis, in charts whose values are not negative",
      },
      log,
      "Log y",
    ),
    h("span", { class: "at-step num faint" }),
    h("div", { class: "pin" }),
    h("div", { class: "legend" }),
  );
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
  const entry = (className, name, title, mark, isHidden, toggle) =>
    button(
      mark,
      {
        class: `legend-item ${className}`,
        data: { item: `${className} ${name}` },
        "aria-pressed": String(!isHidden),
        title: isHidden ? `Show ${title}` : `Hide ${title}`,
        onclick: toggle,
      },
      h("span", null, title),
    );
  fill(
    legend,
    shown.length < 2
      ? null
      : shown.map((run) =>
          entry(
            "legend-run",
            run.key,
            run.key,
            lineMark(colors.get(run.key), null),
            state.hiddenRuns.has(run.key),
            () => change({ hide_runs: toggled(state.hiddenRuns, run.key) }),
          ),
        ),
    shown.length > 1 && kinds.length > 1 ? h("span", { class: "legend-gap" }) : null,
    kinds.length < 2
      ? null
      : kinds.map((kind) =>
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
  return h(
    "span",
    { class: "legend-note", role: "note" },
    `Not drawn, because ${axis.needs} was not recorded: ${without.join(", ")}`,
  );
}

function drawPin(place, { state, run, zoom, pin }) {
  const { range, axis, step } = state;
  fill(
    place,
    range
      ? button(
          `${axis.label(range[0])} to ${axis.label(range[1])}`,
          {
            class: "chip is-accent",
            title: "Show the whole axis",
            onclick: () => zoom(null, null),
          },
          icon("close"),
        )
      : null,
    step === null
      ? h("span", { class: "faint hint" }, "Click a curve to choose a step, drag to zoom in")
      : [
          h("span", { class: "pin-step" }, h("strong", { class: "num" }, `Step ${num(step)}`)),
          link(
            address({ run, view: "episodes", params: { step } }),
            { class: "button" },
            "Episodes",
          ),
          link(address({ run, view: "time", item: step }), { class: "button" }, "Time"),
          button(icon("close"), {
            class: "icon-button",
            "aria-label": "Clear the step",
            onclick: () => pin(null),
          }),
        ],
  );
}
