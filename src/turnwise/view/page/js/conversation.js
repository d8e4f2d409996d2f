// This module draws an episode as a conversation, with tool calls and each turn's reward.

import { exportAddress } from "./api.js";
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
import { arrow, fill, h, html, icon, segments } from "./dom.js";
import { succeeded } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { marked, num, plural, seconds, seedText, signed, visible, written } from "./format.js";
import { address, go, withParams } from "./route.js";

export function drawConversation(place, episode, route, run = null) {
  const number = Math.min(Number(route.params.get("agent") ?? 0), episode.agents.length - 1);
  const agent = episode.agents[number] ?? episode.agents[0];
  const word = route.params.get("text") ?? "";
  const took = episode.seconds?.total ? ` after ${seconds(episode.seconds.total)}` : "";
  fill(
    place,
    conversationHead(episode, agent, route, run),
    episode.error &&
      html`<div class="problem" role="note">
        ${icon("alert")}
        <pre class="words mono">
          ${visible([episode.error, episode.traceback].filter(Boolean).join("\n"))}
        </pre>
      </div>`,
    episode.agents.length > 1 && agentChoice(episode, number, route),
    isBranched(agent) && branchMap(agent, route, chosenBranch(agent, route)),
    agent &&
      html`<div class="conversation">
        ${
          isBranched(agent) && ownsLoop(agent)
            ? branchBlocks(agent, word, episode, route)
            : [
                turnMessages(agent).prompt.map((one) =>
                  messageBlock(one, word, userWord(one, agent)),
                ),
                rowOf(episode.task),
                agent.turns.map((turn, at) => turnBlock(agent, turn, at, word, episode, route)),
              ]
        }
        ${returned(agent.result, word)}
      </div>`,
    h("p.conversation-end", `The episode ended: ${statusWord(episode.status)}${took}.`),
  );
  const turn = Number(route.params.get("turn") ?? 0) - 1;
  if (turn >= 0) place.querySelector(`.turn[data-turn="${turn}"]`)?.scrollIntoView();
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
      const results = (agent.turns[before]?.calls ?? []).map((call) => written(call.result));
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

// Shows the task as the environment and the reward function have it; the model sees only messages.
function rowOf(task) {
  if (!task) return null;
  return html`<details class="turn-more task-row">
    <summary>row of the dataset</summary>
    <div class="words mono">${visible(JSON.stringify(task, null, 1))}</div>
  </details>`;
}

function agentChoice(episode, number, route) {
  const options = episode.agents.map(({ name, reward }, place) => [
    reward ? `${name} · ${num(reward.total)}` : name,
    () => go(withParams(route, { agent: place || null })),
  ]);
  return h(".agents", segments("Agents", options, number));
}

// The messages before the first turn, before each turn, and after it, by the places of the turns' own.
export function turnMessages({ messages, positions }) {
  const own = positions.filter((place) => place !== null);
  const near = (place, by) => own[own.indexOf(place) + by];
  return {
    prompt: messages.slice(0, own[0]),
    asked: positions.map((at) => (at === null ? [] : messages.slice((near(at, -1) ?? -1) + 1, at))),
    replies: positions.map((at) => (at === null ? [] : messages.slice(at + 1, near(at, 1)))),
  };
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
  const results = turn.calls.map((call) => written(call.result));
  const said = replies.map(contentText).join("\n\n");
  const others = withoutResults(replies, results);
  const unread =
    (!branch || branch.isLast) &&
    turn.observation &&
    turn.observation !== said &&
    !others.some((one) => contentText(one) === turn.observation);
  const through = isBranched(agent) ? branchesThrough(agent, number) : [];
  const params = {
    token: turn.tokens[0],
    agent: route.params.get("agent"),
    branch: branch ? route.params.get("branch") : turn.branch + 1,
  };
  const tokens = { run: route.run, view: "tokens", item: episode.id, params };
  return html`<section class="turn" data-turn=${number}>
    <article class="message" data-role="assistant">
      <header>
        <span class="role">model</span><span class="faint num">turn ${number + 1}</span>
        ${
          turn.kind &&
          turn.kind !== "action" &&
          html`<span class="chip is-accent">${turn.kind.replace("_", "-")}</span>`
        }
        ${isBranched(agent) && html`<span class="chip num">${placeWords(agent, number)}</span>`}
        ${
          through.length > 1 &&
          html`<span class="faint shared-by">shared by ${sharedWords(through)}</span>`
        }
        ${
          turn.finish_reason &&
          turn.finish_reason !== "stop" &&
          html`<span class="chip is-warn" title="why the model stopped">
            ${turn.finish_reason}
          </span>`
        }
        <span class="turn-side num">
          <span class="faint" title=${spentOn(turn.seconds)}>
            ${plural(turn.tokens[1] - turn.tokens[0], "token")}
          </span>
          <a class="faint" title="These tokens" href=${address(tokens)}>${icon("tokens")}</a>
          ${turnReward(agent, turn, number)}
        </span>
      </header>
      ${body(turn.text, word, "is-model")}
      ${
        turn.malformed &&
        html`<div class="call is-failed">
          <header><strong>not a call that can be read</strong></header>
          <div class="words mono">${visible(turn.malformed)}</div>
        </div>`
      }
      ${turn.calls.map((call) => callBlock(call, word, ownsLoop(agent) ? "no result" : "not called"))}
      ${moreOf(turn)}
    </article>
    ${others.map((one) => messageBlock(one, word, userWord(one, agent)))}
    ${
      unread &&
      html`<article class="message" data-role="user">
        <header>
          <span class="role">environment</span>
          ${turn.done && html`<span class="faint">after the last turn</span>`}
        </header>
        ${body(turn.observation, word)}
      </article>`
    }
  </section>`;
}

export function turnReward(agent, turn, number) {
  const turns = agent.reward?.turns ?? agent.reward?.per_turn ?? null;
  const value = turns?.[number] ?? turn.reward;
  return html`<span class="turn-reward num ${tone(value)}" title="reward of this turn">
    ${value === null || value === undefined ? "–" : signed(value)}
  </span>`;
}

function moreOf(turn) {
  const info = turn.info && Object.keys(turn.info).length ? JSON.stringify(turn.info, null, 1) : "";
  const state = turn.message === null ? turn.state : ""; // else it repeats the messages before it
  if (!info && !state) return null;
  return html`<details class="turn-more">
    <summary>${[state && "state", info && "info"].filter(Boolean).join(" and ")}</summary>
    ${state && html`<div class="words mono">${visible(state)}</div>`}
    ${info && html`<div class="words mono">${visible(info)}</div>`}
  </details>`;
}

// ---- The head of a conversation names the episode and its reward, and links to other views of it.

// These parts of the address are about one episode.
export const OF_ONE = { branch: null, turn: null };

export function conversationHead(episode, agent, route, run) {
  const at = { run: route.run };
  const tokens = agent?.turns.length
    ? agent.turns.reduce((sum, turn) => sum + turn.tokens[1] - turn.tokens[0], 0)
    : 0;
  const last = agent?.turns.at(-1)?.info?.success;
  const success = succeeded({ status: episode.status, success: Boolean(last) }, run);
  const fact = (label, value) => h("div", h("dt", label), h("dd.num", value));
  const other = (id) =>
    id && address({ ...withParams(route, OF_ONE), ...at, view: "episodes", item: id });
  const { agent: number, branch } = Object.fromEntries(route.params);
  const inTokens = { ...at, view: "tokens", item: episode.id, params: { agent: number, branch } };
  const sameTask = { kind: episode.kind, show: episode.id };
  const inTime = { episode: episode.id, kind: episode.kind === "train" ? null : episode.kind };
  return html`<header class="conversation-head">
    <div class="conversation-title">
      <a class="button is-plain back"
        href=${address({ ...withParams(route, OF_ONE), item: null })}
        aria-label="Back to the list">
        ${icon("left")}
      </a>
      <h1 class="num">${episode.id}</h1>
      <span class="chip ${statusClass(episode.status)}">${statusWord(episode.status)}</span>
      <span class="conversation-actions">
        ${arrow(other(episode.previous), "up", "Previous episode of the step")}
        ${arrow(other(episode.next), "down", "Next episode of the step")}
        <a class="button" href=${address(inTokens)} title="Tokens that were trained on (Enter)">
          ${icon("tokens")}Tokens
        </a>
        <a class="button" title="This task at other steps (s)" data-action="task"
          href=${address({ ...at, view: "task", item: episode.task_key, params: sameTask })}>
          ${icon("columns")}Same task
        </a>
        <a class="button" href=${exportAddress(route.run, episode.id)}
          title="Export as one HTML file (e)" download="" data-action="export">
          ${icon("save")}Export
        </a>
      </span>
    </div>
    <dl class="conversation-facts">
      ${
        agent?.reward
          ? html`<div class="conversation-reward">
            <dt>reward</dt>
            <dd class="num ${tone(agent.reward.total)}">${num(agent.reward.total)}</dd>
          </div>`
          : fact("reward", "not scored")
      }
      ${success !== null && fact("success", success ? "yes" : "no")}
      ${Object.entries(agent?.reward?.parts ?? {}).map(([name, value]) => fact(name, num(value)))}
      ${fact(
        "step",
        html`<a title="Timing of this step"
          href=${address({ ...at, view: "time", item: episode.step, params: inTime })}>
          ${num(episode.step)}
        </a>`,
      )}
      ${episode.part && fact("environment", episode.part)}
      ${fact("seed", html`<span title=${String(episode.seed)}>${seedText(episode.seed)}</span>`)}
      ${fact("group, member", `${num(episode.group)}, ${num(episode.member)}`)}
      ${fact("turns", num(agent?.turns.length ?? 0))}
      ${agent?.num_branches > 1 && fact("branches", num(agent.num_branches))}
      ${fact("sampled tokens", num(tokens))}
      ${fact("prompt tokens", num((agent?.num_tokens ?? 0) - tokens))}
      ${episode.attempt > 1 && fact("attempt", num(episode.attempt))}
      ${fact("took", html`<span title=${spentOn(episode.seconds)}>${seconds(episode.seconds?.total)}</span>`)}
    </dl>
  </header>`;
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

// ---- Blocks of a conversation: a message, a tool call, and what an agent returned.

const LONG = 1400;

export const ROLES = { system: "system", user: "environment", assistant: "model", tool: "tool" };

export function messageBlock(message, word, label = null) {
  const role = message.role in ROLES ? message.role : "user";
  return html`<article class="message" data-role=${role}>
    <header>
      <span class="role">${label ?? ROLES[role] ?? message.role}</span>
      ${message.name && html`<span class="faint">${message.name}</span>`}
    </header>
    ${body(contentText(message), word)}
  </article>`;
}

export function userWord(message, agent) {
  return message.role === "user" && ownsLoop(agent) ? "user" : null;
}

export function contentText(message) {
  return written(message.content, 1);
}

export function body(text, word, kind = "") {
  if (!text) return h(".words.is-empty", "nothing");
  const full = () => h("div", { class: `words ${kind}` }, marked(text, word));
  if (text.length <= LONG || (word && text.toLowerCase().includes(word.toLowerCase())))
    return full();
  const short = h("div", { class: `words is-cut ${kind}` }, visible(text.slice(0, LONG)));
  const show = () => {
    short.replaceWith(full());
    more.remove();
  };
  const more = html`<button class="button is-plain" onclick=${show}>
    Show all ${num(text.length)} characters
  </button>`;
  return [short, more];
}

export function callBlock(call, word, none) {
  const args =
    call.arguments && typeof call.arguments === "object" && !Array.isArray(call.arguments)
      ? Object.entries(call.arguments)
      : null;
  const failed = call.success === false || Boolean(call.failure);
  const state =
    call.success === null || call.success === undefined
      ? none
      : failed
        ? (call.failure ?? "failed")
        : null;
  return html`<div class="call ${failed ? "is-failed" : ""}">
    <header>
      <strong class="mono">${visible(call.name)}</strong>
      ${state && html`<span class="chip ${failed ? "is-bad" : ""}">${statusWord(state)}</span>`}
      ${call.seconds > 0 && html`<span class="faint num call-time">${seconds(call.seconds)}</span>`}
    </header>
    ${
      args && !args.length
        ? null
        : args
          ? html`<dl class="args">
            ${args.map(([name, value]) => [
              html`<dt class="mono">${visible(name)}</dt>`,
              html`<dd class="mono words">
                ${marked(written(value), word)}
              </dd>`,
            ])}
          </dl>`
          : html`<div class="mono words args">${marked(written(call.arguments), word)}</div>`
    }
    ${
      !(call.result === null || call.result === undefined) &&
      html`<div class="result">
        <span class="result-arrow" aria-label="result">${failed ? "✗" : "→"}</span>
        ${body(written(call.result), word, "mono")}
      </div>`
    }
  </div>`;
}

// Shows what an agent that owns its loop returned; of a command, its exit code and output.
export function returned(result, word) {
  if (result === null || result === undefined) return null;
  const isCommand = typeof result === "object" && "exit_code" in result && "output" in result;
  const { exit_code: code, output, ...rest } = isCommand ? result : {};
  const text = isCommand ? output : written(result);
  return html`<article class="message returned" data-role="system">
    <header>
      <span class="role">${isCommand ? "command" : "returned by the agent"}</span>
      ${
        isCommand &&
        html`<span class="chip ${code === 0 ? "is-good" : "is-bad"}">exit code ${code}</span>`
      }
      ${
        !(rest.reward === null || rest.reward === undefined) &&
        html`<span class="faint num">reward file: ${written(rest.reward)}</span>`
      }
    </header>
    ${body(text, word, "mono")}
  </article>`;
}
