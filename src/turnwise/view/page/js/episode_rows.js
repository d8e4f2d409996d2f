// The list shows an episode as a card next to the conversation, or as a row of the table.

import { fill, h, html, icon, perFrame } from "./dom.js";
import { statusClass, statusWord } from "./filters.js";
import { num, plural, seconds, seedText, visible } from "./format.js";

export const CARD = 80;
export const LINE = 36;
const NEAR = 18;

// The columns of the table, with what a click on their titles sorts by.
const COLUMNS = [
  ["step", "step"],
  ["task", null],
  ["answer", null],
  ["success", "success"],
  ["reward", "reward"],
  ["status", "status"],
  ["turns", "turns"],
  ["tokens", "tokens"],
  ["tools", "tool_calls"],
  ["time", "seconds"],
];

export function card(episode, run, href, isHere) {
  return html`<a class="row ${isHere ? "is-here" : ""}" href=${href} ...${option(episode, isHere)}>
    <span class="row-side">${rewardPill(episode.reward)}${successMark(episode, run)}</span>
    <span class="row-body">
      ${taskWords(episode)}${answerWords(episode)}
      <span class="row-facts num">
        ${episode.kind !== "train" && html`<span class="chip is-accent">${episode.kind}</span>`}
        ${!isWell(episode) && statusChip(episode)}
        ${episode.part && html`<span class="row-part">${visible(episode.part)}</span>`}
        step ${num(episode.step)}<i />${plural(episode.turns, "turn")}
        ${episode.branches > 1 && [html`<i />`, `${num(episode.branches)} branches`]}<i />
        ${num(episode.tokens)} tokens
        ${
          episode.tool_calls > 0 && [
            html`<i />`,
            html`<span class="row-tools">${episode.tools.slice(0, 3).join(", ")}</span>`,
          ]
        }
        <span class="row-seed"><i />seed ${seedText(episode.seed)}</span>
      </span>
    </span>
  </a>`;
}

export function line(episode, run, href, isHere) {
  return html`<a class="row is-line num ${isHere ? "is-here" : ""}" href=${href}
    ...${option(episode, isHere)}>
    <span class="cell" title=${`${episode.id}, seed ${episode.seed}`}>
      ${num(episode.step)}
      ${episode.kind !== "train" && html`<small>${` ${episode.kind.replace("eval-", "")}`}</small>`}
    </span>
    ${taskWords(episode)}${answerWords(episode)}
    ${successMark(episode, run) ?? html`<span class="faint">–</span>`}
    ${rewardPill(episode.reward)}<span class="cell">${statusChip(episode)}</span>
    <span>${num(episode.turns)}</span><span>${num(episode.tokens)}</span>
    <span class="row-tools cell">${episode.tools.join(", ")}</span>
    <span>${seconds(episode.seconds)}</span>
  </a>`;
}

export function tableHead(sort, choose) {
  return html`<div class="row is-line table-head">
    ${COLUMNS.map(([title, name]) => {
      if (name === null) return html`<span>${title}</span>`;
      const way = sort === name ? "up" : sort === `-${name}` ? "down" : null;
      return html`<button title=${`Sort by ${title}`} aria-pressed=${String(way !== null)}
        onclick=${() => choose(way === "down" ? name : `-${name}`)}>
        ${title}${way && icon(way)}
      </button>`;
    })}
  </div>`;
}

function option(episode, isHere) {
  return { role: "option", "aria-selected": String(isHere), data: { id: episode.id } };
}

function isWell(episode) {
  return ["done", "completed"].includes(episode.status);
}

function statusChip(episode) {
  return h("span", { class: `chip ${statusClass(episode.status)}` }, statusWord(episode.status));
}

// The passage that a search found replaces the task or the answer in which it was found; a passage
// from elsewhere replaces the answer.
function taskWords(episode) {
  const words = episode.found === "task" ? found(episode.snippet) : visible(flat(episode.task));
  const part = episode.part ? h("span.row-part.is-wide", visible(episode.part)) : null;
  return h("span.row-task", { dir: "auto", title: episode.task }, part, words);
}

function answerWords(episode) {
  const words =
    episode.snippet && episode.found !== "task"
      ? found(episode.snippet)
      : visible(flat(episode.answer));
  return html`<span class="row-words" dir="auto">
    ${words.childNodes.length ? words : html`<span class="faint">said nothing</span>`}
  </span>`;
}

// Cuts the text so that what the search found is near its beginning: a row is narrow.
function found({ text, start, end }) {
  const cut = start > NEAR ? start - NEAR + 4 : 0;
  const words = (cut ? "…" : "") + flat(text.slice(cut));
  const moved = cut ? 1 - cut : 0;
  return visible(words, { start: start + moved, end: end + moved });
}

function flat(text) {
  return text.replaceAll("\n", " ").replaceAll("\t", " ");
}

// Success is counted as in the metrics: in a run whose environment reports success, an episode that
// does not report it did not succeed. A failed episode has no success either way.
export function succeeded(episode, run) {
  const reports = Object.keys(run?.successes ?? {}).length > 0;
  if (!reports || episode.status.endsWith("_error")) return null;
  return episode.success === true;
}

export function successMark(episode, run) {
  const success = succeeded(episode, run);
  if (success === null) return null;
  const text = success ? "success" : "no success";
  return html`<span class="success ${success ? "is-yes" : "is-no"}" title=${text} role="img"
    aria-label=${text}>
    ${icon(success ? "check" : "close")}
  </span>`;
}

export function rewardPill(reward) {
  const isKnown = reward !== null && reward !== undefined;
  const tone = !isKnown ? "" : reward > 0 ? "is-plus" : reward < 0 ? "is-minus" : "";
  return html`<span class="reward num ${tone}" title="reward">${isKnown ? num(reward, 2) : "–"}</span>`;
}

// ---- A list of any length: only visible rows are in the document, and pages are requested as needed.

const PAGE = 100;
const MARGIN = 6;

export class VirtualList {
  constructor({ rowHeight, render, ask, label }) {
    this.rowHeight = rowHeight;
    this.render = render;
    this.ask = ask;
    this.space = h(".list-space", { role: "listbox", "aria-label": label });
    this.element = h(".list", { tabindex: "-1" }, this.space);
    this.rows = new Map();
    this.version = 0;
    this.total = null;
    this.items = [];
    this.pages = new Set();
    this.draw = perFrame(() => this.drawNow());
    this.element.addEventListener("scroll", this.draw, { passive: true });
    this.resized = new ResizeObserver(this.draw);
    this.resized.observe(this.element);
  }

  clearRows() {
    this.space.replaceChildren();
    this.rows.clear();
  }

  get isAtTop() {
    return this.element.scrollTop < this.rowHeight / 2;
  }

  // Loads new contents; the visible rows stay until these have arrived. With `ifAtTop` they are left
  // if the user has scrolled meanwhile. Returns whether the contents are new.
  async load({ ifAtTop = false } = {}) {
    const version = ++this.version;
    const answer = await this.ask(0, PAGE);
    if (version !== this.version || (ifAtTop && !this.isAtTop)) return false;
    this.items = [...answer.episodes];
    this.total = answer.total;
    this.pages = new Set([0]);
    this.measure();
    this.clearRows();
    if (!ifAtTop) this.element.scrollTop = 0;
    this.drawNow();
    return true;
  }

  async want(page) {
    if (this.pages.has(page)) return;
    this.pages.add(page);
    const { pages } = this;
    try {
      // Episodes that arrived since then wait for a reload, so that visible rows do not move.
      const answer = await this.ask(page * PAGE, PAGE, this.total);
      if (pages !== this.pages) return;
      answer.episodes.forEach((item, place) => {
        this.items[page * PAGE + place] = item;
      });
      this.drawNow();
    } catch {
      this.pages.delete(page);
    }
  }

  drawNow() {
    if (this.total === null) return;
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - MARGIN);
    const last = Math.min(
      this.total - 1,
      Math.ceil((scrollTop + clientHeight) / this.rowHeight) + MARGIN,
    );
    for (const [place, row] of this.rows) {
      if (place < first || place > last || (row.dataset.waits && this.items[place])) {
        row.remove();
        this.rows.delete(place);
      }
    }
    for (let place = first; place <= last; place += 1) {
      if (!this.items[place]) this.want(Math.floor(place / PAGE));
      if (this.rows.has(place)) continue;
      const row = this.items[place]
        ? this.render(this.items[place], place)
        : h(".row", { data: { waits: "1" } }, h(".skeleton.row-skeleton"));
      row.style.top = `${place * this.rowHeight}px`;
      row.style.height = `${this.rowHeight}px`;
      this.rows.set(place, row);
      this.space.append(row);
    }
  }

  // Lays the rows out again after their height changed.
  measure() {
    this.space.style.height = `${this.total * this.rowHeight}px`;
  }

  redraw() {
    this.clearRows();
    this.drawNow();
  }

  find(id) {
    return this.items.findIndex((item) => item?.id === id);
  }

  reveal(place) {
    const top = place * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight)
      this.element.scrollTop = top + this.rowHeight - clientHeight;
    this.drawNow();
  }

  message(content) {
    fill(this.space, content);
    this.rows.clear();
    this.space.style.height = "auto";
  }

  destroy() {
    this.version += 1;
    this.draw.cancel();
    this.resized.disconnect();
  }
}
