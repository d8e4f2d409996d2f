// This module reads from the address which runs are drawn, on which axis, and what is hidden.

import { axisOf } from "./axis.js";

const MOST_RUNS = 24;

export function readState(route, app) {
  const { params } = route;
  const list = (name) => (params.get(name) ?? "").split(",").filter(Boolean);
  const others = [...new Set(list("with"))].filter((key) => key !== route.run && app.run(key));
  const step = Number(params.get("step") || NaN);
  const range = params.get("x")?.match(/^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/);
  return {
    keys: [route.run, ...others].slice(0, MOST_RUNS),
    smooth: Math.min(0.99, Math.max(0, Number(params.get("smooth") ?? 0) || 0)),
    step: Number.isInteger(step) ? step : null,
    range: range ? range.slice(1).map(Number) : null,
    axis: axisOf(params.get("axis")),
    isLog: params.get("y") === "log",
    showsAll: params.get("all") === "1",
    showsAllSettings: params.get("settings") === "all",
    hiddenKinds: new Set(list("hide")),
    hiddenRuns: new Set(list("hide_runs")),
  };
}

// Returns a set with one element added or removed, in the form of the address.
export function toggled(set, name) {
  const next = new Set(set);
  if (!next.delete(name)) next.add(name);
  return [...next].join(",");
}
