// This module draws what is around the curves: the run's results, findings, settings and log.

import { runExportAddress } from "./api.js";
import { button, fill, h, link } from "./dom.js";
import { num, percent, plural, seconds, words } from "./format.js";
import { icon } from "./icons.js";
import { notesLine } from "./notes.js";
import { visible } from "./visible.js";

export function drawHead(head, run, state, app) {
  const last = run.last ?? {};
  const steps = run.total_steps;
  const done = steps ? Math.min(1, run.step / steps) : null;
  const left =
    steps && state?.is_live && last["time/step"] ? (steps - run.step) * last["time/step"] : null;
  const { headline: main, best_checkpoint: best } = run;
  const tile = (label, value, note, extra, name) =>
    h(
      "div",
      { class: `tile ${name ? "is-wide" : ""}`, data: { tile: name ?? label } },
      h("span", { class: "tile-label" }, label),
      h("strong", { class: "num" }, value),
      h("span", { class: "tile-note num" }, note ?? ""),
      extra ?? null,
    );
  fill(
    head,
    h(
      "div",
      { class: "head-title" },
      h("h1", null, run.name ?? run.key),
      h("span", { class: "faint" }, run.environment === run.name ? "" : (run.environment ?? "")),
      h("span", { class: "mono path" }, run.path ?? ""),
      link(
        runExportAddress(run.key),
        {
          class: "button",
          title: "Save the whole run as one HTML file",
          download: "",
          data: { action: "export-run" },
        },
        icon("save"),
        "Export",
      ),
    ),
    state ? notesLine(app, state) : null,
    h(
      "div",
      { class: "tiles" },
      main ? tile(main.metric, main.number, main.about, null, "headline") : null,
      best
        ? tile("best checkpoint", `step ${num(best.step)}`, best.about, null, "best-checkpoint")
        : null,
      tile(
        "last training step",
        num(last.reward),
        last.success === undefined ? "reward" : `reward, success ${percent(last.success)}`,
      ),
      tile(
        "step",
        steps ? `${num(run.step)} of ${num(steps)}` : num(run.step),
        left === null ? "" : `about ${seconds(left)} left`,
        done === null
          ? null
          : h("span", { class: "progress" }, h("span", { style: { width: `${100 * done}%` } })),
      ),
      tile(
        "episodes",
        num(run.num_episodes),
        last.turns === undefined ? "" : `${num(last.turns, 2)} turns each`,
      ),
      tile(
        "speed",
        last["time/step"] === undefined ? "–" : seconds(last["time/step"]),
        last["time/tokens_per_second"] === undefined
          ? ""
          : `a step, ${num(last["time/tokens_per_second"], 3)} tokens/s`,
      ),
    ),
  );
}

// Lists what cannot be read of a run, with the reasons; the rest is shown as usual.
function unreadable(problems) {
  return h(
    "div",
    { class: "problem", role: "note" },
    icon("alert"),
    h(
      "pre",
      { class: "words mono" },
      `Some files of this run cannot be read.\n${problems.join("\n")}`,
    ),
  );
}

export function drawDoctor(place, { key, findings, problems }, pinned, choose, isOneOfMany) {
  const note = problems?.length ? unreadable(problems) : null;
  if (!findings?.length) {
    fill(place, note);
    return;
  }
  const open = place.querySelector("details")?.open ?? (findings.length <= 3 && !isOneOfMany);
  fill(
    place,
    note,
    h(
      "details",
      { class: "card", open },
      h(
        "summary",
        null,
        icon("alert"),
        h(
          "strong",
          null,
          `The doctor has ${plural(findings.length, "finding")}${isOneOfMany ? ` for ${key}` : ""}`,
        ),
        h(
          "span",
          { class: "faint" },
          findings
            .map((one) => one.name)
            .filter((name, i, all) => all.indexOf(name) === i)
            .join(", "),
        ),
      ),
      h(
        "ol",
        null,
        findings.map((finding) =>
          h(
            "li",
            { class: finding.step === pinned ? "is-pinned" : "" },
            button(`step ${num(finding.step)}`, {
              class: "chip is-warn num",
              title: "Show this step in the curves",
              onclick: () => choose(finding.step),
            }),
            h(
              "div",
              null,
              h("strong", null, finding.name),
              " ",
              h("span", null, finding.text),
              h("p", { class: "fix" }, h("span", null, "Try: "), finding.fix),
            ),
          ),
        ),
      ),
    ),
  );
}

// Draws the settings and the end of the log.
export function drawMore(place, run) {
  const was = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const fold = (name, title, content) =>
    content &&
    h(
      "details",
      { class: "card fold", data: { name }, open: was.has(name) },
      h("summary", null, title),
      content,
    );
  const config = run.config ?? {};
  fill(
    place,
    Object.keys(config).length ? fold("config", `Settings of ${run.key}`, settings(config)) : null,
    run.log_tail
      ? fold("log", "End of the log", h("pre", { class: "log mono" }, visible(run.log_tail)))
      : null,
  );
}

const isSection = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length;

function settings(config) {
  const sections = Object.entries(config).filter(([, value]) => isSection(value));
  const others = Object.entries(config).filter(([, value]) => !isSection(value));
  const list = (title, fields) =>
    h(
      "section",
      null,
      h("h3", null, title),
      h(
        "dl",
        null,
        fields.map(([name, value]) => [
          h("dt", null, words(name)),
          h("dd", { class: "mono" }, visible(written(value))),
        ]),
      ),
    );
  return h(
    "div",
    { class: "settings" },
    sections.map(([name, fields]) => list(name, Object.entries(fields))),
    others.length ? list("outside of sections", others) : null,
  );
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
