// The bar at the top shows which run and which view is open, and whether the run is live.

import { button, fill, h, link } from "./dom.js";
import { num } from "./format.js";
import { showHelp } from "./help.js";
import { icon } from "./icons.js";
import { address, runsAddress } from "./route.js";
import { TABS, tabAddress } from "./tabs.js";
import { currentTheme, switchTheme } from "./theme.js";

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
    link(
      runsAddress(),
      { class: "brand", "aria-label": "turnwise: all runs", title: "All runs (r)" },
      h("img", { src: "/assets/icon.svg", alt: "" }),
      h("span", null, "turnwise"),
    ),
    app.runs.length ? runChoice(app, run) : null,
    h(
      "nav",
      { class: "tabs", "aria-label": "Views" },
      link(
        runsAddress(),
        {
          class: "tab-runs",
          title: "Which runs are there?",
          "aria-current": isTable ? "page" : null,
          data: { name: "runs-table" },
        },
        "Runs",
        h("kbd", { "aria-hidden": "true" }, "r"),
      ),
      TABS.map((name, place) => tab(app, name, place)),
    ),
    h(
      "div",
      { class: "tools" },
      live(app, isTable ? null : run),
      button(icon(currentTheme() === "dark" ? "sun" : "moon"), {
        class: "icon-button",
        title: "Dark or light (t)",
        "aria-label": "Switch between dark and light",
        data: { name: "theme" },
        onclick: switchTheme,
      }),
      button("?", {
        class: "icon-button",
        title: "Keys and help (?)",
        "aria-label": "Help",
        data: { name: "help" },
        onclick: showHelp,
      }),
    ),
  );
  if (focused) top.querySelector(`[data-name="${focused}"]`)?.focus();
}

function tab(app, name, place) {
  const isHere = app.route.view === name || (name === "episodes" && isTask(app));
  return link(
    tabAddress(app, name),
    { title: QUESTIONS[name], "aria-current": isHere ? "page" : null, data: { name } },
    NAMES[name],
    h("kbd", { "aria-hidden": "true" }, place + 1),
  );
}

function live(app, run) {
  if (app.connection === "lost") {
    return h(
      "span",
      { class: "live", data: { state: "lost" }, title: "Reconnecting automatically" },
      h("span", { class: "dot" }),
      "server gone",
      h("span", { class: "long" }, ", trying again"),
    );
  }
  if (!run) return null;
  const steps = run.total_steps
    ? `step ${num(run.step)} of ${num(run.total_steps)}`
    : `step ${num(run.step)}`;
  if (run.is_live)
    return h(
      "span",
      { class: "live", data: { state: "live" } },
      h("span", { class: "dot is-live" }),
      "live",
      h("span", { class: "long num" }, `· ${steps}`),
    );
  return h(
    "span",
    { class: "live", data: { state: "still" } },
    h("span", { class: `dot ${hasFailed(run) ? "is-failed" : ""}` }),
    stateWord(run),
    h("span", { class: "long num" }, `· ${steps}`),
  );
}

function runChoice(app, run) {
  const choice = h("div", { class: "run-choice" });
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
  const opener = button(
    h("span", { class: `dot ${run?.is_live ? "is-live" : ""}` }),
    {
      "aria-haspopup": "true",
      "aria-expanded": "false",
      data: { name: "runs" },
      title: run?.path ?? "",
      onclick: open,
    },
    h("span", null, run?.name ?? run?.key ?? "choose a run"),
  );
  choice.append(opener);
  return choice;
}

function menu(app, close) {
  return h(
    "div",
    { class: "menu" },
    app.runs
      .filter((one) => !one.notes.archived || one.key === app.route.run)
      .map((one) => menuItem(app, one, close)),
    link(
      runsAddress(),
      { class: "menu-all", onclick: () => close() },
      h("span"),
      h("span", { class: "name" }, "All runs: sort, filter, compare"),
    ),
  );
}

const SAME_VIEW = { task: "episodes", seed: "episodes", runs: "learn" };

function menuItem(app, one, close) {
  return link(
    address({ run: one.key, view: SAME_VIEW[app.route.view] ?? app.route.view }),
    {
      "aria-current": one.key === app.route.run ? "true" : null,
      onclick: () => close(),
      title: [one.path, ...(one.problems ?? [])].join("\n"),
    },
    h("span", { class: `dot ${one.is_live ? "is-live" : hasFailed(one) ? "is-failed" : ""}` }),
    h(
      "span",
      { class: "name" },
      one.key,
      h("small", null, one.problems?.length ? "partly unreadable" : (one.environment ?? "")),
    ),
    h(
      "span",
      { class: "num faint" },
      one.total_steps ? `${num(one.step)}/${num(one.total_steps)}` : num(one.step),
    ),
  );
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
