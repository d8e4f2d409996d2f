// The address holds what is shown, after `#`, so that a link shows the same to somebody else.
//   #/runs?...
//   #/run/KEY/learn?...   #/run/KEY/episodes/ID?...   #/run/KEY/task/TASK?...
//   #/run/KEY/tokens/ID?...   #/run/KEY/time/STEP?...

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decode);
  const params = new URLSearchParams(query);
  if (parts[0] === "runs") return { run: null, view: "runs", item: null, params };
  if (parts[0] !== "run" || !parts[1]) return { run: null, view: "learn", item: null, params };
  return { run: parts[1], view: parts[2] ?? "learn", item: parts[3] ?? null, params };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function address({ run, view = "learn", item = null, params = null }) {
  if (view === "runs") return runsAddress(params);
  if (!run) return "#/";
  const rest = item === null ? "" : `/${encodeURIComponent(item)}`;
  return `#/run/${encodeURIComponent(run)}/${view}${rest}${write(params)}`;
}

// Returns the address of the table of runs, which is not a view of one run.
export function runsAddress(params = null) {
  return `#/runs${write(params)}`;
}

function write(params) {
  const entries = params instanceof URLSearchParams ? [...params] : Object.entries(params ?? {});
  const query = new URLSearchParams(entries.filter(([, value]) => isGiven(value))).toString();
  return query && `?${query.replaceAll("%2C", ",").replaceAll("%7E", "~")}`;
}

const isGiven = (value) => value !== null && value !== undefined && value !== "";

// Goes to a route; with `replace`, without an entry for the back button, as for a cursor that moves.
// The view changes at once: after `location.hash = ...` a key pressed before the event would reach the
// old view.
export function go(target, { replace = false } = {}) {
  const hash = typeof target === "string" ? target : address(target);
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  dispatchEvent(new Event("turnwise:route"));
}

export function withParams(route, changes) {
  const params = new URLSearchParams(route.params);
  for (const [name, value] of Object.entries(changes)) {
    if (isGiven(value)) params.set(name, value);
    else params.delete(name);
  }
  return { ...route, params };
}

// ---- The tabs of the four views lead to the same episode and step in another view.

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
