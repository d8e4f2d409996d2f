// The columns of the table of runs: the value that a column is sorted by, and its text.

import { ago, num, percent } from "./format.js";
import { stateWord } from "./shell.js";

const number = (name, title, help, value, text) => ({
  name,
  title,
  help,
  value,
  text: text ?? ((run) => num(value(run))),
  isNumber: true,
});

export const RESULTS = [
  { name: "status", title: "Status", value: stateWord, text: stateWord },
  number(
    "step",
    "Step",
    "Trained steps",
    (run) => run.step,
    (run) => (run.total_steps ? `${num(run.step)} of ${num(run.total_steps)}` : num(run.step)),
  ),
  {
    ...number(
      "headline",
      "Headline",
      "The last greedy evaluation; without one, the episodes of the last training step",
      (run) => run.headline?.value,
      (run) => (run.headline ? `${run.headline.metric} ${run.headline.number}` : "–"),
    ),
    detail: (run) => run.headline?.about,
  },
  {
    ...number(
      "best",
      "Best checkpoint",
      "The best checkpoint; sorted by its metric",
      (run) => run.best_checkpoint?.value,
      (run) => (run.best_checkpoint ? `step ${num(run.best_checkpoint.step)}` : "–"),
    ),
    detail: (run) => run.best_checkpoint?.about,
  },
  number(
    "reward",
    "Training reward",
    "Mean reward of the last training step's episodes",
    (run) => run.last?.reward,
  ),
  number(
    "success",
    "Training success",
    "Fraction of the last training step's episodes that succeeded",
    (run) => run.last?.success,
    (run) => percent(run.last?.success),
  ),
  number("episodes", "Episodes", "Episodes in the run's folder", (run) => run.num_episodes),
];

const when = (name, title, value) => ({
  name,
  title,
  value,
  text: (run) => (value(run) ? ago(value(run)) : "–"),
  isNumber: true,
});

export const COLUMNS = [
  { name: "name", title: "Run", value: (run) => run.key, text: (run) => run.key },
  { name: "tags", title: "Tags", value: (run) => run.notes.tags.join(", ") },
  {
    name: "environment",
    title: "Environment",
    value: (run) => run.environment,
    text: (run) => run.environment || "–",
  },
  ...RESULTS,
  when("updated", "Last change", (run) => run.updated),
  when("started", "Started", (run) => run.started),
];

// Sorts runs; those without a value come last in both directions.
export function sorted(runs, order) {
  const isDown = order.startsWith("-");
  const column = COLUMNS.find((one) => one.name === order.replace(/^-/, ""));
  if (!column) return runs;
  const isMissing = (value) => value === null || value === undefined || value === "";
  const compare = (a, b) =>
    column.isNumber ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return runs
    .map((run) => [column.value(run), run])
    .sort(([a], [b]) => {
      if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
      return isDown ? compare(b, a) : compare(a, b);
    })
    .map(([, run]) => run);
}

export function matches(run, text, tags) {
  const { notes } = run;
  if (!tags.every((tag) => notes.tags.includes(tag))) return false;
  const found = [run.key, run.environment, stateWord(run), run.path, notes.note, ...notes.tags]
    .join("\n")
    .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => found.includes(word));
}
