// A list of any length: only visible rows are in the document, and pages are requested as needed.

import { fill, h, perFrame } from "./dom.js";

const PAGE = 100;
const MARGIN = 6;

export class VirtualList {
  constructor({ rowHeight, render, ask, label }) {
    this.rowHeight = rowHeight;
    this.render = render;
    this.ask = ask;
    this.space = h("div", { class: "list-space", role: "listbox", "aria-label": label });
    this.element = h("div", { class: "list", tabindex: "-1" }, this.space);
    this.rows = new Map();
    this.reset();
    this.draw = perFrame(() => this.drawNow());
    this.element.addEventListener("scroll", this.draw, { passive: true });
    this.resized = new ResizeObserver(this.draw);
    this.resized.observe(this.element);
  }

  reset() {
    this.version = (this.version ?? 0) + 1;
    this.total = null;
    this.items = [];
    this.pages = new Map();
    this.clearRows();
  }

  clearRows() {
    this.space.replaceChildren();
    this.rows.clear();
  }

  // Loads new contents; the visible rows stay until these have arrived.
  async load({ keepScroll = false } = {}) {
    const version = ++this.version;
    const first = keepScroll ? Math.floor(this.element.scrollTop / this.rowHeight / PAGE) : 0;
    const answer = await this.ask(first * PAGE, PAGE);
    if (version !== this.version) return false;
    this.items = [];
    this.pages = new Map([[first, "here"]]);
    this.take(first * PAGE, answer);
    this.clearRows();
    if (!keepScroll) this.element.scrollTop = 0;
    this.drawNow();
    return true;
  }

  take(offset, answer) {
    this.total = answer.total;
    answer.episodes.forEach((item, place) => {
      this.items[offset + place] = item;
    });
    this.space.style.height = `${answer.total * this.rowHeight}px`;
  }

  async want(page) {
    if (this.pages.has(page)) return;
    this.pages.set(page, "asked");
    const version = this.version;
    try {
      const answer = await this.ask(page * PAGE, PAGE, this.total);
      if (version !== this.version) return;
      const total = this.total;
      this.take(page * PAGE, answer);
      // Episodes that arrived since then wait for a reload, so that visible rows do not move.
      this.total = total;
      this.space.style.height = `${total * this.rowHeight}px`;
      this.pages.set(page, "here");
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
        : h(
            "div",
            { class: "row", data: { waits: "1" } },
            h("div", { class: "skeleton row-skeleton" }),
          );
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
