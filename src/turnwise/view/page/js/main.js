// The page shows the view that the address names, handles keys, and updates when a run changes.

import { forget, get, listen } from "./api.js";
import { empty, failed, fill, html } from "./dom.js";
import { episodesView } from "./episodes.js";
import { learnView } from "./learn.js";
import { go, parse, remember, runsAddress, TABS, tabAddress } from "./route.js";
import { runsView } from "./runs.js";
import { drawFailure, drawTop, showHelp, switchTheme } from "./shell.js";
import { taskView } from "./task.js";
import { timeView } from "./time.js";
import { tokensView } from "./tokens.js";

const VIEWS = {
  runs: runsView,
  learn: learnView,
  episodes: episodesView,
  task: taskView,
  tokens: tokensView,
  time: timeView,
};

const host = document.getElementById("view");
const top = document.getElementById("top");
const failure = document.getElementById("failure");

// This state outlives a change of view: the runs, and the episode that was last open in each.
const app = {
  runs: [],
  places: [],
  connection: "open",
  route: parse(location.hash),
  seen: new Map(),
  lastRun: null,
  writeToken: null,
  run,
  redraw,
};

let view = null;
let viewName = null;
let begun = false;

function run(key = app.route.run) {
  return app.runs.find((one) => one.key === key) ?? null;
}

function show() {
  if (!begun) return;
  const route = parse(location.hash);
  app.route = route;
  const isTable = route.view === "runs";
  if (route.run === null && app.runs.length && !isTable) {
    const first = newest();
    const start = first ? { run: first.key, view: "learn" } : runsAddress();
    return go(start, { replace: true });
  }
  if (!app.runs.length)
    return leave(
      empty(
        `Waiting for the first run in ${app.places.join(" and ")}`,
        "It appears here automatically. To start one, in another terminal:",
        html`<code>turnwise train</code>`,
      ),
    );
  if (run() === null && !isTable)
    return leave(
      failed(new Error(`There is no run "${route.run}" here. Choose one from the menu.`)),
    );
  const factory = Object.hasOwn(VIEWS, route.view) ? VIEWS[route.view] : null;
  if (!factory) return leave(failed(new Error(`There is no view "${route.view}".`)));
  if (!isTable) remember(app, route);
  if (viewName !== route.view) {
    leave();
    view = factory(host, app);
    viewName = route.view;
  }
  document.title = isTable ? "Runs · turnwise" : `${route.run} · ${route.view} · turnwise`;
  drawFrame();
  view.show(route);
}

// Returns the newest run that is not archived; none if all are.
function newest() {
  const runs = app.runs.filter((one) => !one.notes.archived);
  return (
    runs.find((one) => one.is_live) ?? runs.sort((a, b) => (a.updated < b.updated ? 1 : -1))[0]
  );
}

// Shows a user's notes on a run as soon as they are saved.
function redraw() {
  drawTop(top, app);
  view?.show(app.route);
}

function drawFrame() {
  drawTop(top, app);
  drawFailure(failure, app);
}

function leave(instead = null) {
  view?.destroy?.();
  view = viewName = null;
  fill(host, instead);
  drawFrame();
}

async function refreshRuns() {
  const found = await get("/runs", null, { fresh: true });
  app.runs = found.runs;
  app.places = found.places ?? [];
  app.writeToken = found.write_token;
}

let known = new Map();
const mark = (one) =>
  JSON.stringify([one.step, one.status, one.is_live, one.num_episodes, one.problems, one.notes]);

async function onChange(runs) {
  const first = known.size === 0;
  let changed = runs.filter((one) => known.get(one.key) !== mark(one)).map((one) => one.key);
  if (!changed.length) changed = runs.map((one) => one.key);
  known = new Map(runs.map((one) => [one.key, mark(one)]));
  if (!begun || (first && runs.every((one) => run(one.key) && mark(run(one.key)) === mark(one))))
    return;
  changed.forEach(forget);
  try {
    await refreshRuns();
  } catch {
    return;
  }
  if (view === null) return show();
  drawFrame();
  view.live?.(changed);
}

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target;
  if (target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (view?.key?.(event)) return event.preventDefault();
  if (event.key >= "1" && event.key <= "4") go(tabAddress(app, TABS[Number(event.key) - 1]));
  else if (event.key === "r") go(runsAddress());
  else if (event.key === "?") showHelp();
  else if (event.key === "t") switchTheme();
  else if (event.key === "/") {
    app.wantsSearch = true;
    go(tabAddress(app, "episodes"));
  } else return;
  event.preventDefault();
}

async function begin() {
  try {
    await refreshRuns();
    begun = true;
    show();
  } catch (error) {
    fill(host, failed(error, begin));
  }
}

addEventListener("hashchange", show);
addEventListener("turnwise:route", show);
addEventListener("turnwise:theme", () => {
  drawTop(top, app);
  view?.theme?.();
});
addEventListener("keydown", onKey);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  host.focus();
});
listen({
  changed: onChange,
  state: (state) => {
    if (state === app.connection) return;
    app.connection = state;
    drawTop(top, app);
  },
});
begin();
