// What did the model say? The list of episodes, and the one that was chosen as a conversation.

import { exportAddress, get, runPath } from "./api.js";
import { button, fill, h, link } from "./dom.js";
import { Filters, query, statusClass, statusWord } from "./filters.js";
import { num, plural, seedText } from "./format.js";
import { address, go, withParams } from "./route.js";
import { empty, failed, loading } from "./states.js";
import { drawTalk } from "./talk.js";
import { visible } from "./visible.js";
import { VirtualList } from "./virtual_list.js";

const ROW = 62;
const NEAR = 18;
const isWide = () => innerWidth > 900;

export function episodesView(host, app) {
  let route = null;
  let details = null;
  let asked = 0;
  let listed = null;
  const count = h("span", { class: "num" });
  const fresh = button("", { class: "fresh hidden", onclick: () => reload() });
  const filters = new Filters((changes, replace) =>
    go({ ...withParams(route, changes) }, { replace }),
  );
  const list = new VirtualList({ rowHeight: ROW, label: "Episodes", render: row, ask });
  const talk = h("section", { class: "talk-pane", "aria-label": "The episode", tabindex: "-1" });
  const pane = h(
    "aside",
    { class: "list-pane" },
    filters.element,
    h("div", { class: "list-count" }, count, fresh),
    list.element,
  );
  const frame = h("div", { class: "episodes" }, pane, talk);
  fill(host, frame);
  list.message(loading(8, 46));

  // New episodes of a run that goes on come first when the newest do: what is older moved down.
  async function ask(offset, limit, knownTotal = null) {
    const asks = query(route.params);
    const path = runPath(route.run, "episodes");
    const answer = await get(path, { ...asks, limit, offset });
    const moved = knownTotal === null || asks.sort !== "-step" ? 0 : answer.total - knownTotal;
    return moved > 0 ? get(path, { ...asks, limit, offset: offset + moved }) : answer;
  }

  function target(id) {
    return { run: route.run, view: "episodes", item: id, params: route.params };
  }

  function row(episode) {
    const isHere = episode.id === route.item;
    const words = episode.snippet ? found(episode.snippet) : visible(flat(episode.preview ?? ""));
    return link(
      address(target(episode.id)),
      {
        class: `row ${isHere ? "is-here" : ""}`,
        role: "option",
        "aria-selected": String(isHere),
        data: { id: episode.id },
      },
      rewardPill(episode.reward),
      h(
        "span",
        { class: "row-body" },
        h(
          "span",
          { class: "row-words", dir: "auto" },
          words.childNodes.length ? words : h("span", { class: "faint" }, "said nothing"),
        ),
        h(
          "span",
          { class: "row-facts num" },
          episode.kind === "train" ? null : h("span", { class: "chip is-accent" }, episode.kind),
          `step ${num(episode.step)}`,
          h("i"),
          `seed ${seedText(episode.seed)}`,
          h("i"),
          plural(episode.turns, "turn"),
          h("i"),
          `${num(episode.tokens)} tokens`,
          episode.tool_calls
            ? [h("i"), h("span", { class: "row-tools" }, episode.tools.slice(0, 3).join(", "))]
            : null,
          ["done", "completed"].includes(episode.status)
            ? null
            : h(
                "span",
                { class: `chip ${statusClass(episode.status)}` },
                statusWord(episode.status),
              ),
        ),
      ),
    );
  }

  async function reload(keepScroll = false) {
    fresh.classList.add("hidden");
    try {
      if (!(await list.load({ keepScroll }))) return;
      drawCount();
      if (!list.total) list.message(nothing());
      if (!route.item && list.items[0] && isWide()) go(target(list.items[0].id), { replace: true });
    } catch (error) {
      list.message(failed(error, () => reload()));
    }
  }

  function nothing() {
    const isFiltered = Object.entries(query(route.params)).some(
      ([name, value]) => value && name !== "sort",
    );
    return isFiltered
      ? empty(
          "None like that",
          "No episode of this run is as the filters ask.",
          button("Clear the filters", {
            class: "button",
            onclick: () => go({ ...route, params: new URLSearchParams() }),
          }),
        )
      : empty(
          "No episodes yet",
          "They appear here after the first step. A run with logging.episodes_gb=0 keeps none.",
        );
  }

  function drawCount() {
    const read = app.run()?.indexed;
    const rest =
      read && read.files < read.of ? `, reading ${num(read.files)} of ${num(read.of)} files` : "";
    count.textContent = list.total === null ? "" : plural(list.total, "episode") + rest;
  }

  async function showTalk() {
    const mine = ++asked;
    frame.classList.toggle("has-item", Boolean(route.item));
    if (!route.item) {
      fill(
        talk,
        empty("Choose an episode", "j and k go through the list, Enter shows its tokens."),
      );
      return;
    }
    const wait = setTimeout(() => fill(talk, loading(5, 90)), 150);
    try {
      const episode = await get(runPath(route.run, "episodes", route.item));
      if (mine !== asked) return;
      if (talk.dataset.id !== `${route.run}/${route.item}`) talk.scrollTop = 0;
      talk.dataset.id = `${route.run}/${route.item}`;
      drawTalk(talk, episode, route);
    } catch (error) {
      if (mine === asked) fill(talk, failed(error, showTalk));
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

  async function options() {
    try {
      details = await get(runPath(route.run));
      filters.draw(route.params, details);
    } catch {
      /* the list says what is wrong */
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
      if (asks !== listed) {
        listed = asks;
        reload();
      } else list.redraw();
      if (
        before?.run !== route.run ||
        before?.item !== route.item ||
        before?.params.get("text") !== route.params.get("text") ||
        before?.params.get("agent") !== route.params.get("agent")
      )
        showTalk();
      if (app.wantsSearch) {
        app.wantsSearch = false;
        filters.search.focus();
      }
    },
    async live(changed) {
      if (!changed.includes(route.run)) return;
      options();
      if (list.total === null) return reload();
      if (list.element.scrollTop < ROW / 2) return reload(true);
      const mine = listed;
      const answer = await get(runPath(route.run, "episodes"), {
        ...query(route.params),
        limit: 1,
        offset: 0,
      }).catch(() => null);
      if (answer === null || mine !== listed || answer.total <= list.total) return;
      fresh.textContent = `${num(answer.total - list.total)} new`;
      fresh.classList.remove("hidden");
    },
    key(event) {
      if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
      else if (event.key === "/") {
        filters.search.focus();
        filters.search.select();
      } else if (event.key === "Enter" && route.item && !event.target.closest("a, button, summary"))
        go({ run: route.run, view: "tokens", item: route.item });
      else if (event.key === "s" && route.item) talk.querySelector("[data-action=seed]")?.click();
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

// A row is narrow: what was found must stand near its beginning.
function found({ text, start, end }) {
  const cut = start > NEAR ? start - NEAR + 4 : 0;
  const words = (cut ? "…" : "") + flat(text.slice(cut));
  const moved = cut ? 1 - cut : 0;
  return visible(words, { start: start + moved, end: end + moved });
}

function flat(text) {
  return text.replaceAll("\n", " ").replaceAll("\t", " ");
}

export function rewardPill(reward) {
  const tone =
    reward === null || reward === undefined
      ? ""
      : reward > 0
        ? "is-plus"
        : reward < 0
          ? "is-minus"
          : "";
  return h(
    "span",
    { class: `reward num ${tone}`, title: "reward" },
    reward === null || reward === undefined ? "–" : num(reward, 2),
  );
}
