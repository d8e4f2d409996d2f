// This module maps numbers of tokens to colours: it lists the columns, and scales each of them.

import { num, plural } from "./format.js";

export const LEVELS = 10;

const KNOWN = [
  {
    name: "advantages",
    title: "Advantage",
    help: "how much better than expected: what the update pushes by",
  },
  {
    name: "sampler_log_probs",
    title: "Log-prob",
    help: "at the moment of sampling",
    oneSided: true,
  },
  { name: "gap", title: "Gap", help: "learner's log-prob minus the sampler's: should be about 0" },
  { name: "values", title: "Value", help: "the critic's estimate of the return" },
  { name: "returns", title: "Return", help: "the target of the critic" },
];
const IN_OTHERS = new Set(["log_probs"]);

export function readColumns(data) {
  const columns = { ...data.columns };
  const { sampler_log_probs: sampled, log_probs: learned } = columns;
  if (sampled && learned)
    columns.gap = learned.map((value, i) =>
      value === null || sampled[i] === null ? null : value - sampled[i],
    );
  return columns;
}

export function choices(columns) {
  const known = KNOWN.filter((one) => columns[one.name]?.some((value) => value !== null));
  const rest = Object.keys(columns).filter(
    (name) => !IN_OTHERS.has(name) && !KNOWN.some((one) => one.name === name),
  );
  return [
    ...known,
    ...rest.map((name) => ({ name, title: name.replaceAll("_", " "), help: "" })),
    { name: "mask", title: "Mask only", help: "sampled tokens and prompt tokens" },
  ];
}

// The strongest colour is for unusual values: beyond the usual range, and not far below the
// largest, so that one odd token among many ordinary ones stands out.
export class Scale {
  constructor(choice, values) {
    this.choice = choice;
    const sizes = (values ?? []).filter((value) => value !== null).map(Math.abs);
    sizes.sort((a, b) => a - b);
    const usual = sizes[Math.floor((sizes.length - 1) * 0.98)] ?? 0;
    this.most = Math.max(usual, (sizes.at(-1) ?? 0) / 3);
  }

  level(value) {
    if (value === null || value === undefined || !this.most) return 0;
    const strength = Math.min(1, Math.abs(value) / this.most);
    return Math.round(LEVELS * strength) * (value < 0 && !this.choice.oneSided ? -1 : 1);
  }

  className(value) {
    const level = this.level(value);
    if (!level) return "";
    const sign = this.choice.oneSided ? "is-one" : level > 0 ? "is-plus" : "is-minus";
    return `${sign} l${Math.abs(level)}`;
  }

  labels() {
    if (this.choice.oneSided) return ["0", num(-this.most, 2)];
    return [num(-this.most, 2), "0", `+${num(this.most, 2)}`];
  }
}

export function audit(data, columns) {
  const { mask, turn } = data;
  const count = (test) => mask.reduce((sum, _, i) => sum + (test(i) ? 1 : 0), 0);
  const checks = [];
  const say = (isWell, text) => checks.push({ isWell, text });
  const outside = count((i) => mask[i] && turn[i] < 0);
  const within = count((i) => !mask[i] && turn[i] >= 0);
  if (outside) say(false, `${num(outside)} sampled tokens belong to no turn`);
  if (within) say(false, `${num(within)} tokens of turns are not marked as sampled`);
  if (!outside && !within) say(true, "The mask covers exactly the tokens of turns");
  if (columns.advantages) {
    const without = count((i) => mask[i] && columns.advantages[i] === null);
    const extra = count(
      (i) => !mask[i] && columns.advantages[i] !== null && columns.advantages[i] !== 0,
    );
    if (without) say(false, `${num(without)} sampled tokens have no advantage`);
    if (extra)
      say(false, `${plural(extra, "prompt token")} ${extra === 1 ? "has" : "have"} an advantage`);
    if (!without && !extra) say(true, "Exactly the sampled tokens have an advantage");
  }
  if (columns.gap) {
    const widest = columns.gap.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
    say(widest < 0.05, `Sampler and learner differ by at most ${num(widest, 2)}`);
  }
  return checks;
}
