// What stands around the curves: how the run stands, the doctor, the settings, the log.

import { button, fill, h } from "./dom.js";
import { num, percent, plural, seconds, words } from "./format.js";
import { icon } from "./icons.js";
import { visible } from "./visible.js";

export function drawHead(head, run, state) {
  const last = run.last ?? {};
  const steps = run.total_steps;
  const done = steps ? Math.min(1, run.step / steps) : null;
  const left =
    steps && state?.is_live && last["time/step"] ? (steps - run.step) * last["time/step"] : null;
  const tile = (label, value, note, extra) =>
    h(
      "div",
      { class: "tile" },
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
    ),
    h(
      "div",
      { class: "tiles" },
      tile(
        "reward",
        num(last.reward),
        run.best_reward === null || run.best_reward === undefined
          ? ""
          : `best ${num(run.best_reward)}`,
      ),
      tile(
        "success",
        percent(last.success),
        last["eval/greedy/success"] === undefined
          ? ""
          : `greedy, held out ${percent(last["eval/greedy/success"])}`,
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

// What cannot be read of a run, with the reasons; the rest is shown as ever.
function unreadable(problems) {
  return h(
    "div",
    { class: "problem", role: "note" },
    icon("alert"),
    h("pre", { class: "words mono" }, `This run cannot be read whole.\n${problems.join("\n")}`),
  );
}

export function drawDoctor(place, { findings, problems }, pinned, choose) {
  const note = problems?.length ? unreadable(problems) : null;
  if (!findings?.length) {
    fill(place, note);
    return;
  }
  const open = place.querySelector("details")?.open ?? findings.length <= 3;
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
        h("strong", null, `The doctor says ${plural(findings.length, "thing")}`),
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
              h("p", { class: "cure" }, h("span", null, "Try: "), finding.cure),
            ),
          ),
        ),
      ),
    ),
  );
}

// The settings, what differs between the runs that are shown, and the end of the log.
export function drawMore(place, run, runs) {
  const was = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const fold = (name, title, content) =>
    content &&
    h(
      "details",
      { class: "card fold", data: { name }, open: was.has(name) || name === "differs" },
      h("summary", null, title),
      content,
    );
  fill(
    place,
    runs.length > 1 ? fold("differs", "What differs between these runs", differences(runs)) : null,
    Object.keys(run.config ?? {}).length ? fold("config", "Settings", settings(run.config)) : null,
    run.log_tail
      ? fold("log", "The end of the log", h("pre", { class: "log mono" }, visible(run.log_tail)))
      : null,
  );
}

function settings(config) {
  return h(
    "div",
    { class: "settings" },
    Object.entries(config).map(([section, fields]) =>
      h(
        "section",
        null,
        h("h3", null, section),
        h(
          "dl",
          null,
          Object.entries(fields ?? {}).map(([name, value]) => [
            h("dt", null, words(name)),
            h("dd", { class: "mono" }, written(value)),
          ]),
        ),
      ),
    ),
  );
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function differences(runs) {
  const flat = runs.map(
    (run) =>
      new Map(
        Object.entries(run.config ?? {}).flatMap(([section, fields]) =>
          Object.entries(fields ?? {}).map(([name, value]) => [
            `${section}.${name}`,
            written(value),
          ]),
        ),
      ),
  );
  const names = [...new Set(flat.flatMap((one) => [...one.keys()]))].filter(
    (name) => new Set(flat.map((one) => one.get(name))).size > 1,
  );
  if (!names.length) return h("p", { class: "soft fold-text" }, "All their settings are the same.");
  return h(
    "div",
    { class: "table-scroll" },
    h(
      "table",
      { class: "table" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          h("th", null, "setting"),
          runs.map((run) => h("th", null, run.key)),
        ),
      ),
      h(
        "tbody",
        null,
        names.map((name) =>
          h(
            "tr",
            null,
            h("td", null, name),
            flat.map((one) => h("td", { class: "mono" }, one.get(name) ?? "–")),
          ),
        ),
      ),
    ),
  );
}
