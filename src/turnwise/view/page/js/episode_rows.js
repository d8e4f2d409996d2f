// The list shows an episode as a card next to the conversation, or as a row of the table.

import { button, h, link } from "./dom.js";
import { statusClass, statusWord } from "./filters.js";
import { num, plural, seconds, seedText } from "./format.js";
import { icon } from "./icons.js";
import { visible } from "./visible.js";

export const CARD = 80;
export const LINE = 36;
const NEAR = 18;

// The columns of the table, with what a click on their titles sorts by.
const COLUMNS = [
  ["step", "step"],
  ["task", null],
  ["answer", null],
  ["success", "success"],
  ["reward", "reward"],
  ["status", "status"],
  ["turns", "turns"],
  ["tokens", "tokens"],
  ["tools", "tool_calls"],
  ["time", "seconds"],
];

export function card(episode, run, href, isHere) {
  return link(
    href,
    { class: `row ${isHere ? "is-here" : ""}`, ...option(episode, isHere) },
    h("span", { class: "row-side" }, rewardPill(episode.reward), successMark(episode, run)),
    h(
      "span",
      { class: "row-body" },
      taskWords(episode),
      answerWords(episode),
      h(
        "span",
        { class: "row-facts num" },
        episode.kind === "train" ? null : h("span", { class: "chip is-accent" }, episode.kind),
        isWell(episode) ? null : statusChip(episode),
        episode.part ? h("span", { class: "row-part" }, visible(episode.part)) : null,
        `step ${num(episode.step)}`,
        h("i"),
        plural(episode.turns, "turn"),
        episode.branches > 1 ? [h("i"), `${num(episode.branches)} branches`] : null,
        h("i"),
        `${num(episode.tokens)} tokens`,
        episode.tool_calls
          ? [h("i"), h("span", { class: "row-tools" }, episode.tools.slice(0, 3).join(", "))]
          : null,
        h("span", { class: "row-seed" }, h("i"), `seed ${seedText(episode.seed)}`),
      ),
    ),
  );
}

export function line(episode, run, href, isHere) {
  return link(
    href,
    { class: `row is-line num ${isHere ? "is-here" : ""}`, ...option(episode, isHere) },
    h(
      "span",
      { class: "cell", title: `${episode.id}, seed ${episode.seed}` },
      num(episode.step),
      episode.kind === "train" ? null : h("small", null, ` ${episode.kind.replace("eval-", "")}`),
    ),
    taskWords(episode),
    answerWords(episode),
    successMark(episode, run) ?? h("span", { class: "faint" }, "–"),
    rewardPill(episode.reward),
    h("span", { class: "cell" }, statusChip(episode)),
    h("span", null, num(episode.turns)),
    h("span", null, num(episode.tokens)),
    h("span", { class: "row-tools cell" }, episode.tools.join(", ")),
    h("span", null, seconds(episode.seconds)),
  );
}

export function tableHead(sort, choose) {
  return h(
    "div",
    { class: "row is-line table-head" },
    COLUMNS.map(([title, name]) => {
      if (name === null) return h("span", null, title);
      const way = sort === name ? "up" : sort === `-${name}` ? "down" : null;
      return button(
        title,
        {
          title: `Sort by ${title}`,
          "aria-pressed": String(way !== null),
          onclick: () => choose(way === "down" ? name : `-${name}`),
        },
        way && icon(way),
      );
    }),
  );
}

function option(episode, isHere) {
  return { role: "option", "aria-selected": String(isHere), data: { id: episode.id } };
}

function isWell(episode) {
  return ["done", "completed"].includes(episode.status);
}

function statusChip(episode) {
  return h("span", { class: `chip ${statusClass(episode.status)}` }, statusWord(episode.status));
}

// The passage that a search found replaces the task or the answer in which it was found; a passage
// from elsewhere replaces the answer.
function taskWords(episode) {
  const words = episode.found === "task" ? found(episode.snippet) : visible(flat(episode.task));
  const part = episode.part
    ? h("span", { class: "row-part is-wide" }, visible(episode.part))
    : null;
  return h("span", { class: "row-task", dir: "auto", title: episode.task }, part, words);
}

function answerWords(episode) {
  const words =
    episode.snippet && episode.found !== "task"
      ? found(episode.snippet)
      : visible(flat(episode.answer));
  return h(
    "span",
    { class: "row-words", dir: "auto" },
    words.childNodes.length ? words : h("span", { class: "faint" }, "said nothing"),
  );
}

// Cuts the text so that what the search found is near its beginning: a row is narrow.
function found({ text, start, end }) {
  const cut = start > NEAR ? start - NEAR + 4 : 0;
  const words = (cut ? "…" : "") + flat(text.slice(cut));
  const moved = cut ? 1 - cut : 0;
  return visible(words, { start: start + moved, end: end + moved });
}

function flat(text) {
  return text.replaceAll("\n", " ").replaceAll("\t", " ");
}

// Success is counted as in the metrics: in a run whose environment reports success, an episode that
// does not report it did not succeed. A failed episode has no success either way.
export function succeeded(episode, run) {
  const reports = Object.keys(run?.successes ?? {}).length > 0;
  if (!reports || episode.status.endsWith("_error")) return null;
  return episode.success === true;
}

export function successMark(episode, run) {
  const success = succeeded(episode, run);
  if (success === null) return null;
  const text = success ? "success" : "no success";
  return h(
    "span",
    {
      class: `success ${success ? "is-yes" : "is-no"}`,
      title: text,
      role: "img",
      "aria-label": text,
    },
    icon(success ? "check" : "close"),
  );
}

export function rewardPill(reward) {
  const isKnown = reward !== null && reward !== undefined;
  const tone = !isKnown ? "" : reward > 0 ? "is-plus" : reward < 0 ? "is-minus" : "";
  return h(
    "span",
    { class: `reward num ${tone}`, title: "reward" },
    isKnown ? num(reward, 2) : "–",
  );
}
