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
import { arrow, empty, failed, fill, h, html, icon, later, loading, segments } from "./dom.js";
import { rewardPill } from "./episode_rows.js";
import { statusClass, statusWord } from "./filters.js";
import { num } from "./format.js";
import { address, go, withParams } from "./route.js";
import {
  audit,
  choices,
  drawInspector,
  drawSums,
  Overview,
  readColumns,
  Scale,
  TokenStream,
} from "./token_stream.js";

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
  const head = h("header.tokens-head");
  const tools = h(".tokens-tools");
  const facts = h(".token-facts");
  const sums = h(".token-sums");
  const checks = h("ul.checks");
  const stream = new TokenStream({
    hover: (index) => showFacts(index ?? selected, index !== null),
    select,
  });
  const overview = new Overview((index) => {
    select(index);
    stream.bringUp(index);
  });
  const scroll = h(".stream-scroll", stream.element);
  const frame = html`<div class="tokens">
    ${head}
    <div class="tokens-main">
      <div class="stream-pane">${tools}${overview.canvas}${scroll}</div>
      <aside class="token-side" aria-label="Numbers">${facts}${sums}${checks}</aside>
    </div>
  </div>`;
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
    const facts = { episode, whole, route, agentNumber: agentNumber(), params: kept(), change };
    fill(head, tokensHead(facts), map);
    const agent = agentOf();
    stream.draw(
      data,
      (turn) => agent.turns[turn] && turnReward(agent, agent.turns[turn], turn),
      ownsLoop(agent) ? "messages" : "environment",
    );
    fill(
      checks,
      data.note && h("li.is-note", icon("alert"), data.note),
      audit(whole, readColumns(whole)).map(
        (check) => html`<li class=${check.isWell ? "is-well" : "is-ill"}>
          ${icon(check.isWell ? "check" : "alert")}${check.text}
        </li>`,
      ),
    );
    scroll.scrollTop = 0;
    paint();
    choose(wantedIndex());
    // The prompt may be long, and the sampled tokens are what users look for.
    requestAnimationFrame(() => stream.bringUp(selected));
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

  function kept() {
    const params = new URLSearchParams(route.params);
    for (const name of ["token", "agent", "branch", "turn"]) params.delete(name);
    return params;
  }

  function drawTools(scale, values) {
    const fold = route.params.get("fold") === "1";
    const colors = options.map(({ name, title, help }) => [
      title,
      () => change({ color: name }),
      { title: help, data: { color: name } },
    ]);
    const ramp = scale.most
      ? html`<span class="num">${scale.labels()[0]}</span>
      <span class="ramp ${choice.oneSided ? "is-one" : "is-two"}" />
      <span class="num">${scale.labels().at(-1)}</span>`
      : html`<span class="faint">all 0</span>`;
    fill(
      tools,
      segments("Colour by", colors, options.indexOf(choice)),
      values && html`<div class="ramp-box" title=${choice.help}>${ramp}</div>`,
      html`<label class="fold-choice">
        <input type="checkbox" checked=${fold}
          onchange=${(event) => change({ fold: event.target.checked ? "1" : null })}
        />
        fold prompt tokens
      </label>`,
    );
  }

  function choose(index, options) {
    selected = index;
    stream.select(index, options);
    overview.select(index);
    showFacts(index);
  }

  function select(index) {
    choose(index, { reveal: true });
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
      const changes = (name) => before.params.get(name) !== next.params.get(name);
      if (!before || !data || place(before) !== place(next)) load();
      else if (changes("branch") || changes("turn")) draw();
      else {
        if (changes("color") || changes("fold")) paint();
        const token = next.params.get("token");
        if (token !== null && Number(token) !== positionOf(selected))
          choose(wantedIndex(), { reveal: true });
      }
    },
    theme: () => overview.draw(),
    key(event) {
      if (!data) return false;
      if (move(event)) return true;
      if (event.key === "j" || event.key === "k") {
        const id = event.key === "j" ? episode.next : episode.previous;
        if (id) go({ ...route, item: id, params: kept() });
      } else if (event.key === "c") {
        const next = options.indexOf(choice) + (event.shiftKey ? -1 : 1);
        change({ color: options.at(next % options.length).name });
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

// ---- The head of the tokens view names the episode, counts its tokens, and links to other views of it.

export function tokensHead({ episode, whole, route, agentNumber, params, change }) {
  const other = (id) => id && address({ ...route, item: id, params });
  const { agent: number, branch } = Object.fromEntries(route.params);
  const place = { run: route.run, view: "episodes", item: episode.id };
  const agents = episode.agents.map((one, at) => [
    one.name,
    () => change({ agent: at || null, token: null, branch: null, turn: null }, {}),
  ]);
  const agent = episode.agents[agentNumber];
  const sampled = whole.mask.reduce((sum, one) => sum + (one ? 1 : 0), 0);
  return html`<div class="conversation-title">
    <h1 class="num">${episode.id}</h1>${rewardPill(agent?.reward?.total ?? null)}
    <span class="chip ${statusClass(episode.status)}">${statusWord(episode.status)}</span>
    ${agents.length > 1 && segments("Agents", agents, agentNumber)}
    <span class="mask-key">
      <span class="tok s">sampled tokens</span><span class="num">${num(sampled)}</span>
      <span class="faint">trained on</span><span class="tok">prompt tokens</span>
      <span class="num">${num(whole.count - sampled)}</span>
      <span class="faint">not trained on</span>
    </span>
    <span class="conversation-actions">
      ${arrow(other(episode.previous), "up", "Previous episode (k)")}
      ${arrow(other(episode.next), "down", "Next episode (j)")}
      <a class="button" href=${address({ ...place, params: { agent: number, branch } })}>
        Conversation
      </a>
      <a class="button" href=${exportAddress(route.run, episode.id)} download=""
        data-action="export">
        ${icon("save")}Export
      </a>
    </span>
  </div>`;
}
