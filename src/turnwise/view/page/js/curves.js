// This module computes the curves of a chart, each with its places on the x axis.

import { cssColor } from "./dom.js";
import { smooth } from "./metrics.js";
import { timeColor } from "./time_kinds.js";

export const KINDS = [
  { name: "training", title: "training", dash: null },
  { name: "greedy", title: "greedy evaluation", dash: [2, 3] },
  { name: "sampled", title: "sampled evaluation", dash: [6, 3] },
];

// Returns the kind of a curve by its metric's name: "eval/greedy/reward" and, of an environment in
// a mix, "eval/maze/greedy/reward" are of the greedy evaluation.
export function kindOf(name) {
  return name.match(/^eval\/(?:[^/]+\/)?(greedy|sampled)\//)?.[1] ?? "training";
}

const kindNamed = (name) => KINDS.find((kind) => kind.name === name);
const styled = (kind) => ({ kind: kind.name, dash: kind.dash, points: kind.dash !== null });

export function lines(spec, runs, weight, hiddenKinds) {
  const curves = [];
  for (const run of runs) {
    if (run.xs === null) continue;
    const { steps, series } = run.metrics;
    const common = { run, xs: run.xs, color: run.color };
    const own = kindNamed(kindOf(spec.name));
    if (!hiddenKinds.has(own.name) && series[spec.name]) {
      const main = series[spec.name];
      // A handful of points is not smoothed: there is no noise to remove.
      const sparse = main.filter((value) => value !== null).length < 6;
      const curve = { ...common, ...styled(own), label: run.key };
      if (weight > 0) curves.push({ ...curve, values: main, faint: true, points: false });
      curves.push({ ...curve, values: sparse ? main : smooth(main, weight) });
    }
    for (const name of spec.evaluations ?? []) {
      const kind = kindNamed(kindOf(name));
      if (hiddenKinds.has(kind.name)) continue;
      curves.push({
        ...common,
        values: series[name] ?? steps.map(() => null),
        ...styled(kind),
        label: `${run.key}, ${kind.title}`,
      });
    }
  }
  return curves;
}

// Returns the shares as running sums, the largest first, so that each is painted over the one
// before. All tokens of a step without these metrics are 0 behind.
export function shares(spec, run) {
  if (!run?.xs) return [];
  const { steps, series } = run.metrics;
  const columns = spec.phases.map((name) => steps.map((_, i) => series[name]?.[i] ?? 0));
  const totals = steps.map((_, i) => columns.reduce((sum, column) => sum + column[i], 0));
  const below = steps.map(() => 0);
  return spec.phases
    .map((name, place) => {
      const none = Number(name === "staleness/0");
      const share = columns[place].map((value, i) => (totals[i] ? value / totals[i] : none));
      share.forEach((value, i) => {
        below[i] += value;
      });
      return {
        run,
        xs: run.xs,
        values: [...below],
        share,
        ...styleOf(name, place),
        filled: true,
        kind: "training",
      };
    })
    .reverse();
}

function styleOf(name, place) {
  const [kind, phase] = name.split("/");
  if (kind === "time") return { label: phase.replace("_", "-"), color: timeColor(phase) };
  return { label: `${phase} behind`, color: cssColor(`--run-${(place % 8) + 1}`) };
}

export function before(values, at) {
  for (let place = at; place >= 0; place -= 1) {
    if (values[place] !== null && values[place] !== undefined) return values[place];
  }
  return null;
}

export function spread(xs, own, values) {
  if (own.length === xs.length && own.every((x, place) => x === xs[place])) return values;
  const at = new Map(own.map((x, place) => [x, values[place]]));
  return xs.map((x) => at.get(x) ?? null);
}

export function padded(min, max, isShare) {
  if (min === null || max === null) return [0, 1];
  if (isShare && min >= 0 && max <= 1) return [0, max > 0.5 ? 1 : Math.max(max * 1.15, 0.02)];
  if (min === max)
    return min === 0 ? [0, 1] : [min - Math.abs(min) * 0.5, max + Math.abs(max) * 0.5];
  const room = (max - min) * 0.08;
  return [min >= 0 && min < (max - min) * 0.3 ? 0 : min - room, max + room];
}
