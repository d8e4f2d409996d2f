// The head of a conversation names the episode and its reward, and links to other views of it.

import { exportAddress } from "./api.js";
import { h, link } from "./dom.js";
import { succeeded } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { num, seconds, seedText } from "./format.js";
import { icon } from "./icons.js";
import { address, withParams } from "./route.js";

// These parts of the address are about one episode.
export const OF_ONE = { branch: null, turn: null };

export function conversationHead(episode, agent, route, run) {
  const at = { run: route.run };
  const tokens = agent?.turns.length
    ? agent.turns.reduce((sum, turn) => sum + turn.tokens[1] - turn.tokens[0], 0)
    : 0;
  const last = agent?.turns.at(-1)?.info?.success;
  const success = succeeded({ status: episode.status, success: Boolean(last) }, run);
  const fact = (label, value) =>
    h("div", null, h("dt", null, label), h("dd", { class: "num" }, value));
  const move = (id, name, label) =>
    link(
      id ? address({ ...withParams(route, OF_ONE), ...at, view: "episodes", item: id }) : "#",
      {
        class: "button is-plain",
        title: label,
        "aria-label": label,
        "aria-disabled": id ? null : "true",
      },
      icon(name),
    );
  return h(
    "header",
    { class: "conversation-head" },
    h(
      "div",
      { class: "conversation-title" },
      link(
        address({ ...withParams(route, OF_ONE), item: null }),
        { class: "button is-plain back", "aria-label": "Back to the list" },
        icon("left"),
      ),
      h("h1", { class: "num" }, episode.id),
      h("span", { class: `chip ${statusClass(episode.status)}` }, statusWord(episode.status)),
      h(
        "span",
        { class: "conversation-actions" },
        move(episode.previous, "up", "Previous episode of the step"),
        move(episode.next, "down", "Next episode of the step"),
        link(
          address({
            ...at,
            view: "tokens",
            item: episode.id,
            params: { agent: route.params.get("agent"), branch: route.params.get("branch") },
          }),
          { class: "button", title: "Tokens that were trained on (Enter)" },
          icon("tokens"),
          "Tokens",
        ),
        link(
          address({
            ...at,
            view: "task",
            item: episode.task_key,
            params: { kind: episode.kind, show: episode.id },
          }),
          { class: "button", title: "This task at other steps (s)", data: { action: "task" } },
          icon("columns"),
          "Same task",
        ),
        link(
          exportAddress(route.run, episode.id),
          {
            class: "button",
            title: "Export as one HTML file (e)",
            download: "",
            data: { action: "export" },
          },
          icon("save"),
          "Export",
        ),
      ),
    ),
    h(
      "dl",
      { class: "conversation-facts" },
      agent?.reward
        ? h(
            "div",
            { class: "conversation-reward" },
            h("dt", null, "reward"),
            h("dd", { class: `num ${tone(agent.reward.total)}` }, num(agent.reward.total)),
          )
        : fact("reward", "not scored"),
      success === null ? null : fact("success", success ? "yes" : "no"),
      Object.entries(agent?.reward?.parts ?? {}).map(([name, value]) => fact(name, num(value))),
      fact(
        "step",
        link(
          address({
            ...at,
            view: "time",
            item: episode.step,
            params: { episode: episode.id, kind: episode.kind === "train" ? null : episode.kind },
          }),
          { title: "Timing of this step" },
          num(episode.step),
        ),
      ),
      episode.part ? fact("environment", episode.part) : null,
      fact("seed", h("span", { title: String(episode.seed) }, seedText(episode.seed))),
      fact("group, member", `${num(episode.group)}, ${num(episode.member)}`),
      fact("turns", num(agent?.turns.length ?? 0)),
      agent?.num_branches > 1 ? fact("branches", num(agent.num_branches)) : null,
      fact("sampled tokens", num(tokens)),
      fact("prompt tokens", num((agent?.num_tokens ?? 0) - tokens)),
      episode.attempt > 1 ? fact("attempt", num(episode.attempt)) : null,
      fact("took", h("span", { title: spentOn(episode.seconds) }, seconds(episode.seconds?.total))),
    ),
  );
}

export function tone(value) {
  return value > 0 ? "plus" : value < 0 ? "minus" : "";
}

export function spentOn(parts) {
  return Object.entries(parts ?? {})
    .filter(([name]) => name !== "total")
    .map(([name, value]) => `${name} ${seconds(value)}`)
    .join("\n");
}
