// This view shows one task over training: its reward at every step, and the answers side by side.

import { get, runPath } from "./api.js";
import { isBranched, placeWords } from "./branches.js";
import { ROLES, turnMessages, turnReward } from "./conversation.js";
import { empty, failed, fill, h, html, icon, loading, segments, svg } from "./dom.js";
import { rewardPill, successMark } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { num, plural, seedText, visible, written } from "./format.js";
import { address, go, withParams } from "./route.js";

const MOST = 6;

export function taskView(host) {
  let route = null;
  let asked = 0;
  let run = null;
  const frame = h(".seed", loading(4, 120));
  fill(host, frame);

  const kind = () => route.params.get("kind") ?? "train";

  async function load() {
    const mine = ++asked;
    try {
      const [found, about] = await Promise.all([
        get(runPath(route.run, "episodes"), {
          task: route.item ?? "none",
          kind: kind(),
          sort: "step",
          limit: 500,
        }),
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

  const episodeAddress = (item, of = kind()) =>
    address({ run: route.run, view: "episodes", item, params: { kind: of } });

  function head(all, chosen) {
    const steps = new Set(all.map((one) => one.step)).size;
    const kinds = run.kinds ?? [];
    const choices = kinds.map((one) => [
      one,
      () => go(withParams(route, { kind: one, show: null, only: null })),
    ]);
    const evals = kinds.filter((one) => one !== "train");
    const isAlone = (one) => all.filter((other) => other.step === one.step).length === 1;
    const ids = new Set(chosen.map((one) => one.id));
    const seed = route.item?.match(/^seed-(-?\d+)$/)?.[1];
    const isTrained = kind() === "train";
    const once = [
      `This task was played at one ${isTrained ? "step of the training" : "evaluation"} so far. `,
    ];
    if (isTrained && evals.length)
      once.push(
        "Evaluations play the same tasks each time: ",
        html`<a href=${episodeAddress(null, evals[0])}>${evals[0]} episodes</a>`,
      );
    return html`<header class="seed-head">
      <div class="conversation-title">
        <a class="button is-plain" aria-label="Back to the episodes"
          href=${episodeAddress(chosen[0]?.id ?? null)}>
          ${icon("left")}
        </a>
        ${
          seed
            ? h("h1", "Seed ", h("span.num", { title: seed }, seedText(seed)))
            : h("h1", "One task over training")
        }
        <span class="faint">
          ${plural(all.length, "episode")} at ${plural(steps, "step")}
        </span>
        ${kinds.length > 1 && segments("Kind", choices, kinds.indexOf(kind()))}
      </div>
      ${all[0]?.task && html`<p class="task-words soft" dir="auto">${visible(all[0].task)}</p>`}
      ${taskCurve(all, ids, (id) => toggle(id, chosen))}
      <div class="seed-choice" role="group" aria-label="Episodes to show">
        ${all.map(
          (one) => html`<button class="seed-pick ${ids.has(one.id) ? "is-on" : ""}"
            aria-pressed=${String(ids.has(one.id))} title=${one.id}
            onclick=${() => toggle(one.id, chosen)}>
            ${rewardPill(one.reward)}
            <span class="num">${num(one.step)}${isAlone(one) ? "" : ` #${one.member}`}</span>
          </button>`,
        )}
      </div>
      ${steps < 2 && all.length > 0 && html`<p class="soft hint">${once}</p>`}
    </header>`;
  }

  // Draws one row for each turn, so that the same turn is at the same height in every column.
  function columns(episodes) {
    const agents = episodes.map((one) => one.agents[0]);
    const longest = Math.max(...agents.map((agent) => agent.turns.length));
    const rows = [];
    rows.push(
      episodes.map(
        (one, place) => html`<div class="seed-top">
          <strong class="num">step ${num(one.step)}</strong>
          ${rewardPill(agents[place].reward?.total ?? null)}
          ${successMark(
            { status: one.status, success: Boolean(agents[place].turns.at(-1)?.info?.success) },
            run,
          )}
          <span class="chip ${statusClass(one.status)}">${statusWord(one.status)}</span>
          <a class="faint" href=${episodeAddress(one.id)}>${one.id}</a>
        </div>`,
      ),
    );
    rows.push(
      agents.map(
        (agent) => html`<div class="seed-cell">
          ${turnMessages(agent)
            .prompt.filter((message) => message.role !== "system")
            .map((message) => say("user", message.content))}
        </div>`,
      ),
    );
    for (let turn = 0; turn < longest; turn += 1) {
      rows.push(
        agents.map((agent) => (agent.turns[turn] ? cell(agent, turn) : h(".seed-cell.is-over"))),
      );
    }
    return html`<div class="seed-scroll">
      <div class="seed-grid" style=${{ "--columns": String(episodes.length) }}>${rows}</div>
    </div>`;
  }

  function cell(agent, number) {
    const turn = agent.turns[number];
    const results = turn.calls.map((call) => call.result).join("\n\n");
    return html`<div class="seed-cell">
      ${isBranched(agent) && html`<div class="faint num">${placeWords(agent, number)}</div>`}
      <div class="say" data-role="assistant">
        <span class="role">${ROLES.assistant}</span>
        <div class="words is-model">
          ${turn.text ? visible(turn.text) : html`<span class="faint">nothing</span>`}
        </div>
        ${turnReward(agent, turn, number)}
      </div>
      ${turn.calls.map(
        (call) => html`<div class="say" data-role="tool">
          <span class="role">${ROLES.tool}</span>
          <div class="words mono">
            ${visible(`${call.name}(${JSON.stringify(call.arguments)}) → ${written(call.result)}`)}
          </div>
        </div>`,
      )}
      ${turn.observation && turn.observation !== results && say("user", turn.observation)}
    </div>`;
  }

  function say(role, text) {
    return html`<div class="say" data-role=${role}>
      <span class="role">${ROLES[role]}</span><div class="words">${visible(written(text))}</div>
    </div>`;
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

// ---- Draws the reward of one task over training: a dot for each episode, a line through the steps'
// means.

const WIDTH = 600;
const HEIGHT = 84;
const PAD = 6;

export function taskCurve(episodes, chosen, choose) {
  const known = episodes.filter((one) => typeof one.reward === "number");
  const steps = [...new Set(known.map((one) => one.step))];
  if (steps.length < 2) return null;
  const rewards = known.map((one) => one.reward);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const x = (step) => PAD + ((WIDTH - 2 * PAD) * (step - steps[0])) / (steps.at(-1) - steps[0]);
  const y = (reward) =>
    high === low ? HEIGHT / 2 : HEIGHT - PAD - ((HEIGHT - 2 * PAD) * (reward - low)) / (high - low);
  const means = steps.map((step) => {
    const own = known.filter((one) => one.step === step);
    return [step, own.reduce((sum, one) => sum + one.reward, 0) / own.length];
  });
  const path = means.map(([step, mean], i) => `${i ? "L" : "M"}${x(step)} ${y(mean)}`).join("");
  const dots = known.map((one) => {
    const dot = svg(
      "circle",
      {
        cx: x(one.step),
        cy: y(one.reward),
        r: chosen.has(one.id) ? 5 : 3.5,
        class: chosen.has(one.id) ? "is-on" : "",
        "data-id": one.id,
      },
      svg("title", `step ${one.step}: reward ${num(one.reward)}`),
    );
    dot.addEventListener("click", () => choose(one.id));
    return dot;
  });
  const first = means[0][1];
  const last = means.at(-1)[1];
  return html`<figure class="task-curve">
    <div class="task-axis num" aria-hidden="true">
      <span>${num(high)}</span>${high !== low && html`<span>${num(low)}</span>`}
    </div>
    ${svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: "img",
        "aria-label": `Reward of this task, step ${steps[0]}: ${num(first)}, step ${steps.at(-1)}: ${num(last)}`,
      },
      svg("path", { d: path }),
      dots,
    )}
    <figcaption class="num">
      <span>step ${num(steps[0])}</span><span>reward of this task, mean of each step</span>
      <span>step ${num(steps.at(-1))}</span>
    </figcaption>
  </figure>`;
}
