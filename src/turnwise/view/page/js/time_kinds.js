// Each kind of work in a step has a word and a colour.

import { cssColor } from "./dom.js";

const WORDS = {
  generate: "generating",
  environment: "environment",
  agent: "agent",
  tool: "tools",
  tools: "tools",
  reward: "reward",
  wait: "waiting",
  idle: "idle",
  update: "update",
  log_probs: "log-probs",
  rollout: "playing",
  play: "playing",
  checkpoint: "checkpoint",
  log: "writing",
  evaluate: "evaluation",
};

export function timeWord(name) {
  return WORDS[name] ?? name.replaceAll("_", " ");
}

const COLORS = {
  generate: "generate",
  engine: "generate",
  rollout: "generate",
  play: "generate",
  environment: "environment",
  agent: "environment",
  tool: "tool",
  tools: "tool",
  reward: "reward",
  wait: "wait",
  idle: "wait",
  update: "update",
  log_probs: "update-2",
  checkpoint: "other",
  log: "other-2",
  evaluate: "evaluate",
};

export function timeColor(name) {
  return cssColor(`--time-${COLORS[name] ?? "other"}`);
}
