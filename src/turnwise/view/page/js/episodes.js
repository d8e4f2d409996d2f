// What did the model say? This view has the list of episodes, and the chosen one as a conversation.

import { exportAddress, get, runPath } from "./api.js";
import { stepBranch } from "./branches.js";
import { drawConversation, OF_ONE } from "./conversation.js";
import { empty, failed, fill, h, html, loading } from "./dom.js";
import { CARD, card, LINE, line, tableHead, VirtualList } from "./episode_rows.js";
import { Filters, isFiltered, query } from "./filters.js";
import { num, plural } from "./format.js";
import { address, go, withParams } from "./route.js";

const isWide = () => innerWidth > 900;
const NO_MATCH = () => h(".state", h("p", "No episodes match these filters."));
const NONE_YET = () =>
  empty(
    "No episodes yet",
    "They appear here after the first step. A run with logging.episodes_gb=0 keeps none.",
  );
// The parts of the address on which the conversation depends.
const SHOWN = ["layout", "text", "agent", "branch", "turn"];

export function episodesView(host, app) {
  let route = null;
  let details = null;
  let asked = 0;
  let listed = null;
  const count = h("span.num");
  const fresh = html`<button class="fresh hidden" onclick=${() => reload()} />`;
  // Another filter opens the first episode that it finds: the open one may not be among them.
  const filters = new Filters((changes, replace) => {
    const item = Object.keys(changes).every((name) => name === "sort") ? route.item : null;
    go({ ...withParams(route, changes), item }, { replace });
  });
  const list = new VirtualList({ rowHeight: CARD, label: "Episodes", render: row, ask });
  const columns = h(".table-columns");
  const layout = html`<button class="button is-plain layout-choice"
    title="All episodes as a table: task, answer, success and more"
    onclick=${() => go(withParams(route, { layout: isTable() ? null : "table" }))}
  />`;
  const detail = html`<section class="conversation-pane" aria-label="The episode" tabindex="-1" />`;
  const pane = html`<aside class="list-pane">
    ${filters.element}<div class="list-count">${count}${fresh}${filters.sort}${layout}</div>
    ${list.element}
  </aside>`;
  const frame = h(".episodes", pane, detail);
  fill(host, frame);
  list.element.prepend(columns);
  list.message(loading(8, 46));

  const isTable = () => isWide() && route.params.get("layout") === "table";
  const isNothing = () => frame.classList.contains("is-nothing");

  // In a run that is training, new episodes are inserted before older ones when the newest are
  // listed first, so that the offset of older ones grows.
  async function ask(offset, limit, knownTotal = null) {
    const asks = query(route.params);
    const path = runPath(route.run, "episodes");
    const answer = await get(path, { ...asks, limit, offset });
    const moved = knownTotal === null || asks.sort !== "-step" ? 0 : answer.total - knownTotal;
    return moved > 0 ? get(path, { ...asks, limit, offset: offset + moved }) : answer;
  }

  function target(id) {
    const { params } = withParams(route, { layout: null, ...OF_ONE });
    return { run: route.run, view: "episodes", item: id, params };
  }

  function row(episode) {
    const draw = isTable() ? line : card;
    const found = episode.snippet ? (route.params.get("in") ?? "anything") : null;
    const isHere = episode.id === route.item;
    return draw({ ...episode, found }, details, address(target(episode.id)), isHere);
  }

  async function reload(ifAtTop = false) {
    try {
      if (!(await list.load({ ifAtTop }))) return ifAtTop && tellNew();
      fresh.classList.add("hidden");
      const { files, of } = app.run()?.indexed ?? {};
      const rest = files < of ? `, reading ${num(files)} of ${num(of)} files` : "";
      count.textContent = plural(list.total, "episode") + rest;
      const wasNothing = isNothing();
      frame.classList.toggle("is-nothing", list.total === 0);
      if (!list.total) {
        list.message(isFiltered(route.params) ? NO_MATCH() : NONE_YET());
        fill(detail);
      } else if (!route.item && isWide() && !isTable())
        go(target(list.items[0].id), { replace: true });
      else if (wasNothing) showConversation();
    } catch (error) {
      frame.classList.remove("is-nothing");
      list.message(failed(error, () => reload()));
    }
  }

  // Tells of new episodes, and leaves the rows where they are.
  async function tellNew() {
    const mine = listed;
    const answer = await ask(0, 1).catch(() => null);
    if (answer === null || mine !== listed || answer.total <= list.total) return;
    fresh.textContent = `${num(answer.total - list.total)} new`;
    fresh.classList.remove("hidden");
  }

  async function showConversation() {
    const mine = ++asked;
    frame.classList.toggle("has-item", Boolean(route.item));
    if (!route.item || isNothing() || isTable()) return void fill(detail);
    const wait = setTimeout(() => fill(detail, loading(5, 90)), 150);
    try {
      const episode = await get(runPath(route.run, "episodes", route.item));
      if (mine !== asked || isNothing()) return;
      if (detail.dataset.id !== `${route.run}/${route.item}`) detail.scrollTop = 0;
      detail.dataset.id = `${route.run}/${route.item}`;
      drawConversation(detail, episode, route, details);
    } catch (error) {
      if (mine === asked) fill(detail, failed(error, showConversation));
    } finally {
      clearTimeout(wait);
    }
  }

  function step(by) {
    const at = list.find(route.item);
    const next = at < 0 ? 0 : at + by;
    if (next < 0 || next >= (list.total ?? 0)) return;
    list.reveal(next);
    const open = () => list.items[next] && go(target(list.items[next].id));
    if (list.items[next]) open();
    else list.want(Math.floor(next / 100)).then(open);
  }

  function drawLayout() {
    list.rowHeight = isTable() ? LINE : CARD;
    frame.classList.toggle("is-table", isTable());
    layout.setAttribute("aria-pressed", String(isTable()));
    layout.textContent = isTable() ? "List" : "Table";
    const sort = route.params.get("sort") ?? "-step";
    fill(columns, isTable() && tableHead(sort, (next) => go(withParams(route, { sort: next }))));
    if (list.total) list.measure();
  }

  async function options() {
    const isFirst = details === null;
    try {
      details = await get(runPath(route.run));
      filters.draw(route.params, details);
      if (list.total) list.redraw();
      if (isFirst) showConversation(); // whether it succeeded depends on what the run reports
    } catch {
      /* the list reports the error */
    }
  }

  return {
    show(next) {
      const before = route;
      route = next;
      const asks = JSON.stringify([route.run, query(route.params)]);
      if (before?.run !== route.run) {
        details = null;
        options();
      }
      filters.draw(route.params, details);
      drawLayout();
      if (asks !== listed) {
        listed = asks;
        reload();
      } else list.redraw();
      const shown = (one) =>
        JSON.stringify([one?.run, one?.item, SHOWN.map((n) => one?.params.get(n))]);
      if (shown(before) !== shown(route)) showConversation();
      if (app.wantsSearch) {
        app.wantsSearch = false;
        filters.search.focus();
      }
    },
    live(changed) {
      if (!changed.includes(route.run)) return;
      options();
      if (list.total === null) return reload();
      return list.isAtTop ? reload(true) : tellNew();
    },
    key(event) {
      if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
      else if (event.key === "/") {
        filters.search.focus();
        filters.search.select();
      } else if (isNothing()) return false;
      else if (event.key === "Enter" && route.item && !event.target.closest("a, button, summary"))
        go({ run: route.run, view: "tokens", item: route.item });
      else if (event.key === "b" || event.key === "B")
        return stepBranch(detail, event.key === "b" ? 1 : -1);
      else if (event.key === "s" && route.item) detail.querySelector("[data-action=task]")?.click();
      else if (event.key === "e" && route.item)
        location.assign(exportAddress(route.run, route.item));
      else if (event.key === "Escape" && route.item && !isWide()) go({ ...route, item: null });
      else return false;
      return true;
    },
    destroy() {
      asked += 1;
      list.destroy();
    },
  };
}
