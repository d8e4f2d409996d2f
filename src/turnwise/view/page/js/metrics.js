// This module loads the columns of a run's metrics, keeps them current, and groups them into
// charts.

import { get, runPath } from "./api.js";
import { cssColor } from "./dom.js";

const kept = new Map();

// Requests only new steps; a run that was rewound to an earlier step is read again.
export async function metricsOf(run, step = null) {
  const old = kept.get(run);
  const last = old?.steps.at(-1) ?? 0;
  if (old && (step === null || step === last)) return old;
  const isLater = old && step !== null && step > last;
  const data = await get(runPath(run, "metrics"), isLater ? { since: last } : null, {
    fresh: true,
  });
  if (isLater) {
    const column = (part, name) => part.series[name] ?? part.steps.map(() => null);
    for (const name of Object.keys({ ...old.series, ...data.series }))
      data.series[name] = [...column(old, name), ...column(data, name)];
    data.steps = [...old.steps, ...data.steps];
  }
  kept.set(run, data);
  return data;
}

export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

// These curves answer these questions. A name with `*` stands for every metric with that prefix.
const GROUPS = {
  "Does it succeed?": "reward success reward/* reward_per_turn",
  "How long are the episodes?":
    "turns tokens_per_episode tokens_per_turn truncated cut_turns invalid_actions errors",
  "How does the policy move?":
    "entropy kl kl_ref clip_fraction gap_max gap_kl zero_variance grad_norm",
  "Does the critic help?": "explained_variance value_loss",
  "How are the tools used?": "tool_calls tool_failures malformed_calls tool_calls/*",
  "How old are the samples, and what waits?":
    "staleness staleness/mean weights_behind idle/learner idle/engine idle/episodes",
  "Where does the time go?":
    "time time/step time/episodes_per_second time/tokens_per_second time/memory_gib",
};

export const TITLES = {
  tokens_per_episode: "tokens per episode",
  tokens_per_turn: "tokens per turn",
  truncated: "truncated episodes",
  cut_turns: "turns cut at the token limit",
  invalid_actions: "invalid actions",
  errors: "failed episodes",
  kl: "KL to the sampler",
  kl_ref: "KL to the reference",
  clip_fraction: "clipped tokens",
  gap_max: "log-prob gap, largest",
  gap_kl: "log-prob gap, KL",
  grad_norm: "gradient norm",
  zero_variance: "zero-variance groups",
  explained_variance: "explained variance",
  value_loss: "value loss",
  tool_calls: "tool calls per episode",
  tool_failures: "failed calls",
  malformed_calls: "malformed calls",
  staleness: "token age",
  "staleness/mean": "updates behind, mean of the tokens",
  weights_behind: "updates behind, oldest token",
  "idle/learner": "learner waits, share of the time",
  "idle/engine": "engine waits, share of the time",
  "idle/episodes": "slots for episodes wait, share",
  time: "shares of a step",
  "time/step": "seconds per step",
  "time/tokens_per_second": "tokens per second",
  "time/episodes_per_second": "episodes per second",
  "time/memory_gib": "memory, GiB",
  reward_per_turn: "reward per turn",
};

const titleOf = (name) => TITLES[name] ?? name;

// The evaluations of a metric are drawn in its chart; those of an environment in a mix are named
// "eval/maze/greedy/reward", its training is "maze/reward".
const EVALUATIONS = ["greedy", "sampled"];
const OF_EACH_ENVIRONMENT = "reward success turns tokens_per_episode truncated errors".split(" ");

function evaluationsOf(name, environments) {
  const environment = environments.find((one) => name.startsWith(`${one}/`));
  const rest = environment === undefined ? name : name.slice(environment.length + 1);
  return EVALUATIONS.map((kind) =>
    ["eval", environment, kind, rest].filter((one) => one).join("/"),
  );
}

const TIME_PHASES =
  "generate environment tools reward idle log_probs update checkpoint log evaluate".split(" ");
const NO_CURVE = new Set(["step", "epoch"]);

// Returns the charts by question, and those that are only shown when asked for. The server names
// the `minor` metrics of a run; a chart that says something in one of several runs is shown.
export function chartGroups(runs) {
  const columns = runs.map((run) => run.series);
  const isMinor = (name) =>
    runs.filter((run) => name in run.series).every((run) => run.minor.includes(name));
  const left = new Set(columns.flatMap((series) => Object.keys(series)));
  for (const name of NO_CURVE) left.delete(name);
  const environments = [...left]
    .filter((name) => /^[^/]+\/num_groups$/.test(name))
    .map((name) => name.split("/")[0])
    .sort();
  const take = (name) => {
    const evaluations = evaluationsOf(name, environments).filter((one) => left.delete(one));
    left.delete(name);
    return { name, title: titleOf(name), evaluations };
  };
  // Environments of a mix come first, since metrics below "reward/" may be those of an environment
  // of that name.
  const mixed = environments.map((environment) => ({
    title: `How does it do in ${environment}?`,
    charts: OF_EACH_ENVIRONMENT.map((name) => `${environment}/${name}`)
      .filter((name) => left.has(name))
      .map((name) => ({ ...take(name), title: titleOf(name.slice(environment.length + 1)) })),
  }));
  const ages = [...left].filter((name) => /^staleness\/\d+$/.test(name));
  const phases = {
    time: TIME_PHASES.map((phase) => `time/${phase}`),
    staleness: ages.sort((a, b) => a.localeCompare(b, "en", { numeric: true })),
  };
  const groups = Object.entries(GROUPS).map(([title, wanted]) => {
    const charts = [];
    for (const pattern of wanted.split(" ")) {
      if (pattern in phases) {
        const found = phases[pattern].filter((name) => left.delete(name));
        if (found.length) charts.push({ name: pattern, title: titleOf(pattern), phases: found });
      } else if (pattern.endsWith("*")) {
        const found = [...left].filter((name) => name.startsWith(pattern.slice(0, -1)));
        charts.push(...found.sort().map(take));
      } else if (left.has(pattern) && !isMinor(pattern)) charts.push(take(pattern));
    }
    return { title, charts };
  });
  groups.splice(1, 0, ...mixed);
  const checked = (name) =>
    name.replace(/^eval\/(?:([^/]+)\/)?(?:greedy|sampled)\//, (_, part) =>
      part ? `${part}/` : "",
    );
  const rest = [...left]
    .sort()
    .filter((name) => checked(name) === name || !left.has(checked(name)))
    .map(take);
  return { groups: groups.filter((group) => group.charts.length), rest };
}

// ---- Each kind of work in a step has a word and a colour.

const TIMES = {
  generate: ["generating", "generate"],
  engine: ["engine", "generate"],
  rollout: ["playing", "generate"],
  play: ["playing", "generate"],
  environment: ["environment", "environment"],
  agent: ["agent", "environment"],
  tool: ["tools", "tool"],
  tools: ["tools", "tool"],
  reward: ["reward", "reward"],
  wait: ["waiting", "wait"],
  idle: ["idle", "wait"],
  update: ["update", "update"],
  log_probs: ["log-probs", "update-2"],
  checkpoint: ["checkpoint", "other"],
  log: ["writing", "other-2"],
  evaluate: ["evaluation", "evaluate"],
};

export function timeWord(name) {
  return TIMES[name]?.[0] ?? name.replaceAll("_", " ");
}

export function timeColor(name) {
  return cssColor(`--time-${TIMES[name]?.[1] ?? "other"}`);
}
