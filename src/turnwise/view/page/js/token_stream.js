// The stream draws tokens as spans, in blocks of turns; blocks that are not visible cost nothing.

import { sharedWords } from "./branches.js";
import { button, fill, h } from "./dom.js";
import { plural } from "./format.js";
import { hasHidden, visible } from "./visible.js";

const CHUNK = 400;
const KEPT_MS = 3000;

export class TokenStream {
  constructor(on) {
    this.on = on;
    this.element = h("div", {
      class: "stream",
      role: "listbox",
      "aria-label": "Tokens",
      tabindex: "0",
    });
    this.spans = [];
    this.element.addEventListener("pointerover", (event) => this.point(event, on.hover));
    this.grown = new ResizeObserver(() => this.keep());
    this.grown.observe(this.element);
    this.element.addEventListener("wheel", () => (this.kept = null), { passive: true });
    this.element.addEventListener("pointerleave", () => on.hover(null));
    this.element.addEventListener("click", (event) => this.point(event, on.select));
  }

  point(event, onPoint) {
    const span = event.target.closest(".tok");
    if (span && span.index !== undefined) onPoint(span.index);
  }

  // `between` names the tokens between two turns.
  draw(data, turnNotes, between = "environment") {
    this.data = data;
    this.between = between;
    this.spans = new Array(data.count);
    this.classes = new Array(data.count).fill("");
    fill(
      this.element,
      segments(data).map((segment) => this.segment(segment, turnNotes)),
    );
    this.selected = null;
  }

  segment({ start, end, turn, sampled }, turnNotes) {
    const length = end - start;
    const gutter = h(
      "div",
      { class: "gutter" },
      h(
        "strong",
        null,
        turn >= 0
          ? `turn ${turn + 1}`
          : sampled
            ? "no turn"
            : start <= this.data.mask.indexOf(1) || start === 0
              ? "initial prompt"
              : this.between,
      ),
      this.data.sharing ? h("span", null, sharedWords(this.data.sharing[start])) : null,
      h("span", { class: "num" }, plural(length, sampled ? "sampled token" : "prompt token")),
      turn >= 0 ? turnNotes(turn) : null,
    );
    const flow = h("div", { class: "flow" }, this.chunks(start, end));
    const folded = sampled
      ? null
      : button(plural(length, "prompt token"), {
          class: "fold-button",
          tabindex: "-1",
          onclick: (event) => {
            event.stopPropagation();
            event.currentTarget.closest(".seg").classList.add("is-open");
          },
        });
    return h(
      "section",
      {
        class: `seg ${sampled ? "is-sampled" : "is-prompt"} ${this.data.sharing?.[start].length > 1 ? "is-shared" : ""}`,
        data: { turn },
      },
      gutter,
      h("div", { class: "seg-body" }, flow, folded),
    );
  }

  chunks(start, end) {
    const chunks = [];
    let chunk = null;
    let held = 0;
    for (let index = start; index < end; index += 1) {
      if (chunk === null) {
        chunk = h("div", { class: "chunk" });
        chunks.push(chunk);
        held = 0;
      }
      const text = this.data.tokens ? this.data.tokens[index] : null;
      chunk.append(this.token(index, text));
      held += 1;
      const endsLine = text?.includes("\n");
      if (endsLine && index + 1 < end && held < CHUNK) chunk.append(h("br"));
      else if ((endsLine && held >= CHUNK) || held >= 2 * CHUNK) chunk = null;
    }
    for (const one of chunks)
      one.style.setProperty("contain-intrinsic-size", `auto ${height(one)}px`);
    return chunks;
  }

  token(index, text) {
    const span = document.createElement("span");
    span.index = index;
    span.className = this.baseClass(index);
    if (text === null || text === undefined) span.textContent = String(this.data.ids[index]);
    else if (/[ \t\n\r]/.test(text) || hasHidden(text)) spell(span, text);
    else span.textContent = text;
    this.spans[index] = span;
    return span;
  }

  // A token without text is part of a character that a later token ends.
  baseClass(index) {
    const part = this.data.tokens && this.data.tokens[index] === "" ? " is-part" : "";
    return (this.data.mask[index] ? "tok s" : "tok") + part;
  }

  paint(scale, values) {
    for (let index = 0; index < this.spans.length; index += 1) {
      const color = values && this.data.mask[index] ? scale.className(values[index]) : "";
      if (this.classes[index] === color) continue;
      this.classes[index] = color;
      this.spans[index].className = `${this.baseClass(index)} ${color}`;
    }
    if (this.selected !== null) this.spans[this.selected]?.classList.add("is-here");
  }

  select(index, { reveal = false } = {}) {
    if (this.selected !== null) this.spans[this.selected]?.classList.remove("is-here");
    this.selected = index;
    const span = index === null ? null : this.spans[index];
    if (!span) return;
    span.classList.add("is-here");
    span.closest(".seg").classList.add("is-open");
    if (reveal) this.bringUp(index, "nearest");
  }

  bringUp(index, block = "center") {
    this.kept = { index, block, until: performance.now() + KEPT_MS };
    this.spans[index]?.scrollIntoView({ block });
  }

  // Keeps the chosen token visible, unless the user scrolls: blocks get their true height only when
  // they are drawn, and text when the font is loaded.
  keep() {
    if (!this.kept || performance.now() > this.kept.until) return;
    this.spans[this.kept.index]?.scrollIntoView({ block: this.kept.block });
  }

  destroy() {
    this.grown.disconnect();
  }

  // Returns the token above or below: the nearest one in the next line in that direction.
  neighbour(index, way) {
    const from = this.spans[index].getBoundingClientRect();
    const x = from.left + from.width / 2;
    let best = null;
    let line = null;
    for (let at = index + way; at >= 0 && at < this.spans.length; at += way) {
      const box = this.spans[at].getBoundingClientRect();
      if (Math.abs(box.top - from.top) < 4) continue;
      if (line === null) line = box.top;
      if (Math.abs(box.top - line) > 4) break;
      const distance = Math.abs(box.left + box.width / 2 - x);
      if (best !== null && distance > best.distance) break;
      best = { at, distance };
    }
    return best?.at ?? index;
  }
}

// Estimates the height of a chunk, so that the page hardly moves when it is drawn.
function height(chunk) {
  const numLines = 1 + chunk.querySelectorAll("br").length;
  return 26 * Math.max(numLines, Math.ceil(chunk.textContent.length / 90));
}

function spell(span, text) {
  const parts = text.split(/([ \t\n\r]+)/);
  for (const part of parts) {
    if (!part) continue;
    if (/^[ \t\n\r]/.test(part))
      span.append(
        h(
          "i",
          null,
          part
            .replaceAll(" ", "·")
            .replaceAll("\t", "⇥")
            .replaceAll("\r", "␍")
            .replaceAll("\n", "↵"),
        ),
      );
    else span.append(visible(part));
  }
}

export function segments({ count, mask, turn, sharing }) {
  const found = [];
  const isSame = (a, b) =>
    turn[a] === turn[b] && mask[a] === mask[b] && sharing?.[a].length === sharing?.[b].length;
  for (let start = 0, end = 1; start < count; start = end, end += 1) {
    while (end < count && isSame(start, end)) end += 1;
    found.push({ start, end, turn: turn[start], sampled: Boolean(mask[start]) });
  }
  return found;
}
