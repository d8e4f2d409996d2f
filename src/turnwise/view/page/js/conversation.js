// This module draws an episode as a conversation, with tool calls and each turn's reward.

import { conversationHead, spentOn, tone } from "./conversation_head.js";
import { button, fill, h, link } from "./dom.js";
import { statusWord } from "./filters.js";
import { num, plural, seconds, signed } from "./format.js";
import { icon } from "./icons.js";
import { address, go, withParams } from "./route.js";
import { marked, visible } from "./visible.js";

const LONG = 1400;

export function drawConversation(place, episode, route, run = null) {
  const number = Math.min(Number(route.params.get("agent") ?? 0), episode.agents.length - 1);
  const agent = episode.agents[number] ?? episode.agents[0];
  const word = route.params.get("text") ?? "";
  fill(
    place,
    conversationHead(episode, agent, route, run),
    episode.error ? problem([episode.error, episode.traceback].filter(Boolean).join("\n")) : null,
    episode.agents.length > 1 ? agentChoice(episode, number, route) : null,
    agent
      ? h(
          "div",
          { class: "conversation" },
          initialPrompt(agent, word),
          rowOf(episode.task),
          agent.turns.map((turn, place) => turnBlock(agent, turn, place, word, episode, route)),
        )
      : null,
    h("p", { class: "conversation-end" }, endingWords(episode)),
  );
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

// The last assistant messages are those of the turns; the messages before them are the prompt.
export function turnMessages(agent) {
  const spoke = agent.messages.flatMap((message, place) =>
    message.role === "assistant" ? [place] : [],
  );
  const own = spoke.slice(Math.max(0, spoke.length - agent.turns.length));
  const replies = own.map((place, number) =>
    agent.messages.slice(place + 1, own[number + 1] ?? agent.messages.length),
  );
  const missing = agent.turns.length - own.length;
  return {
    prompt: agent.messages.slice(0, own[0] ?? agent.messages.length),
    replies: [...Array(missing).fill([]), ...replies],
  };
}

function initialPrompt(agent, word) {
  return turnMessages(agent).prompt.map((message) => messageBlock(message, word));
}

const ROLES = { system: "system", user: "environment", assistant: "model", tool: "tool" };

function messageBlock(message, word, label = null) {
  const role = message.role in ROLES ? message.role : "user";
  return h(
    "article",
    { class: "message", data: { role } },
    h(
      "header",
      null,
      h("span", { class: "role" }, label ?? ROLES[role] ?? message.role),
      message.name ? h("span", { class: "faint" }, message.name) : null,
    ),
    body(contentText(message), word),
  );
}

function contentText(message) {
  if (typeof message.content === "string") return message.content;
  return message.content === null || message.content === undefined
    ? ""
    : JSON.stringify(message.content, null, 1);
}

function body(text, word, kind = "") {
  if (!text) return h("div", { class: "words is-empty" }, "nothing");
  const full = () => h("div", { class: `words ${kind}` }, marked(text, word));
  if (text.length <= LONG || (word && text.toLowerCase().includes(word.toLowerCase())))
    return full();
  const short = h("div", { class: `words is-cut ${kind}` }, visible(text.slice(0, LONG)));
  const more = button(`Show all ${num(text.length)} characters`, {
    class: "button is-plain",
    onclick: () => {
      short.replaceWith(full());
      more.remove();
    },
  });
  return [short, more];
}

function turnBlock(agent, turn, number, word, episode, route) {
  const replies = turnMessages(agent).replies[number] ?? [];
  const results = turn.calls.map((call) => resultText(call.result));
  const said = replies.map(contentText).join("\n\n");
  // A tool's result is shown with its call.
  const others = replies.filter(
    (message) => !(message.role === "tool" && results.includes(contentText(message))),
  );
  const unread =
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
              params: { token: turn.tokens[0], agent: route.params.get("agent") },
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
      turn.calls.map((call) => callBlock(call, word)),
      moreOf(turn),
    ),
    others.map((message) => messageBlock(message, word)),
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

function resultText(result) {
  return typeof result === "string"
    ? result
    : result === null || result === undefined
      ? ""
      : JSON.stringify(result);
}

function callBlock(call, word) {
  const args =
    call.arguments && typeof call.arguments === "object" && !Array.isArray(call.arguments)
      ? Object.entries(call.arguments)
      : null;
  const failed = call.success === false || Boolean(call.failure);
  const state =
    call.success === null || call.success === undefined
      ? "not called"
      : failed
        ? (call.failure ?? "failed")
        : null;
  return h(
    "div",
    { class: `call ${failed ? "is-failed" : ""}` },
    h(
      "header",
      null,
      h("strong", { class: "mono" }, visible(call.name)),
      state ? h("span", { class: `chip ${failed ? "is-bad" : ""}` }, statusWord(state)) : null,
      call.seconds ? h("span", { class: "faint num call-time" }, seconds(call.seconds)) : null,
    ),
    args && !args.length
      ? null
      : args
        ? h(
            "dl",
            { class: "args" },
            args.map(([name, value]) => [
              h("dt", { class: "mono" }, visible(name)),
              h(
                "dd",
                { class: "mono words" },
                marked(typeof value === "string" ? value : JSON.stringify(value), word),
              ),
            ]),
          )
        : h("div", { class: "mono words args" }, marked(resultText(call.arguments), word)),
    call.result === null || call.result === undefined
      ? null
      : h(
          "div",
          { class: "result" },
          h("span", { class: "result-arrow", "aria-label": "result" }, failed ? "✗" : "→"),
          body(resultText(call.result), word, "mono"),
        ),
  );
}

function moreOf(turn) {
  const info = turn.info && Object.keys(turn.info).length ? JSON.stringify(turn.info, null, 1) : "";
  if (!info && !turn.state) return null;
  return h(
    "details",
    { class: "turn-more" },
    h("summary", null, [turn.state && "state", info && "info"].filter(Boolean).join(" and ")),
    turn.state ? h("div", { class: "words mono" }, visible(turn.state)) : null,
    info ? h("div", { class: "words mono" }, visible(info)) : null,
  );
}

function endingWords(episode) {
  const status = statusWord(episode.status);
  return `The episode ended: ${status}${episode.seconds?.total ? ` after ${seconds(episode.seconds.total)}` : ""}.`;
}
