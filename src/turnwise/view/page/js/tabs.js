// The tabs of the four views lead to the same episode and step in another view.

import { address } from "./route.js";

export const TABS = ["learn", "episodes", "tokens", "time"];

export function tabAddress(app, name) {
  const run = app.route.run ?? app.lastRun ?? app.runs[0]?.key ?? null;
  const seen = app.seen.get(run) ?? {};
  if (name === "episodes")
    return address({ run, view: name, item: seen.id ?? null, params: seen.filters });
  if (name === "tokens") return address({ run, view: name, item: seen.id ?? null });
  if (name === "time") return address({ run, view: name, item: seen.step ?? null });
  return address({ run, view: name, params: seen.learn });
}

export function remember(app, route) {
  app.lastRun = route.run;
  const seen = app.seen.get(route.run) ?? {};
  if (["episodes", "tokens"].includes(route.view) && route.item) {
    seen.id = route.item;
    seen.step = route.item.match(/-(\d+)-\d+$/)?.[1] ?? null;
  }
  if (route.view === "time" && route.item) seen.step = route.item;
  if (route.view === "learn" && route.params.get("step")) seen.step = route.params.get("step");
  if (route.view === "episodes") seen.filters = route.params;
  if (route.view === "learn") seen.learn = route.params;
  app.seen.set(route.run, seen);
}
