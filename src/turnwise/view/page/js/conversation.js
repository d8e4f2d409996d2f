// This module draws an episode as a conversation, with tool calls and each turn's reward.

import {
  branchesThrough,
  branchMap,
  chosenBranch,
  forkChoice,
  isBranched,
  ownsLoop,
  pathOf,
  placeWords,
  sharedWords,
} from "./branches.js";
import { conversationHead, spentOn, tone } from "./conversation_head.js";
import { button, fill, h, link } from "./dom.js";
import { statusWord } from "./filters.js";
import { num, plural, seconds, signed } from "./format.js";
import { icon } from "./icons.js";
import {
  body,
  callBlock,
  contentText,
  messageBlock,
  resultText,
  returned,
  userWord,
} from "./message_blocks.js";
import { address, go, withParams } from "./route.js";
import { visible } from "./visible.js";

export function drawConversation(place, episode, route, run = null) {
  const number = Math.min(Number(route.params.get("agent") ?? 0), episode.agents.length - 1);
  const agent = episode.agents[number] ?? episode.agents[0];
  const word = route.params.get("text") ?? "";
  fill(
    place,
    conversationHead(episode, agent, route, run),
    episode.error ? problem([episode.error, episode.traceback].filter(Boolean).join("\n")) : null,
    episode.agents.length > 1 ? agentChoice(episode, number, route) : null,
    isBranched(agent) ? branchMap(agent, route, chosenBranch(agent, route)) : null,
    agent
      ? h(
          "div",
          { class: "conversation" },
          // An environment's episode is read in the order of its messages, whatever its branches.
          isBranched(agent) && ownsLoop(agent)
            ? branchBlocks(agent, word, episode, route)
            : [
                initialPrompt(agent, word),
                rowOf(episode.task),
                agent.turns.map((turn, at) => turnBlock(agent, turn, at, word, episode, route)),
              ],
          returned(agent.result, word),
        )
      : null,
    h("p", { class: "conversation-end" }, endingWords(episode)),
  );
  revealTurn(place, route);
}

// Draws the conversation of the chosen branch: each turn after the messages that it answers.
function branchBlocks(agent, word, episode, route) {
  const chosen = chosenBranch(agent, route);
  const { asked } = turnMessages(agent);
  const path = pathOf(agent, chosen);
  return [
    forkChoice(agent, route, null, chosen),
    path.map((number, place) => {
      const before = path[place - 1];
      const results = (agent.turns[before]?.calls ?? []).map((call) => resultText(call.result));
      return [
        withoutResults(asked[number], results).map((one) =>
          messageBlock(one, word, userWord(one, agent)),
        ),
        place ? null : rowOf(episode.task),
        turnBlock(agent, agent.turns[number], number, word, episode, route, {
          isLast: place === path.length - 1,
        }),
        forkChoice(agent, route, number, chosen),
      ];
    }),
  ];
}

function placeChips(agent, number) {
  const through = branchesThrough(agent, number);
  return [
    h("span", { class: "chip num" }, placeWords(agent, number)),
    through.length > 1
      ? h("span", { class: "faint shared-by" }, `shared by ${sharedWords(through)}`)
      : null,
  ];
}

function revealTurn(place, route) {
  const number = Number(route.params.get("turn") ?? 0) - 1;
  if (number >= 0) place.querySelector(`.turn[data-turn="${number}"]`)?.scrollIntoView();
}

// Shows the task as the environment and the reward function have it; the model sees only messages.
function rowOf(task) {
  if (!task) return null;
  return h(
    "details",
    { class: "turn-more task-row" },
    h("summary", null, "row of the dataset"),
    h("div", { class: "words mono" }, visible(JSON.stringify(task, null, 1))),
  );
}

function problem(error) {
  const text = typeof error === "string" ? error : JSON.stringify(error, null, 1);
  return h(
    "div",
    { class: "problem", role: "note" },
    icon("alert"),
    h("pre", { class: "words mono" }, visible(text)),
  );
}

function agentChoice(episode, number, route) {
  return h(
    "div",
    { class: "segments agents", role: "group", "aria-label": "Agents" },
    episode.agents.map((agent, place) =>
      button(agent.reward ? `${agent.name} · ${num(agent.reward.total)}` : agent.name, {
        "aria-pressed": String(place === number),
        onclick: () => go(withParams(route, { agent: place || null })),
      }),
    ),
  );
}

// The last assistant messages are those of the turns, unless the record says which; the messages
// before them are the prompt. `asked` are the messages before each turn.
export function turnMessages(agent) {
  const known = agent.turns.map((turn) => turn.message).filter((place) => place !== null);
  const spoke = agent.messages.flatMap((message, place) =>
    message.role === "assistant" ? [place] : [],
  );
  const own =
    known.length && known.length === agent.turns.length
      ? known
      : spoke.slice(Math.max(0, spoke.length - agent.turns.length));
  const asked = own.map((place, number) =>
    agent.messages.slice(number ? own[number - 1] + 1 : 0, place),
  );
  const replies = own.map((place, number) =>
    agent.messages.slice(place + 1, own[number + 1] ?? agent.messages.length),
  );
  const missing = agent.turns.length - own.length;
  return {
    prompt: agent.messages.slice(0, own[0] ?? agent.messages.length),
    replies: [...Array(missing).fill([]), ...replies],
    asked: [...Array(missing).fill([]), ...asked],
  };
}

function initialPrompt(agent, word) {
  return turnMessages(agent).prompt.map((one) => messageBlock(one, word, userWord(one, agent)));
}

// A tool's result is shown with its call.
function withoutResults(messages, results) {
  return messages.filter(
    (message) => !(message.role === "tool" && results.includes(contentText(message))),
  );
}

// In a branch the messages after a turn are those before the next one of the same branch.
function turnBlock(agent, turn, number, word, episode, route, branch = null) {
  const replies = branch ? [] : (turnMessages(agent).replies[number] ?? []);
  const results = turn.calls.map((call) => resultText(call.result));
  const said = replies.map(contentText).join("\n\n");
  const others = withoutResults(replies, results);
  const unread =
    (!branch || branch.isLast) &&
    turn.observation &&
    turn.observation !== said &&
    !others.some((one) => contentText(one) === turn.observation);
  return h(
    "section",
    { class: "turn", data: { turn: number } },
    h(
      "article",
      { class: "message", data: { role: "assistant" } },
      h(
        "header",
        null,
        h("span", { class: "role" }, "model"),
        h("span", { class: "faint num" }, `turn ${number + 1}`),
        turn.kind && turn.kind !== "action"
          ? h("span", { class: "chip is-accent" }, turn.kind.replace("_", "-"))
          : null,
        isBranched(agent) ? placeChips(agent, number) : null,
        turn.finish_reason && turn.finish_reason !== "stop"
          ? h("span", { class: "chip is-warn", title: "why the model stopped" }, turn.finish_reason)
          : null,
        h(
          "span",
          { class: "turn-side num" },
          h(
            "span",
            { class: "faint", title: spentOn(turn.seconds) },
            plural(turn.tokens[1] - turn.tokens[0], "token"),
          ),
          link(
            address({
              run: route.run,
              view: "tokens",
              item: episode.id,
              params: {
                token: turn.tokens[0],
                agent: route.params.get("agent"),
                branch: branch ? route.params.get("branch") : turn.branch + 1,
              },
            }),
            { class: "faint", title: "These tokens" },
            icon("tokens"),
          ),
          turnReward(agent, turn, number),
        ),
      ),
      body(turn.text, word, "is-model"),
      turn.malformed
        ? h(
            "div",
            { class: "call is-failed" },
            h("header", null, h("strong", null, "not a call that can be read")),
            h("div", { class: "words mono" }, visible(turn.malformed)),
          )
        : null,
      turn.calls.map((call) => callBlock(call, word, ownsLoop(agent) ? "no result" : "not called")),
      moreOf(turn),
    ),
    others.map((one) => messageBlock(one, word, userWord(one, agent))),
    unread
      ? h(
          "article",
          { class: "message", data: { role: "user" } },
          h(
            "header",
            null,
            h("span", { class: "role" }, "environment"),
            turn.done ? h("span", { class: "faint" }, "after the last turn") : null,
          ),
          body(turn.observation, word),
        )
      : null,
  );
}

export function turnReward(agent, turn, number) {
  const turns = agent.reward?.turns ?? agent.reward?.per_turn ?? null;
  const value = turns?.[number] ?? turn.reward;
  return h(
    "span",
    { class: `turn-reward num ${tone(value)}`, title: "reward of this turn" },
    value === null || value === undefined ? "–" : signed(value),
  );
}

function moreOf(turn) {
  const info = turn.info && Object.keys(turn.info).length ? JSON.stringify(turn.info, null, 1) : "";
  const state = turn.message === null ? turn.state : ""; // else it repeats the messages before it
  if (!info && !state) return null;
  return h(
    "details",
    { class: "turn-more" },
    h("summary", null, [state && "state", info && "info"].filter(Boolean).join(" and ")),
    state ? h("div", { class: "words mono" }, visible(state)) : null,
    info ? h("div", { class: "words mono" }, visible(info)) : null,
  );
}

function endingWords(episode) {
  const status = statusWord(episode.status);
  return `The episode ended: ${status}${episode.seconds?.total ? ` after ${seconds(episode.seconds.total)}` : ""}.`;
}
