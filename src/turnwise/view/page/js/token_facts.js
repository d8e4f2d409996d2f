// The panel next to the tokens shows the numbers of one token, and the sums of each turn.

import { sharedWords } from "./branches.js";
import { button, fill, h } from "./dom.js";
import { num, percent, signed } from "./format.js";
import { hasHidden, visible } from "./visible.js";

const TITLES = {
  sampler_log_probs: "log-prob, sampler",
  log_probs: "log-prob, learner",
  gap: "gap",
  advantages: "advantage",
  values: "value",
  returns: "return",
};
const ORDER = ["sampler_log_probs", "log_probs", "gap", "advantages", "values", "returns"];

export function drawInspector(place, { data, columns, index, isHover, choice }) {
  if (index === null || index === undefined) return;
  const text = data.tokens ? data.tokens[index] : null;
  const sampled = Boolean(data.mask[index]);
  const turn = data.turn[index];
  const names = [
    ...ORDER.filter((name) => columns[name]),
    ...Object.keys(columns).filter((name) => !ORDER.includes(name)),
  ];
  const sampler = columns.sampler_log_probs?.[index];
  const gap = columns.gap?.[index];
  const fact = (label, value, extra = "") =>
    h("div", { class: `fact ${extra}` }, h("dt", null, label), h("dd", { class: "num" }, value));
  fill(
    place,
    h(
      "div",
      { class: "token-big" },
      h(
        "span",
        { class: `mono token-text ${sampled ? "s" : ""}` },
        text === null ? "no text" : hasHidden(text) ? visible(text) : spelled(text),
      ),
      h(
        "span",
        { class: `chip ${sampled ? "is-accent" : ""}` },
        sampled ? "sampled token" : "prompt token",
      ),
    ),
    h(
      "dl",
      null,
      fact("position", `${num(data.at?.[index] ?? index)} of ${num((data.whole ?? data).count)}`),
      fact("id", String(data.ids[index])),
      fact("turn", turn >= 0 ? num(turn + 1) : "none"),
      data.sharing ? fact("branch", num(data.branch[index] + 1)) : null,
      data.sharing?.[index].length > 1 ? fact("shared by", sharedWords(data.sharing[index])) : null,
      fact("mask", sampled ? "1, trained on" : "0, not trained on"),
      names.map((name) =>
        fact(
          TITLES[name] ?? name.replaceAll("_", " "),
          value(name, columns[name][index]),
          name === choice?.name ? "is-chosen" : "",
        ),
      ),
      typeof sampler === "number" ? fact("probability", percent(Math.exp(sampler), 2)) : null,
      typeof gap === "number" ? fact("ratio", num(Math.exp(gap), 5)) : null,
    ),
  );
  place.dataset.token = String(index);
  place.classList.toggle("is-hover", isHover);
}

function value(name, number) {
  if (number === null || number === undefined) return "–";
  return ["advantages", "gap"].includes(name) ? signed(number, 4) : num(number, 4);
}

function spelled(text) {
  return (
    text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll("\r", "␍") ||
    "part of a character"
  );
}

// Draws for each turn its number of tokens, sum and mean of the chosen column, and its reward.
export function drawSums(place, { data, columns, choice, agent, go }) {
  const name = choice.name === "mask" ? "sampler_log_probs" : choice.name;
  const values = columns[name];
  const turns = new Map();
  data.turn.forEach((turn, index) => {
    if (!data.mask[index]) return;
    const one = turns.get(turn) ?? { count: 0, sum: 0, known: 0 };
    one.count += 1;
    if (values && values[index] !== null) {
      one.sum += values[index];
      one.known += 1;
    }
    turns.set(turn, one);
  });
  const rewards = agent?.reward?.turns ?? agent?.reward?.per_turn ?? null;
  const rewardOf = (turn) => rewards?.[turn] ?? agent?.turns[turn]?.reward ?? null;
  const rows = [...turns].map(([turn, one]) =>
    h(
      "tr",
      null,
      h(
        "td",
        null,
        turn < 0
          ? "none"
          : button(turn + 1, {
              class: "link-button num",
              title: "Go to this turn",
              onclick: () => go(turn),
            }),
      ),
      h("td", null, num(one.count)),
      h("td", null, one.known ? num(one.sum) : "–"),
      h("td", null, one.known ? num(one.sum / one.known) : "–"),
      h(
        "td",
        { class: rewardOf(turn) > 0 ? "plus" : rewardOf(turn) < 0 ? "minus" : "" },
        num(rewardOf(turn)),
      ),
    ),
  );
  fill(
    place,
    h(
      "table",
      { class: "sums num" },
      h("caption", null, `By turn: ${TITLES[name] ?? name.replaceAll("_", " ")}`),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          ["turn", "tokens", "sum", "mean", "reward"].map((title) => h("th", null, title)),
        ),
      ),
      h("tbody", null, rows),
    ),
  );
}
