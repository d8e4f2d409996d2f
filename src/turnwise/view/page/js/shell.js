// The bar at the top shows which run and which view is open, and whether the run is live.

import { get, runPath } from "./api.js";
import { fill, h, html, icon } from "./dom.js";
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

export function drawTop(top, app) {
  const isTable = app.route.view === "runs";
  // An open menu stays as it is; the next change draws it again.
  if (top.querySelector(".menu")) return;
  const focused = top.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  const run = app.run() ?? app.run(app.lastRun);
  fill(
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
      ${TABS.map((name, place) => tab(app, name, place))}
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
  if (focused) top.querySelector(`[data-name="${focused}"]`)?.focus();
}

function tab(app, name, place) {
  const isHere = app.route.view === name || (name === "episodes" && isTask(app));
  return html`<a href=${tabAddress(app, name)} title=${QUESTIONS[name]}
    aria-current=${isHere ? "page" : null} data-name=${name}>
    ${NAMES[name]}<kbd aria-hidden="true">${place + 1}</kbd>
  </a>`;
}

function live(app, run) {
  if (app.connection === "lost") {
    return html`<span class="live" data-state="lost" title="Reconnecting automatically">
      <span class="dot" />server gone<span class="long">, trying again</span>
    </span>`;
  }
  if (!run) return null;
  const steps = `step ${stepsWords(run)}`;
  const dot = run.is_live ? "is-live" : hasFailed(run) ? "is-failed" : "";
  return html`<span class="live" data-state=${run.is_live ? "live" : "still"}>
    <span class="dot ${dot}" />${stateWord(run)}<span class="long num">· ${steps}</span>
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
  return html`<div class="menu">
    ${app.runs
      .filter((one) => !one.notes.archived || one.key === app.route.run)
      .map((one) => menuItem(app, one, close))}
    <a class="menu-all" href=${runsAddress()} onclick=${() => close()}>
      <span /><span class="name">All runs: sort, filter, compare</span>
    </a>
  </div>`;
}

const SAME_VIEW = { task: "episodes", seed: "episodes", runs: "learn" };

function menuItem(app, one, close) {
  return html`<a href=${address({ run: one.key, view: SAME_VIEW[app.route.view] ?? app.route.view })}
    aria-current=${one.key === app.route.run ? "true" : null} onclick=${() => close()}
    title=${[one.path, ...(one.problems ?? [])].join("\n")}>
    <span class="dot ${one.is_live ? "is-live" : hasFailed(one) ? "is-failed" : ""}" />
    <span class="name">
      ${one.key}
      <small>${one.problems?.length ? "partly unreadable" : (one.environment ?? "")}</small>
    </span>
    <span class="num faint">${stepsWords(one, "/")}</span>
  </a>`;
}

function isTask(app) {
  return ["task", "seed"].includes(app.route.view);
}

// A run whose status is running, but which is not, was ended from outside.
export function stateWord(run) {
  if (run.is_live) return "live";
  if (run.problems?.length && !run.status) return "cannot be read";
  return run.status === "running"
    ? "ended without a status"
    : run.status.split(":")[0] || "unknown";
}

export function hasFailed(run) {
  if (run.problems?.length) return true;
  return !run.is_live && (run.status === "running" || run.status.startsWith("stopped"));
}

// ---- The help dialog lists the keys and explains the views.

const KEYS = {
  Everywhere: {
    r: "all runs",
    "1 – 4": "learn, episodes, tokens, time",
    "/": "search the conversations",
    t: "dark or light",
    "?": "this help",
    Esc: "close, or leave a field",
  },
  Episodes: {
    "j k": "next, previous episode",
    Enter: "tokens of the episode",
    b: "next branch, of an agent that has some",
    s: "this task at other steps",
    e: "export as one HTML file",
  },
  Tokens: {
    "← →": "previous, next token",
    "↑ ↓": "the line above, below",
    "[ ]": "previous, next turn",
    b: "next branch",
    c: "colour by the next column",
    f: "fold prompt tokens",
    "j k": "next, previous episode",
  },
  "Curves and time": {
    drag: "zoom in",
    "double click": "zoom out",
    click: "choose a step, or an episode",
    "← →": "previous, next step",
  },
};

function keyNames(key) {
  const isWord = (one) => /^[a-z]{2,}$/.test(one) || one === "–";
  return key.split(" ").map((one) => (isWord(one) ? ` ${one} ` : html`<kbd>${one}</kbd>`));
}

export function showHelp() {
  const sections = Object.entries(KEYS).map(([title, keys]) => {
    const rows = Object.entries(keys);
    return html`<section>
      <h3>${title}</h3>
      <dl>${rows.map(([key, what]) => html`<dt>${keyNames(key)}</dt><dd>${what}</dd>`)}</dl>
    </section>`;
  });
  const dialog = html`<dialog class="help" aria-label="Keys" onclose=${() => dialog.remove()}
    onclick=${(event) => event.target === dialog && dialog.close()}>
    <div class="help-body">
      <header>
        <h2>Keys</h2>
        <button class="icon-button" aria-label="Close" onclick=${() => dialog.close()}>
          ${icon("close")}
        </button>
      </header>
      <div class="help-columns">${sections}</div>
      <p class="faint" style=${{ "margin-top": "18px" }}>
        The URL contains the current view: copy it to share the view. The viewer never changes a
        run; your tags and notes are saved in its folder, in notes.json.
      </p>
    </div>
  </dialog>`;
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "?") {
      event.preventDefault();
      dialog.close();
    }
  });
  addEventListener("hashchange", () => dialog.close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
}

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

const KEY = "turnwise.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
let isChosen = false;
try {
  isChosen = localStorage.getItem(KEY) !== null;
} catch {
  /* the system's preference applies */
}

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
    localStorage.setItem(KEY, currentTheme());
  } catch {
    /* the choice lasts until the page is closed */
  }
}

system.addEventListener("change", () => {
  if (!isChosen) setTheme(system.matches ? "dark" : "light");
});
