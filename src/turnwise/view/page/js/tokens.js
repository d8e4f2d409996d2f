// What was trained on? This view shows every token of an episode's stream with its mask and
// numbers.

import { exportAddress, get, runPath } from "./api.js";
import {
  branchMap,
  branchTokens,
  chosenBranch,
  isBranched,
  ownsLoop,
  stepBranch,
} from "./branches.js";
import { turnReward } from "./conversation.js";
import { button, fill, h, later } from "./dom.js";
import { icon } from "./icons.js";
import { Overview } from "./overview.js";
import { go, withParams } from "./route.js";
import { audit, choices, readColumns, Scale } from "./scale.js";
import { empty, failed, loading } from "./states.js";
import { drawInspector, drawSums } from "./token_facts.js";
import { TokenStream } from "./token_stream.js";
import { tokensHead } from "./tokens_head.js";

export function tokensView(host) {
  let route = null;
  let asked = 0;
  let whole = null; // the stream of all branches
  let data = null; // that of the chosen branch
  let episode = null;
  let columns = {};
  let options = [];
  let choice = null;
  let selected = null;
  const head = h("header", { class: "tokens-head" });
  const tools = h("div", { class: "tokens-tools" });
  const facts = h("div", { class: "token-facts" });
  const sums = h("div", { class: "token-sums" });
  const checks = h("ul", { class: "checks" });
  const stream = new TokenStream({
    hover: (index) => showFacts(index ?? selected, index !== null),
    select,
  });
  const overview = new Overview((index) => {
    select(index);
    stream.bringUp(index);
  });
  const scroll = h("div", { class: "stream-scroll" }, stream.element);
  const frame = h(
    "div",
    { class: "tokens" },
    head,
    h(
      "div",
      { class: "tokens-main" },
      h("div", { class: "stream-pane" }, tools, overview.canvas, scroll),
      h("aside", { class: "token-side", "aria-label": "Numbers" }, facts, sums, checks),
    ),
  );
  fill(host, loading(6, 60));

  const agentNumber = () => Number(route.params.get("agent") ?? 0) || 0;
  const change = (changes, settings = { replace: true }) =>
    go(withParams(route, changes), settings);
  const keepToken = later(140, () => change({ token: positionOf(selected), turn: null }));
  const agentOf = () => episode.agents[agentNumber()];
  const positionOf = (index) => data.at?.[index] ?? index;

  async function load() {
    const mine = ++asked;
    const { run } = route;
    try {
      const id =
        route.item ??
        (await get(runPath(run, "episodes"), { kind: "train", sort: "-step", limit: 1, offset: 0 }))
          .episodes[0]?.id;
      if (mine !== asked) return;
      if (!id)
        return void fill(host, empty("No episodes yet", "The tokens of a step appear after it."));
      if (!route.item) return void go({ ...route, item: id }, { replace: true });
      const found = await Promise.all([
        get(runPath(run, "episodes", id)),
        get(runPath(run, "episodes", id, "tokens"), { agent: agentNumber() }),
      ]);
      if (mine !== asked) return;
      [episode, whole] = found;
      draw();
    } catch (error) {
      if (mine === asked) fill(host, failed(error, load));
    }
  }

  // The token that the address names, by its place in the stream; also by a turn.
  function wantedToken() {
    const turn = Number(route.params.get("turn") ?? 0) - 1;
    const token = route.params.get("token") ?? agentOf()?.turns[turn]?.tokens[0] ?? null;
    return token === null ? null : Math.min(whole.count - 1, Math.max(0, Number(token) || 0));
  }

  function chooseBranch() {
    const agent = agentOf();
    data = whole;
    if (!isBranched(agent)) return null;
    const wanted = wantedToken();
    let branch = chosenBranch(agent, route);
    data = branchTokens(whole, agent, branch);
    if (wanted !== null && !data.at.includes(wanted)) {
      branch = whole.branch[wanted];
      data = branchTokens(whole, agent, branch);
    }
    return branchMap(agent, route, branch);
  }

  function wantedIndex() {
    const wanted = wantedToken();
    if (wanted === null) return Math.max(0, data.mask.findIndex(Boolean));
    return data.at ? Math.max(0, data.at.indexOf(wanted)) : wanted;
  }

  function draw() {
    const map = chooseBranch();
    columns = readColumns(data);
    options = choices(columns);
    if (frame.parentNode !== host) fill(host, frame);
    drawHead(map);
    const agent = agentOf();
    stream.draw(
      data,
      (turn) => agent.turns[turn] && turnReward(agent, agent.turns[turn], turn),
      ownsLoop(agent) ? "messages" : "environment",
    );
    fill(
      checks,
      data.note ? h("li", { class: "is-note" }, icon("alert"), data.note) : null,
      audit(whole, readColumns(whole)).map((check) =>
        h(
          "li",
          { class: check.isWell ? "is-well" : "is-ill" },
          icon(check.isWell ? "check" : "alert"),
          check.text,
        ),
      ),
    );
    scroll.scrollTop = 0;
    paint();
    selected = wantedIndex();
    stream.select(selected);
    overview.select(selected);
    // The prompt may be long, and the sampled tokens are what users look for.
    requestAnimationFrame(() => stream.bringUp(selected));
    showFacts(selected);
  }

  function paint() {
    choice = options.find((one) => one.name === route.params.get("color")) ?? options[0];
    const values = choice.name === "mask" ? null : columns[choice.name];
    const scale = new Scale(choice, values);
    stream.paint(scale, values);
    stream.element.classList.toggle("is-folded", route.params.get("fold") === "1");
    overview.set(data, scale, values);
    drawTools(scale, values);
    drawSums(sums, { data, columns, choice, agent: agentOf(), go: toTurn });
  }

  function drawHead(map) {
    const params = kept();
    fill(
      head,
      tokensHead({ episode, whole, route, agentNumber: agentNumber(), params, change }),
      map,
    );
  }

  function kept() {
    const params = new URLSearchParams(route.params);
    for (const name of ["token", "agent", "branch", "turn"]) params.delete(name);
    return params;
  }

  function drawTools(scale, values) {
    const fold = route.params.get("fold") === "1";
    const ramp = choice.oneSided ? "is-one" : "is-two";
    fill(
      tools,
      h(
        "div",
        { class: "segments", role: "group", "aria-label": "Colour by" },
        options.map((one) =>
          button(one.title, {
            "aria-pressed": String(one === choice),
            title: one.help,
            data: { color: one.name },
            onclick: () => change({ color: one.name }),
          }),
        ),
      ),
      values
        ? h(
            "div",
            { class: "ramp-box", title: choice.help },
            scale.most
              ? [
                  h("span", { class: "num" }, scale.labels()[0]),
                  h("span", { class: `ramp ${ramp}` }),
                  h("span", { class: "num" }, scale.labels().at(-1)),
                ]
              : h("span", { class: "faint" }, "all 0"),
          )
        : null,
      h(
        "label",
        { class: "fold-choice" },
        h("input", {
          type: "checkbox",
          checked: fold,
          onchange: (event) => change({ fold: event.target.checked ? "1" : null }),
        }),
        "fold prompt tokens",
      ),
    );
  }

  function select(index) {
    selected = index;
    stream.select(index, { reveal: true });
    overview.select(index);
    showFacts(index);
    keepToken();
  }

  function showFacts(index, isHover = false) {
    if (data) drawInspector(facts, { data, columns, index, isHover, choice });
  }

  function toTurn(turn) {
    const start = data.turn.indexOf(turn);
    if (start < 0) return;
    select(start);
    stream.bringUp(start);
  }

  function move(event) {
    const last = data.count - 1;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const way = event.key === "ArrowLeft" ? -1 : 1;
      let next = Math.min(last, Math.max(0, selected + way));
      while (event.shiftKey && next > 0 && next < last && !data.mask[next]) next += way;
      select(next);
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown")
      select(stream.neighbour(selected, event.key === "ArrowUp" ? -1 : 1));
    else if (event.key === "Home") select(0);
    else if (event.key === "End") select(last);
    else if (event.key === "[" || event.key === "]") {
      const turns = [...new Set(data.turn.filter((turn) => turn >= 0))];
      const now = data.turn.slice(0, selected + 1).reduce((most, turn) => Math.max(most, turn), -1);
      const next =
        event.key === "]"
          ? turns.find((turn) => turn > now)
          : turns
              .filter((turn) => turn < now || (turn === now && data.turn.indexOf(turn) < selected))
              .at(-1);
      if (next !== undefined) toTurn(next);
    } else return false;
    return true;
  }

  return {
    show(next) {
      const before = route;
      route = next;
      const place = (one) => `${one.run}/${one.item}/${one.params.get("agent") ?? 0}`;
      const changes = (name) => before?.params.get(name) !== next.params.get(name);
      if (before && data && place(before) === place(next) && (changes("branch") || changes("turn")))
        draw();
      else if (before && data && place(before) === place(next)) {
        if (
          before.params.get("color") !== next.params.get("color") ||
          before.params.get("fold") !== next.params.get("fold")
        )
          paint();
        const token = next.params.get("token");
        if (token !== null && Number(token) !== positionOf(selected)) {
          selected = wantedIndex();
          stream.select(selected, { reveal: true });
          overview.select(selected);
          showFacts(selected);
        }
      } else load();
    },
    theme: () => overview.draw(),
    key(event) {
      if (!data) return false;
      if (move(event)) return true;
      if (event.key === "j" || event.key === "k") {
        const id = event.key === "j" ? episode.next : episode.previous;
        if (id) go({ ...route, item: id, params: kept() });
      } else if (event.key === "c") {
        change({
          color:
            options[
              (options.indexOf(choice) + (event.shiftKey ? options.length - 1 : 1)) % options.length
            ].name,
        });
      } else if (event.key === "f") change({ fold: route.params.get("fold") === "1" ? null : "1" });
      else if (event.key === "b" || event.key === "B")
        return stepBranch(head, event.key === "b" ? 1 : -1);
      else if (event.key === "e") location.assign(exportAddress(route.run, episode.id));
      else return false;
      return true;
    },
    destroy() {
      asked += 1;
      keepToken.cancel();
      overview.destroy();
      stream.destroy();
    },
  };
}
