// The numbers next to a chart's title are those at the cursor, at the chosen step, or the last
// ones.

import { written } from "./chart_axes.js";
import { before } from "./curves.js";
import { fill, h } from "./dom.js";
import { percent } from "./format.js";
import { lineMark } from "./line_mark.js";

const MOST_SHOWN = 6;

export function showValues(chart, place) {
  if (!chart.plot) return;
  const xs = chart.plot.data[0];
  let at = place;
  if (at === null || at === undefined) {
    const { pinned } = chart.options;
    at = pinned === null ? xs.length - 1 : xs.indexOf(pinned);
  }
  fill(
    chart.values,
    chart.spec.phases ? phaseShares(chart, xs[at]) : numbers(chart, xs, at, place),
  );
}

function phaseShares(chart, x) {
  const found = chart.curves.map((curve) => [curve, curve.share[curve.xs.indexOf(x)] ?? 0]);
  const largest = found.sort((a, b) => b[1] - a[1]).slice(0, 2);
  return largest.map(([curve, share]) =>
    h(
      "span",
      null,
      h("i", { style: { background: curve.color } }),
      `${curve.label} ${percent(share)}`,
    ),
  );
}

function numbers(chart, xs, at, place) {
  const isSingle = chart.options.runs.length === 1;
  const shown = chart.curves
    .map((curve, number) => [curve, chart.plot.data[number + 1]])
    .filter(([curve]) => !curve.faint && (curve.kind === "training" || isSingle));
  const isLast = place === null || place === undefined;
  const texts = shown.map(([curve, values]) => {
    const value = at < 0 ? null : valueAt(curve, values, xs, at, isLast);
    if (value === null || value === undefined) return null;
    const mark = curve.dash
      ? lineMark(curve.color, curve.dash, 16)
      : h("i", { style: { background: curve.color } });
    return h(
      "span",
      { title: curve.label },
      shown.length === 1 ? null : mark,
      written(chart.spec, value),
    );
  });
  return texts.slice(0, MOST_SHOWN);
}

// On every axis but that of steps, runs have values at different places: this returns the last
// value before the cursor, if the run reaches that far.
function valueAt(curve, values, xs, at, isLast) {
  if (isLast || curve.kind !== "training") return before(values, at);
  if (values[at] !== null && values[at] !== undefined) return values[at];
  const isWithin = xs[at] >= curve.xs[0] && xs[at] <= curve.xs.at(-1);
  return isWithin ? before(values, at) : null;
}
