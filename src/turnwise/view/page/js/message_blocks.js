// Blocks of a conversation: a message, a tool call, and what an agent returned.

import { ownsLoop } from "./branches.js";
import { button, h } from "./dom.js";
import { statusWord } from "./filters.js";
import { num, seconds } from "./format.js";
import { marked, visible } from "./visible.js";

const LONG = 1400;

export const ROLES = { system: "system", user: "environment", assistant: "model", tool: "tool" };

export function messageBlock(message, word, label = null) {
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

export function userWord(message, agent) {
  return message.role === "user" && ownsLoop(agent) ? "user" : null;
}

export function contentText(message) {
  if (typeof message.content === "string") return message.content;
  return message.content === null || message.content === undefined
    ? ""
    : JSON.stringify(message.content, null, 1);
}

export function body(text, word, kind = "") {
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

export function resultText(result) {
  return typeof result === "string"
    ? result
    : result === null || result === undefined
      ? ""
      : JSON.stringify(result);
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

// Shows what an agent that owns its loop returned; of a command, its exit code and output.
export function returned(result, word) {
  if (result === null || result === undefined) return null;
  const isCommand = typeof result === "object" && "exit_code" in result && "output" in result;
  const { exit_code: code, output, ...rest } = isCommand ? result : {};
  const text = isCommand ? output : resultText(result);
  return h(
    "article",
    { class: "message returned", data: { role: "system" } },
    h(
      "header",
      null,
      h("span", { class: "role" }, isCommand ? "command" : "returned by the agent"),
      isCommand
        ? h("span", { class: `chip ${code === 0 ? "is-good" : "is-bad"}` }, `exit code ${code}`)
        : null,
      rest.reward === null || rest.reward === undefined
        ? null
        : h("span", { class: "faint num" }, `reward file: ${resultText(rest.reward)}`),
    ),
    body(text, word, "mono"),
  );
}
