// The x axis counts steps, time, sampled tokens or episodes, added up from the metrics.

import { num, seconds } from "./format.js";

export const AXES = [
  {
    name: "step",
    title: "Step",
    help: "Training steps of the run",
    label: (value) => `step ${num(value)}`,
    tick: (value) => (Number.isInteger(value) ? num(value) : ""),
  },
  {
    name: "time",
    title: "Time",
    help: "Time since the first step began, including evaluations and checkpoints. The time between a stop and a resume is not counted.",
    needs: "time/step",
    sums: ["time/step", "time/log", "time/evaluate", "time/checkpoint"],
    label: seconds,
    tick: shortTime,
    // Ticks are at times that people read on a clock.
    increments: [
      ...[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800],
      ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 480, 1200, 2400].map((hours) => 3600 * hours),
    ],
  },
  {
    name: "tokens",
    title: "Tokens",
    help: "Sampled tokens of all training episodes so far",
    needs: "num_sampled_tokens",
    sums: ["num_sampled_tokens"],
    label: (value) => `${num(value)} sampled tokens`,
    tick: short,
  },
  {
    name: "episodes",
    title: "Episodes",
    help: "Training episodes so far",
    needs: "num_episodes",
    sums: ["num_episodes"],
    label: (value) => `${num(value)} episodes`,
    tick: short,
  },
];

export function axisOf(name) {
  return AXES.find((axis) => axis.name === name) ?? AXES[0];
}

// Returns the place of each step of a run on the axis; null if the run has not recorded it.
export function positions(axis, { steps, series }) {
  if (!axis.sums) return steps;
  if (!series[axis.needs]?.some((value) => value !== null)) return null;
  let sum = 0;
  return steps.map((_, place) => {
    for (const name of axis.sums) sum += series[name]?.[place] ?? 0;
    return sum;
  });
}

function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  }
  return Number.isInteger(value) ? num(value) : "";
}

function shortTime(value) {
  if (value === 0) return "0";
  const [unit, letter] = value < 60 ? [1, "s"] : value < 3600 ? [60, "min"] : [3600, "h"];
  return `${Number((value / unit).toPrecision(3))} ${letter}`;
}
