// The stream draws tokens as spans, in blocks of turns; blocks that are not visible cost nothing.

import { sharedWords } from "./branches.js";
import { cssColor, emptyCanvas, fill, h, html, perFrame } from "./dom.js";
import { hasHidden, num, percent, plural, signed, visible } from "./format.js";

const CHUNK = 400;
const KEPT_MS = 3000;

export class TokenStream {
  constructor(on) {
    this.on = on;
    this.element = html`<div class="stream" role="listbox" aria-label="Tokens" tabindex="0" />`;
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
    const gutter = html`<div class="gutter">
      <strong>
        ${
          turn >= 0
            ? `turn ${turn + 1}`
            : sampled
              ? "no turn"
              : start <= this.data.mask.indexOf(1) || start === 0
                ? "initial prompt"
                : this.between
        }
      </strong>
      ${this.data.sharing && html`<span>${sharedWords(this.data.sharing[start])}</span>`}
      <span class="num">${plural(length, sampled ? "sampled token" : "prompt token")}</span>
      ${turn >= 0 && turnNotes(turn)}
    </div>`;
    const flow = h(".flow", this.chunks(start, end));
    const unfold = (event) => {
      event.stopPropagation();
      event.currentTarget.closest(".seg").classList.add("is-open");
    };
    const folded =
      !sampled &&
      html`<button class="fold-button" tabindex="-1" onclick=${unfold}>
        ${plural(length, "prompt token")}
      </button>`;
    const kind = sampled ? "is-sampled" : "is-prompt";
    const shared = this.data.sharing?.[start].length > 1 ? "is-shared" : "";
    return html`<section class="seg ${kind} ${shared}" data-turn=${turn}>
      ${gutter}<div class="seg-body">${flow}${folded}</div>
    </section>`;
  }

  chunks(start, end) {
    const chunks = [];
    let chunk = null;
    let held = 0;
    for (let index = start; index < end; index += 1) {
      if (chunk === null) {
        chunk = h(".chunk");
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

const SPACES = { " ": "·", "\t": "⇥", "\r": "␍", "\n": "↵" };
const spelled = (text) => text.replace(/[ \t\n\r]/g, (space) => SPACES[space]);

function spell(span, text) {
  for (const part of text.split(/([ \t\n\r]+)/).filter(Boolean))
    span.append(/^[ \t\n\r]/.test(part) ? html`<i>${spelled(part)}</i>` : visible(part));
}

function segments({ count, mask, turn, sharing }) {
  const found = [];
  const isSame = (a, b) =>
    turn[a] === turn[b] && mask[a] === mask[b] && sharing?.[a].length === sharing?.[b].length;
  for (let start = 0, end = 1; start < count; start = end, end += 1) {
    while (end < count && isSame(start, end)) end += 1;
    found.push({ start, end, turn: turn[start], sampled: Boolean(mask[start]) });
  }
  return found;
}

// ---- The overview shows the whole stream as one strip: the sampled tokens, and how strong their
// colours are.

const HEIGHT = 30;

export class Overview {
  constructor(choose) {
    this.canvas = html`<canvas class="overview" height=${HEIGHT} title="The whole stream; click to go there" />`;
    this.draw = perFrame(() => this.drawNow());
    this.resized = new ResizeObserver(this.draw);
    this.resized.observe(this.canvas);
    const pick = (event) => {
      if (!this.data || (event.type === "pointermove" && !event.buttons)) return;
      const box = this.canvas.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * this.data.count);
      choose(Math.min(this.data.count - 1, Math.max(0, at)));
    };
    this.canvas.addEventListener("pointerdown", pick);
    this.canvas.addEventListener("pointermove", pick);
  }

  set(data, scale, values) {
    Object.assign(this, { data, scale, values });
    this.draw();
  }

  select(index) {
    this.selected = index;
    this.draw();
  }

  drawNow() {
    const { canvas, data, scale, values } = this;
    const width = canvas.clientWidth;
    if (!data || !width) return;
    const pen = emptyCanvas(canvas, width, HEIGHT);
    const [plus, minus, accent, line] = ["--plus", "--minus", "--accent", "--line"].map(cssColor);
    const perPixel = data.count / width;
    for (let x = 0; x < width; x += 1) {
      const from = Math.floor(x * perPixel);
      const to = Math.max(from + 1, Math.floor((x + 1) * perPixel));
      let sampled = false;
      let level = 0;
      for (let at = from; at < to && at < data.count; at += 1) {
        if (!data.mask[at]) continue;
        sampled = true;
        const own = values ? scale.level(values[at]) : 0;
        if (Math.abs(own) > Math.abs(level)) level = own;
      }
      pen.fillStyle = sampled ? accent : line;
      pen.fillRect(x, HEIGHT - 5, 1, sampled ? 5 : 2);
      if (!sampled || !level) continue;
      pen.fillStyle = scale.choice.oneSided ? accent : level > 0 ? plus : minus;
      const tall = (Math.abs(level) / LEVELS) * (HEIGHT - 9);
      pen.fillRect(x, HEIGHT - 7 - tall, 1, tall);
    }
    if (this.selected !== null && this.selected !== undefined) {
      const x = ((this.selected + 0.5) / data.count) * width;
      pen.fillStyle = cssColor("--text");
      pen.fillRect(x - 0.75, 0, 1.5, HEIGHT);
    }
  }

  destroy() {
    this.draw.cancel();
    this.resized.disconnect();
  }
}

// ---- The panel next to the tokens shows the numbers of one token, and the sums of each turn.

const TITLES = {
  sampler_log_probs: "log-prob, sampler",
  log_probs: "log-prob, learner",
  gap: "gap",
  advantages: "advantage",
  values: "value",
  returns: "return",
};
const ORDER = Object.keys(TITLES);
const PART = "part of a character";

export function drawInspector(place, { data, columns, index, isHover, choice }) {
  if (index === null || index === undefined) return;
  const text = data.tokens ? data.tokens[index] : null;
  const sampled = Boolean(data.mask[index]);
  const turn = data.turn[index];
  const names = [
    ...ORDER.filter((name) => columns[name]),
    ...Object.keys(columns).filter((name) => !ORDER.includes(name)),
  ];
  const sampler = columns.sampler_log_probs?.[index];
  const gap = columns.gap?.[index];
  const fact = (label, value, extra = "") =>
    h("div", { class: `fact ${extra}` }, h("dt", label), h("dd.num", value));
  fill(
    place,
    html`<div class="token-big">
      <span class="mono token-text ${sampled ? "s" : ""}">
        ${text === null ? "no text" : hasHidden(text) ? visible(text) : spelled(text) || PART}
      </span>
      <span class="chip ${sampled ? "is-accent" : ""}">
        ${sampled ? "sampled token" : "prompt token"}
      </span>
    </div>`,
    html`<dl>
      ${fact("position", `${num(data.at?.[index] ?? index)} of ${num((data.whole ?? data).count)}`)}
      ${fact("id", String(data.ids[index]))}
      ${fact("turn", turn >= 0 ? num(turn + 1) : "none")}
      ${data.sharing && fact("branch", num(data.branch[index] + 1))}
      ${data.sharing?.[index].length > 1 && fact("shared by", sharedWords(data.sharing[index]))}
      ${fact("mask", sampled ? "1, trained on" : "0, not trained on")}
      ${names.map((name) =>
        fact(
          TITLES[name] ?? name.replaceAll("_", " "),
          (["advantages", "gap"].includes(name) ? signed : num)(columns[name][index], 4),
          name === choice?.name ? "is-chosen" : "",
        ),
      )}
      ${typeof sampler === "number" && fact("probability", percent(Math.exp(sampler), 2))}
      ${typeof gap === "number" && fact("ratio", num(Math.exp(gap), 5))}
    </dl>`,
  );
  place.dataset.token = String(index);
  place.classList.toggle("is-hover", isHover);
}

// Draws for each turn its number of tokens, sum and mean of the chosen column, and its reward.
export function drawSums(place, { data, columns, choice, agent, go }) {
  const name = choice.name === "mask" ? "sampler_log_probs" : choice.name;
  const values = columns[name];
  const turns = new Map();
  data.turn.forEach((turn, index) => {
    if (!data.mask[index]) return;
    const one = turns.get(turn) ?? { count: 0, sum: 0, known: 0 };
    one.count += 1;
    if (values && values[index] !== null) {
      one.sum += values[index];
      one.known += 1;
    }
    turns.set(turn, one);
  });
  const rewards = agent?.reward?.turns ?? agent?.reward?.per_turn ?? null;
  const rewardOf = (turn) => rewards?.[turn] ?? agent?.turns[turn]?.reward ?? null;
  const turnLink = (turn) => html`<button class="link-button num" title="Go to this turn"
    onclick=${() => go(turn)}>
    ${turn + 1}
  </button>`;
  const rows = [...turns].map(
    ([turn, one]) => html`<tr>
      <td>
        ${turn < 0 ? "none" : turnLink(turn)}
      </td>
      <td>${num(one.count)}</td><td>${one.known ? num(one.sum) : "–"}</td>
      <td>${one.known ? num(one.sum / one.known) : "–"}</td>
      <td class=${rewardOf(turn) > 0 ? "plus" : rewardOf(turn) < 0 ? "minus" : ""}>
        ${num(rewardOf(turn))}
      </td>
    </tr>`,
  );
  fill(
    place,
    html`<table class="sums num">
      <caption>By turn: ${TITLES[name] ?? name.replaceAll("_", " ")}</caption>
      <thead>
        <tr>
          ${["turn", "tokens", "sum", "mean", "reward"].map((title) => html`<th>${title}</th>`)}
        </tr>
      </thead>
      <tbody>${rows}</tbody>
    </table>`,
  );
}

// ---- This module maps numbers of tokens to colours: it lists the columns, and scales each of them.

export const LEVELS = 10;

const KNOWN = [
  {
    name: "advantages",
    title: "Advantage",
    help: "how much better than expected: what the update pushes by",
  },
  {
    name: "sampler_log_probs",
    title: "Log-prob",
    help: "at the moment of sampling",
    oneSided: true,
  },
  { name: "gap", title: "Gap", help: "learner's log-prob minus the sampler's: should be about 0" },
  { name: "values", title: "Value", help: "the critic's estimate of the return" },
  { name: "returns", title: "Return", help: "the target of the critic" },
];
const IN_OTHERS = new Set(["log_probs"]);

export function readColumns(data) {
  const columns = { ...data.columns };
  const { sampler_log_probs: sampled, log_probs: learned } = columns;
  if (sampled && learned)
    columns.gap = learned.map((value, i) =>
      value === null || sampled[i] === null ? null : value - sampled[i],
    );
  return columns;
}

export function choices(columns) {
  const known = KNOWN.filter((one) => columns[one.name]?.some((value) => value !== null));
  const rest = Object.keys(columns).filter(
    (name) => !IN_OTHERS.has(name) && !KNOWN.some((one) => one.name === name),
  );
  return [
    ...known,
    ...rest.map((name) => ({ name, title: name.replaceAll("_", " "), help: "" })),
    { name: "mask", title: "Mask only", help: "sampled tokens and prompt tokens" },
  ];
}

// The strongest colour is for unusual values: beyond the usual range, and not far below the
// largest, so that one odd token among many ordinary ones stands out.
export class Scale {
  constructor(choice, values) {
    this.choice = choice;
    const sizes = (values ?? []).filter((value) => value !== null).map(Math.abs);
    sizes.sort((a, b) => a - b);
    const usual = sizes[Math.floor((sizes.length - 1) * 0.98)] ?? 0;
    this.most = Math.max(usual, (sizes.at(-1) ?? 0) / 3);
  }

  level(value) {
    if (value === null || value === undefined || !this.most) return 0;
    const strength = Math.min(1, Math.abs(value) / this.most);
    return Math.round(LEVELS * strength) * (value < 0 && !this.choice.oneSided ? -1 : 1);
  }

  className(value) {
    const level = this.level(value);
    if (!level) return "";
    const sign = this.choice.oneSided ? "is-one" : level > 0 ? "is-plus" : "is-minus";
    return `${sign} l${Math.abs(level)}`;
  }

  labels() {
    if (this.choice.oneSided) return ["0", num(-this.most, 2)];
    return [num(-this.most, 2), "0", `+${num(this.most, 2)}`];
  }
}

export function audit(data, columns) {
  const { mask, turn } = data;
  const count = (test) => mask.reduce((sum, _, i) => sum + (test(i) ? 1 : 0), 0);
  const checks = [];
  const say = (isWell, text) => checks.push({ isWell, text });
  const outside = count((i) => mask[i] && turn[i] < 0);
  const within = count((i) => !mask[i] && turn[i] >= 0);
  if (outside) say(false, `${num(outside)} sampled tokens belong to no turn`);
  if (within) say(false, `${num(within)} tokens of turns are not marked as sampled`);
  if (!outside && !within) say(true, "The mask covers exactly the tokens of turns");
  if (columns.advantages) {
    const without = count((i) => mask[i] && columns.advantages[i] === null);
    const extra = count(
      (i) => !mask[i] && columns.advantages[i] !== null && columns.advantages[i] !== 0,
    );
    if (without) say(false, `${num(without)} sampled tokens have no advantage`);
    if (extra)
      say(false, `${plural(extra, "prompt token")} ${extra === 1 ? "has" : "have"} an advantage`);
    if (!without && !extra) say(true, "Exactly the sampled tokens have an advantage");
  }
  if (columns.gap) {
    const widest = columns.gap.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
    say(widest < 0.05, `Sampler and learner differ by at most ${num(widest, 2)}`);
  }
  return checks;
}
