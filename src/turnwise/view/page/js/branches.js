// An episode may be a tree: an agent may change what it sent before, try again, or call in parallel.
// This module knows which turns and tokens a branch has, and draws the tree as a map.

import { html, svg } from "./dom.js";
import { num } from "./format.js";
import { address, go, withParams } from "./route.js";

const COLUMN = 34;
const ROW = 28;
const LEFT = 98;
const ORIGIN = 70;
const RADIUS = 10;
const MOST_COMPARED = 100;

export function isBranched(agent) {
  return (agent?.num_branches ?? 1) > 1;
}

// Returns the branch that the address names, counted from 1 there.
export function chosenBranch(agent, route) {
  const wanted = Number(route.params.get("branch") ?? 1) - 1;
  return Math.min(Math.max(Number.isInteger(wanted) ? wanted : 0, 0), agent.num_branches - 1);
}

// Returns the turns of a branch, from the beginning of its conversation to its end.
export function pathOf(agent, branch) {
  const path = [];
  let at = agent.turns.findLastIndex((turn) => turn.branch === branch);
  for (; at !== null && at >= 0; at = agent.turns[at].follows) path.unshift(at);
  return path;
}

// Returns the turns that follow a turn; those that begin a conversation for null.
export function followers(agent, number) {
  return agent.turns.flatMap((turn, place) => (turn.follows === number ? [place] : []));
}

export function placeWords(agent, number) {
  const turn = agent.turns[number];
  const before = turn.follows === null ? "from the start" : `follows turn ${turn.follows + 1}`;
  return `branch ${turn.branch + 1} · ${before}`;
}

// Returns the data of the tokens that a branch has, in order; `at` are their places in the stream.
export function branchTokens(data, agent, branch) {
  const at = tokenPath(data, agent, branch);
  const pick = (values) => at.map((place) => values[place]);
  const picked = (columns) =>
    Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, pick(values)]));
  const { tokens, ids, mask, turn, branch: branches } = data;
  return {
    ...data,
    ...picked({ tokens, ids, mask, turn, branch: branches, sharing: sharing(data, agent) }),
    at,
    count: at.length,
    whole: data,
    columns: picked(data.columns),
  };
}

function tokenPath(data, agent, branch) {
  const last = agent.turns[pathOf(agent, branch).at(-1)];
  let end = data.count;
  if (last) {
    // What stands after the last turn, up to where another branch begins, belongs to it.
    const next = data.branches.find(([start]) => start >= last.tokens[1])?.[0] ?? data.count;
    const goesOn = agent.turns.some(
      ({ tokens: [start] }) => start >= last.tokens[1] && start < next,
    );
    end = goesOn ? last.tokens[1] : next;
  }
  const spans = [];
  for (let stop = end; stop > 0; ) {
    const [start, after] = data.branches.findLast(([begin]) => begin <= stop - 1) ?? [0, 0];
    spans.unshift([start, stop]);
    stop = after;
  }
  return spans.flatMap(([start, stop]) =>
    Array.from({ length: stop - start }, (_, place) => start + place),
  );
}

// Returns for each token of the stream the branches that have it in their conversation.
function sharing(data, agent) {
  if (data.sharing) return data.sharing;
  data.sharing = Array.from({ length: data.count }, () => []);
  for (let branch = 0; branch < Math.min(agent.num_branches, MOST_COMPARED); branch += 1)
    for (const place of tokenPath(data, agent, branch)) data.sharing[place].push(branch);
  return data.sharing;
}

export function sharedWords(branches) {
  if (branches.length > 6) return `${num(branches.length)} branches`;
  const names = branches.map((branch) => num(branch + 1)).join(", ");
  return `${branches.length > 1 ? "branches" : "branch"} ${names}`;
}

// Returns the branches whose conversations have a turn: its own, and those that begin after it.
export function branchesThrough(agent, number) {
  const found = new Set([number]);
  for (const [place, turn] of agent.turns.entries()) if (found.has(turn.follows)) found.add(place);
  return [...new Set([...found].map((place) => agent.turns[place].branch))].sort((a, b) => a - b);
}

// Agents that own their loop send messages as a user; elsewhere they come from the environment.
export function ownsLoop(agent) {
  return Boolean(agent?.turns.some((turn) => turn.message !== null));
}

// Draws every turn as a circle; a row is a branch, a line leads from a turn to those that follow it.
export function branchMap(agent, route, chosen) {
  const path = new Set(pathOf(agent, chosen));
  const spot = ({ row, column }) => [LEFT + column * COLUMN, ROW / 2 + row * ROW];
  const rows = Math.max(...agent.turns.map((turn) => turn.row)) + 1;
  const columns = Math.max(...agent.turns.map((turn) => turn.column)) + 1;
  const width = LEFT + (columns - 1) * COLUMN + RADIUS + 6;
  const to = (number) => {
    const branch = path.has(number) ? chosen : agent.turns[number].branch;
    const place = { branch: branch ? branch + 1 : null, turn: number + 1, token: null };
    return address(withParams(route, place));
  };
  const hasRoots = followers(agent, null).length > 1;
  const lines = agent.turns.map((turn, number) => {
    if (turn.follows === null && !hasRoots) return null;
    const [x, y] = spot(turn);
    const [from, top] = turn.follows === null ? [ORIGIN, ROW / 2] : spot(agent.turns[turn.follows]);
    const bend = y > top ? `V${y - 9}Q${from} ${y} ${from + 9} ${y}` : "";
    const here = path.has(number) ? "is-here" : "";
    return svg("path", { class: here, d: `M${from} ${top}${bend}H${x}` });
  });
  const nodes = agent.turns.map((turn, number) => {
    const [x, y] = spot(turn);
    const label = `Turn ${number + 1}, ${placeWords(agent, number)}`;
    return svg(
      "a",
      {
        href: to(number),
        class: `branch-turn ${path.has(number) ? "is-here" : ""}`,
        "aria-label": label,
        "data-turn": number,
      },
      svg("title", `${label}\n${turn.text.slice(0, 120)}`),
      svg("circle", { cx: x, cy: y, r: RADIUS }),
      svg("text", { x, y: y + 3.5 }, String(number + 1)),
    );
  });
  const labels = [...new Map(agent.turns.map((turn) => [turn.branch, turn.row]))].map(
    ([branch, row]) =>
      svg(
        "a",
        {
          class: `branch-name ${branch === chosen ? "is-here" : ""}`,
          href: address(
            withParams(route, { branch: branch ? branch + 1 : null, turn: null, token: null }),
          ),
        },
        svg("text", { x: 2, y: ROW / 2 + row * ROW + 4 }, `branch ${branch + 1}`),
      ),
  );
  const map = html`<nav class="branch-map" aria-label="Branches">
    ${svg(
      "svg",
      { width, height: rows * ROW, viewBox: `0 0 ${width} ${rows * ROW}` },
      // The lines of the chosen branch lie above the others.
      lines.filter((_, number) => !path.has(number)),
      lines.filter((_, number) => path.has(number)),
      hasRoots && svg("circle", { class: "branch-origin", cx: ORIGIN, cy: ROW / 2, r: 3.5 }),
      nodes,
      labels,
    )}
  </nav>`;
  const row = agent.turns.find((turn) => turn.branch === chosen).row;
  requestAnimationFrame(() => map.scrollTo({ top: (row + 0.5) * ROW - map.clientHeight / 2 }));
  return map;
}

// Goes to the next branch of the map in this place, or back; returns whether there is a map.
export function stepBranch(place, by) {
  const names = [...place.querySelectorAll(".branch-name")];
  const at = names.findIndex((name) => name.classList.contains("is-here"));
  if (names.length) go(names[(at + by + names.length) % names.length].getAttribute("href"));
  return names.length > 0;
}

// Draws the choice between the turns that follow the same one.
export function forkChoice(agent, route, number, chosen) {
  const next = followers(agent, number);
  if (next.length < 2) return null;
  const path = new Set(pathOf(agent, chosen));
  const words = number === null ? "From the start" : `After turn ${number + 1}`;
  return html`<div class="fork">
    <span class="faint">${words}</span>
    ${next.map((place) => {
      const { branch } = agent.turns[place];
      const changes = { branch: branch ? branch + 1 : null, turn: place + 1 };
      return html`<a class="chip ${path.has(place) ? "is-accent" : ""}"
        href=${address(withParams(route, changes))}
        aria-current=${path.has(place) ? "true" : null}>
        branch ${branch + 1} · turn ${place + 1}
      </a>`;
    })}
  </div>`;
}
