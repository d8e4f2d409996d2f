// This view shows one task over training: its reward at every step, and the answers side by side.

import { get, runPath } from "./api.js";
import { isBranched, placeWords } from "./branches.js";
import { turnMessages, turnReward } from "./conversation.js";
import { button, fill, h, link } from "./dom.js";
import { rewardPill, successMark } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { num, plural, seedText } from "./format.js";
import { icon } from "./icons.js";
import { ROLES } from "./message_blocks.js";
import { address, go, withParams } from "./route.js";
import { empty, failed, loading } from "./states.js";
import { taskCurve } from "./task_curve.js";
import { visible } from "./visible.js";

const MOST = 6;

export function taskView(host) {
  let route = null;
  let asked = 0;
  let run = null;
  const frame = h("div", { class: "seed" }, loading(4, 120));
  fill(host, frame);

  const kind = () => route.params.get("kind") ?? "train";

  async function load() {
    const mine = ++asked;
    try {
      const [found, about] = await Promise.all([
        get(runPath(route.run, `${route.view}s`, route.item ?? ""), { kind: kind() }),
        get(runPath(route.run)),
      ]);
      run = about;
      const all = found.episodes;
      const chosen = choose(all);
      const episodes = await Promise.all(
        chosen.map((one) => get(runPath(route.run, "episodes", one.id))),
      );
      if (mine !== asked) return;
      const across = frame.querySelector(".seed-scroll")?.scrollLeft ?? 0;
      fill(
        frame,
        head(all, chosen),
        all.length
          ? columns(episodes)
          : empty("Not played", `No ${kind()} episode plays this task.`),
      );
      const scroll = frame.querySelector(".seed-scroll");
      if (scroll) scroll.scrollLeft = across;
    } catch (error) {
      if (mine === asked) fill(frame, failed(error, load));
    }
  }

  // Returns the episodes that the address names; otherwise the first, the last and one in the
  // middle.
  function choose(all) {
    const wanted = (route.params.get("show") ?? "").split(",").filter(Boolean);
    const named = all.filter((one) => wanted.includes(one.id));
    if (named.length > 1 || (named.length === 1 && route.params.has("only")))
      return named.slice(0, MOST);
    const spread = [all[0], all[Math.floor((all.length - 1) / 2)], all.at(-1), ...named];
    return all.filter((one) => spread.includes(one));
  }

  function toggle(id, chosen) {
    const ids = chosen.map((one) => one.id);
    const next = ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id].slice(-MOST);
    if (next.length)
      go(withParams(route, { show: next.join(","), only: next.length === 1 ? "1" : null }), {
        replace: true,
      });
  }

  function title() {
    const seed = route.view === "seed" ? route.item : route.item?.match(/^seed-(-?\d+)$/)?.[1];
    return seed
      ? h("h1", null, "Seed ", h("span", { class: "num", title: seed }, seedText(seed)))
      : h("h1", null, "One task over training");
  }

  function head(all, chosen) {
    const steps = new Set(all.map((one) => one.step)).size;
    const kinds = run.kinds ?? [];
    const evals = kinds.filter((one) => one !== "train");
    const ids = new Set(chosen.map((one) => one.id));
    return h(
      "header",
      { class: "seed-head" },
      h(
        "div",
        { class: "conversation-title" },
        link(
          address({
            run: route.run,
            view: "episodes",
            item: chosen[0]?.id ?? null,
            params: { kind: kind() },
          }),
          { class: "button is-plain", "aria-label": "Back to the episodes" },
          icon("left"),
        ),
        title(),
        h(
          "span",
          { class: "faint" },
          `${plural(all.length, "episode")} at ${plural(steps, "step")}`,
        ),
        kinds.length > 1
          ? h(
              "div",
              { class: "segments", role: "group", "aria-label": "Kind" },
              kinds.map((one) =>
                button(one, {
                  "aria-pressed": String(one === kind()),
                  onclick: () => go(withParams(route, { kind: one, show: null, only: null })),
                }),
              ),
            )
          : null,
      ),
      all[0]?.task ? h("p", { class: "task-words soft", dir: "auto" }, visible(all[0].task)) : null,
      taskCurve(all, ids, (id) => toggle(id, chosen)),
      h(
        "div",
        { class: "seed-choice", role: "group", "aria-label": "Episodes to show" },
        all.map((one) =>
          button(
            rewardPill(one.reward),
            {
              class: `seed-pick ${ids.has(one.id) ? "is-on" : ""}`,
              "aria-pressed": String(ids.has(one.id)),
              title: one.id,
              onclick: () => toggle(one.id, chosen),
            },
            h(
              "span",
              { class: "num" },
              all.filter((other) => other.step === one.step).length > 1
                ? `${num(one.step)} #${one.member}`
                : num(one.step),
            ),
          ),
        ),
      ),
      steps < 2 && all.length
        ? h(
            "p",
            { class: "soft hint" },
            kind() === "train"
              ? "This task was played at one step of the training so far. "
              : "This task was played at one evaluation so far. ",
            kind() === "train" && evals.length
              ? [
                  "Evaluations play the same tasks each time: ",
                  link(
                    address({ run: route.run, view: "episodes", params: { kind: evals[0] } }),
                    null,
                    `${evals[0]} episodes`,
                  ),
                ]
              : null,
          )
        : null,
    );
  }

  // Draws one row for each turn, so that the same turn is at the same height in every column.
  function columns(episodes) {
    const agents = episodes.map((one) => one.agents[0]);
    const longest = Math.max(...agents.map((agent) => agent.turns.length));
    const rows = [];
    rows.push(
      episodes.map((one, place) =>
        h(
          "div",
          { class: "seed-top" },
          h("strong", { class: "num" }, `step ${num(one.step)}`),
          rewardPill(agents[place].reward?.total ?? null),
          successMark(
            { status: one.status, success: Boolean(agents[place].turns.at(-1)?.info?.success) },
            run,
          ),
          h("span", { class: `chip ${statusClass(one.status)}` }, statusWord(one.status)),
          link(
            address({ run: route.run, view: "episodes", item: one.id, params: { kind: kind() } }),
            { class: "faint" },
            one.id,
          ),
        ),
      ),
    );
    rows.push(
      agents.map((agent) =>
        h(
          "div",
          { class: "seed-cell" },
          turnMessages(agent)
            .prompt.filter((message) => message.role !== "system")
            .map((message) => say("user", message.content)),
        ),
      ),
    );
    for (let turn = 0; turn < longest; turn += 1) {
      rows.push(
        agents.map((agent) =>
          agent.turns[turn] ? cell(agent, turn) : h("div", { class: "seed-cell is-over" }),
        ),
      );
    }
    return h(
      "div",
      { class: "seed-scroll" },
      h("div", { class: "seed-grid", style: { "--columns": String(episodes.length) } }, rows),
    );
  }

  function cell(agent, number) {
    const turn = agent.turns[number];
    const results = turn.calls.map((call) => call.result).join("\n\n");
    return h(
      "div",
      { class: "seed-cell" },
      isBranched(agent) ? h("div", { class: "faint num" }, placeWords(agent, number)) : null,
      h(
        "div",
        { class: "say", data: { role: "assistant" } },
        speaker("assistant"),
        h(
          "div",
          { class: "words is-model" },
          turn.text ? visible(turn.text) : h("span", { class: "faint" }, "nothing"),
        ),
        turnReward(agent, turn, number),
      ),
      turn.calls.map((call) =>
        h(
          "div",
          { class: "say", data: { role: "tool" } },
          speaker("tool"),
          h(
            "div",
            { class: "words mono" },
            visible(
              `${call.name}(${JSON.stringify(call.arguments)}) → ${typeof call.result === "string" ? call.result : JSON.stringify(call.result)}`,
            ),
          ),
        ),
      ),
      turn.observation && turn.observation !== results ? say("user", turn.observation) : null,
    );
  }

  function speaker(role) {
    return h("span", { class: "role" }, ROLES[role]);
  }

  function say(role, text) {
    return h(
      "div",
      { class: "say", data: { role } },
      speaker(role),
      h("div", { class: "words" }, visible(typeof text === "string" ? text : JSON.stringify(text))),
    );
  }

  return {
    show(next) {
      route = next;
      load();
    },
    live(changed) {
      if (changed.includes(route.run)) load();
    },
    key(event) {
      if (event.key !== "Escape") return false;
      history.back();
      return true;
    },
    destroy() {
      asked += 1;
    },
  };
}
