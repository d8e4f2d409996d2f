// The bar at the top shows which run and which view is open, and whether the run is live.

import { get, runPath } from "./api.js";
import { fill, h, html, icon, refill } from "./dom.js";
import { numFailed } from "./filters.js";
import { num, plural, visible } from "./format.js";
import { address, runsAddress, TABS, tabAddress } from "./route.js";

const NAMES = { learn: "Learn", episodes: "Episodes", tokens: "Tokens", time: "Time" };
const QUESTIONS = {
  learn: "How does it learn?",
  episodes: "What did the model say?",
  tokens: "What was trained on?",
  time: "Where did the time go?",
};

// The tab under which a view without one of its own is.
const SAME_TAB = { task: "episodes" };

export function drawTop(top, app) {
  const isTable = app.route.view === "runs";
  // An open menu stays as it is; the next change draws it again.
  if (top.querySelector(".menu")) return;
  const run = app.run() ?? app.run(app.lastRun);
  refill(
    top,
    html`<a class="brand" href=${runsAddress()} aria-label="turnwise: all runs"
      title="All runs (r)">
      <img src="/assets/icon.svg" alt="" /><span>turnwise</span>
    </a>`,
    app.runs.length > 0 && runChoice(app, run),
    html`<nav class="tabs" aria-label="Views">
      <a class="tab-runs" href=${runsAddress()} title="Which runs are there?"
        aria-current=${isTable ? "page" : null} data-name="runs-table">
        Runs<kbd aria-hidden="true">r</kbd>
      </a>
      ${TABS.map(
        (name, place) => html`<a href=${tabAddress(app, name)} title=${QUESTIONS[name]}
          aria-current=${name === (SAME_TAB[app.route.view] ?? app.route.view) ? "page" : null}
          data-name=${name}>
          ${NAMES[name]}<kbd aria-hidden="true">${place + 1}</kbd>
        </a>`,
      )}
    </nav>`,
    html`<div class="tools">
      ${live(app, isTable ? null : run)}
      <button class="icon-button" title="Dark or light (t)"
        aria-label="Switch between dark and light" data-name="theme" onclick=${switchTheme}>
        ${icon(currentTheme() === "dark" ? "sun" : "moon")}
      </button>
      <button class="icon-button" title="Keys and help (?)" aria-label="Help"
        data-name="help" onclick=${showHelp}>
        ?
      </button>
    </div>`,
  );
}

function live(app, run) {
  if (app.connection === "lost") {
    return html`<span class="live" data-state="lost" title="Reconnecting automatically">
      <span class="dot" />server gone<span class="long">, trying again</span>
    </span>`;
  }
  if (!run) return null;
  const steps = `step ${stepsWords(run)}`;
  return html`<span class="live" data-state=${run.is_live ? "live" : "still"}>
    <span class="dot ${dotClass(run)}" />${stateWord(run)}<span class="long num">· ${steps}</span>
  </span>`;
}

export function stepsWords(run, between = " of ") {
  return run.total_steps ? num(run.step) + between + num(run.total_steps) : num(run.step);
}

function runChoice(app, run) {
  const choice = h(".run-choice");
  const close = (event) => {
    if (event?.type === "pointerdown" && choice.contains(event.target)) return;
    if (event?.type === "keydown" && event.key !== "Escape") return;
    if (event?.type === "keydown") event.preventDefault();
    choice.querySelector(".menu")?.remove();
    opener.setAttribute("aria-expanded", "false");
    removeEventListener("pointerdown", close);
    removeEventListener("keydown", close, true);
    if (event?.type === "keydown") opener.focus();
  };
  const open = () => {
    if (choice.querySelector(".menu")) return close();
    choice.append(menu(app, close));
    opener.setAttribute("aria-expanded", "true");
    choice.querySelector("a")?.focus();
    addEventListener("pointerdown", close);
    addEventListener("keydown", close, true);
  };
  const opener = html`<button aria-haspopup="true" aria-expanded="false" data-name="runs"
    title=${run?.path ?? ""} onclick=${open}>
    <span class="dot ${run?.is_live ? "is-live" : ""}" />
    <span>${run?.name ?? run?.key ?? "choose a run"}</span>
  </button>`;
  choice.append(opener);
  return choice;
}

function menu(app, close) {
  const { run, view } = app.route;
  const same = view === "runs" ? "learn" : (SAME_TAB[view] ?? view);
  const item = (one) => html`<a href=${address({ run: one.key, view: same })}
    aria-current=${one.key === run ? "true" : null} onclick=${() => close()}
    title=${[one.path, ...one.problems].join("\n")}>
    <span class="dot ${dotClass(one)}" />
    <span class="name">
      ${one.key}<small>${one.problems.length ? "partly unreadable" : one.environment}</small>
    </span>
    <span class="num faint">${stepsWords(one, "/")}</span>
  </a>`;
  return html`<div class="menu">
    ${app.runs.filter((one) => !one.notes.archived || one.key === run).map(item)}
    <a class="menu-all" href=${runsAddress()} onclick=${() => close()}>
      <span /><span class="name">All runs: sort, filter, compare</span>
    </a>
  </div>`;
}

// A run whose status is running, but which is not, was ended from outside.
export function stateWord(run) {
  if (run.is_live) return "live";
  if (run.problems.length && !run.status) return "cannot be read";
  return run.status === "running"
    ? "ended without a status"
    : run.status.split(":")[0] || "unknown";
}

// The class of the dot before a run's name.
export function dotClass(run) {
  if (run.is_live) return "is-live";
  const hasFailed = run.status === "running" || run.status.startsWith("stopped");
  return run.problems.length || hasFailed ? "is-failed" : "";
}

// ---- The help dialog is in index.html.

const help = document.getElementById("help");
const closeHelp = () => help.close();

export function showHelp() {
  addEventListener("hashchange", closeHelp, { once: true });
  help.showModal();
}

help.querySelector("button").addEventListener("click", closeHelp);
help.addEventListener("click", (event) => event.target === help && closeHelp());
help.addEventListener("keydown", (event) => {
  if (event.key !== "?") return;
  event.preventDefault();
  closeHelp();
});

// ---- Of a run that stopped, the page shows the reason and a link to the episodes that failed.

const VIEWS = ["learn", "episodes"];
const STOPPED = /^stopped:?\s*/;

export async function drawFailure(place, app) {
  const run = app.run();
  const isWanted = run && STOPPED.test(run.status) && VIEWS.includes(app.route.view);
  const wanted = isWanted ? `${run.key} ${run.status} ${run.num_episodes}` : "";
  place.classList.toggle("hidden", !isWanted);
  if (place.dataset.wanted === wanted) return;
  place.dataset.wanted = wanted;
  if (!isWanted) return void fill(place);
  draw(place, run, 0);
  const { statuses = {} } = await get(runPath(run.key)).catch(() => ({}));
  if (place.dataset.wanted !== wanted) return;
  draw(place, run, numFailed(statuses));
}

function draw(place, run, failed) {
  const [first, ...rest] = run.status.replace(STOPPED, "").split("\n");
  const isOpen = place.querySelector("details")?.open ?? false;
  fill(
    place,
    icon("alert"),
    html`<div class="failure-words">
      <strong>${"This run stopped: "}</strong><span>${visible(first)}</span>
      ${
        rest.length > 0 &&
        html`<details open=${isOpen}>
          <summary>Traceback</summary>
          <pre class="words mono">${visible(rest.join("\n"))}</pre>
        </details>`
      }
    </div>`,
    failed > 0 &&
      html`<a class="button" data-action="failed"
        href=${address({ run: run.key, view: "episodes", params: { status: "error" } })}>
        ${plural(failed, "failed episode")}
      </a>`,
  );
}

// ---- The theme is dark or light as the system prefers, until the user chooses.

const system = matchMedia("(prefers-color-scheme: dark)");
let isChosen = document.documentElement.dataset.chosen === "yes"; // by theme_early.js

export function currentTheme() {
  return document.documentElement.dataset.theme; // theme_early.js has set it
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("turnwise:theme"));
}

export function switchTheme() {
  isChosen = true;
  setTheme(currentTheme() === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("turnwise.theme", currentTheme());
  } catch {
    /* the choice lasts until the page is closed */
  }
}

system.addEventListener("change", () => {
  if (!isChosen) setTheme(system.matches ? "dark" : "light");
});
