// The head of the tokens view names the episode, counts its tokens, and links to other views of it.

import { exportAddress } from "./api.js";
import { button, h, link } from "./dom.js";
import { rewardPill } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { num } from "./format.js";
import { icon } from "./icons.js";
import { address } from "./route.js";

export function tokensHead({ episode, whole, route, agentNumber, params, change }) {
  const move = (id, name, label) =>
    link(
      id ? address({ ...route, item: id, params }) : "#",
      {
        class: "button is-plain",
        title: label,
        "aria-label": label,
        "aria-disabled": id ? null : "true",
      },
      icon(name),
    );
  const agent = episode.agents[agentNumber];
  const sampled = whole.mask.reduce((sum, one) => sum + (one ? 1 : 0), 0);
  return h(
    "div",
    { class: "conversation-title" },
    h("h1", { class: "num" }, episode.id),
    rewardPill(agent?.reward?.total ?? null),
    h("span", { class: `chip ${statusClass(episode.status)}` }, statusWord(episode.status)),
    episode.agents.length > 1
      ? h(
          "div",
          { class: "segments" },
          episode.agents.map((one, place) =>
            button(one.name, {
              "aria-pressed": String(place === agentNumber),
              onclick: () =>
                change({ agent: place || null, token: null, branch: null, turn: null }, {}),
            }),
          ),
        )
      : null,
    h(
      "span",
      { class: "mask-key" },
      h("span", { class: "tok s" }, "sampled tokens"),
      h("span", { class: "num" }, num(sampled)),
      h("span", { class: "faint" }, "trained on"),
      h("span", { class: "tok" }, "prompt tokens"),
      h("span", { class: "num" }, num(whole.count - sampled)),
      h("span", { class: "faint" }, "not trained on"),
    ),
    h(
      "span",
      { class: "conversation-actions" },
      move(episode.previous, "up", "Previous episode (k)"),
      move(episode.next, "down", "Next episode (j)"),
      link(
        address({
          run: route.run,
          view: "episodes",
          item: episode.id,
          params: { agent: route.params.get("agent"), branch: route.params.get("branch") },
        }),
        { class: "button" },
        "Conversation",
      ),
      link(
        exportAddress(route.run, episode.id),
        { class: "button", download: "", data: { action: "export" } },
        icon("save"),
        "Export",
      ),
    ),
  );
}
