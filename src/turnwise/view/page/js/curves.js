// The numbers of a chart: which curves it has, on one axis of steps.

import { cssColor } from "./dom.js";
import { smooth, TIME_PARTS } from "./metrics.js";

const PART_COLORS = {
  generate: "generate",
  environment: "environment",
  tools: "tool",
  reward: "reward",
  idle: "wait",
  log_probs: "update-2",
  update: "update",
  checkpoint: "other",
  log: "other-2",
  evaluate: "evaluate",
};

function partColor(part) {
  return cssColor(`--time-${PART_COLORS[part] ?? part}`) || cssColor("--time-other");
}

export function lines(spec, runs, weight) {
  const curves = [];
  for (const run of runs) {
    const { steps, series } = run.metrics;
    const main = series[spec.name] ?? steps.map(() => null);
    const common = { run, steps, color: run.color };
    // Fewer than a handful are not smoothed: there is nothing to see through.
    const sparse = main.filter((value) => value !== null).length < 6;
    if (weight > 0) curves.push({ ...common, values: main, faint: true });
    curves.push({
      ...common,
      values: sparse ? main : smooth(main, weight),
      label: runs.length > 1 ? run.key : "",
      shown: true,
    });
    for (const name of spec.beside ?? []) {
      curves.push({
        ...common,
        values: series[name] ?? steps.map(() => null),
        dash: name.includes("greedy") ? [2, 3] : [6, 3],
        points: true,
        label: name.split("/")[1],
        beside: true,
      });
    }
  }
  return curves;
}

// The largest sum first, so that each part paints over what is below it.
export function shares(spec, run) {
  const { steps, series } = run.metrics;
  const parts = TIME_PARTS.filter((part) => spec.parts.includes(`time/${part}`));
  const totals = steps.map(
    (_, i) => parts.reduce((sum, part) => sum + (series[`time/${part}`][i] ?? 0), 0) || 1,
  );
  const below = steps.map(() => 0);
  return parts
    .map((part) => {
      const share = steps.map((_, i) => (series[`time/${part}`][i] ?? 0) / totals[i]);
      share.forEach((value, i) => {
        below[i] += value;
      });
      return {
        run,
        steps,
        values: [...below],
        share,
        part,
        label: part.replace("_", "-"),
        color: partColor(part),
        filled: true,
        shown: true,
      };
    })
    .reverse();
}

export function before(values, at) {
  for (let place = at; place >= 0; place -= 1) {
    if (values[place] !== null && values[place] !== undefined) return values[place];
  }
  return null;
}

export function spread(steps, own, values) {
  if (own.length === steps.length) return values;
  const at = new Map(own.map((step, place) => [step, values[place]]));
  return steps.map((step) => at.get(step) ?? null);
}

export function padded(min, max, isShare) {
  if (min === null || max === null) return [0, 1];
  if (isShare && min >= 0 && max <= 1) return [0, max > 0.5 ? 1 : Math.max(max * 1.15, 0.02)];
  if (min === max)
    return min === 0 ? [-1, 1] : [min - Math.abs(min) * 0.5, max + Math.abs(max) * 0.5];
  const room = (max - min) * 0.08;
  return [min >= 0 && min < (max - min) * 0.3 ? 0 : min - room, max + room];
}
