// This module makes the axes of a chart: it formats their numbers and leaves space for every label.

import { padded } from "./curves.js";
import { cssColor } from "./dom.js";
import { num, percent } from "./format.js";

/* global uPlot */

const SHARES = new Set([
  "success",
  "truncated",
  "cut_turns",
  "invalid_actions",
  "errors",
  "clip_fraction",
  "tool_failures",
  "malformed_calls",
  "zero_variance",
  "idle/learner",
  "idle/engine",
  "idle/episodes",
]);

export function isShare(spec) {
  return Boolean(spec.phases) || SHARES.has(spec.name);
}

export function written(spec, value) {
  return isShare(spec) ? percent(value, value && value < 0.01 ? 2 : 0) : num(value);
}

export function scales(chart) {
  const { spec } = chart;
  const logarithmic = {
    distr: 3,
    log: 10,
    range: (_plot, min, max) => (min === null ? [0.1, 1] : uPlot.rangeLog(min, max, 10, false)),
  };
  const linear = {
    range: spec.phases ? [0, 1] : (_plot, min, max) => padded(min, max, isShare(spec)),
  };
  return {
    x: {
      time: false,
      range: (_plot, min, max) =>
        chart.options.range ?? (min === max ? [min - 1, max + 1] : [min, max]),
    },
    y: chart.isLog ? logarithmic : linear,
  };
}

export function axes(chart) {
  const { spec } = chart;
  const common = {
    stroke: cssColor("--faint"),
    font: `11px ${cssColor("--sans")}`,
    ticks: { show: false },
    gap: 4,
  };
  const increments = chart.options.axis.increments;
  return [
    {
      ...common,
      size: 22,
      space: 60,
      grid: { show: false },
      ...(increments ? { incrs: increments } : {}),
      values: (_plot, values) => values.map((value) => chart.options.axis.tick(value)),
    },
    {
      ...common,
      size: (plot, labels) => Math.max(34, widest(plot, labels ?? []) + 12),
      space: chart.isLog ? 20 : 34,
      grid: {
        stroke: cssColor("--line"),
        width: 1,
        ...(chart.isLog ? { filter: decades } : {}),
      },
      values: (_plot, values) =>
        values.map((value) => (value === null ? "" : yLabel(spec, value, chart.isLog))),
    },
  ];
}

// Over many decades a grid line for each digit would fill the chart, so only powers of ten remain.
function decades(_plot, splits) {
  const found = splits.filter((value) => value !== null);
  if (found.at(-1) / found[0] < 1e4) return splits;
  return splits.map((value) => (/^1e/.test(value?.toExponential()) ? value : null));
}

function yLabel(spec, value, isLog) {
  if (isShare(spec) && value && value < 0.01) return `${num(100 * value, 2)}%`;
  if (isShare(spec)) return percent(value);
  if (isLog && (value < 1e-3 || value >= 1e5))
    return value.toExponential(0).replace("e+", "e").replaceAll("-", "−");
  return num(value, 4);
}

// The last label is centred on the end of the axis, so half of it needs space beyond the axis.
export function padding(chart) {
  const right = (plot) => {
    const steps = plot.data?.[0] ?? [];
    const last = chart.options.range?.[1] ?? steps.at(-1) ?? 0;
    return Math.max(6, Math.ceil(widest(plot, [chart.options.axis.tick(last) || "0000"]) / 2) + 3);
  };
  return [6, right, 0, 0];
}

function widest(plot, labels) {
  const pen = plot.ctx;
  pen.save();
  pen.font = `11px ${cssColor("--sans")}`;
  const width = Math.max(0, ...labels.map((label) => pen.measureText(label ?? "").width));
  pen.restore();
  return width;
}
