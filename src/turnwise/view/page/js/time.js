// Where did the time go? This view shows the phases of one step, and a row for each episode.

import { get, runPath } from "./api.js";
import {
  arrow,
  cssColor,
  empty,
  emptyCanvas,
  failed,
  fill,
  h,
  html,
  icon,
  loading,
  perFrame,
} from "./dom.js";
import { num, percent, plural, seconds } from "./format.js";
import { timeColor, timeWord } from "./metrics.js";
import { address, go, withParams } from "./route.js";

export function timeView(host) {
  let route = null;
  let data = null;
  let steps = [];
  let asked = 0;
  const head = h("header.time-head");
  const timeline = new Timeline({
    open: (id) => go({ run: route.run, view: "episodes", item: id, params: {} }),
    zoom: (from, to) =>
      go(withParams(route, { t: from === null ? null : `${from.toFixed(4)}-${to.toFixed(4)}` })),
  });
  const frame = h(".time", head, timeline.element);
  fill(host, loading(8, 30));

  async function load() {
    const mine = ++asked;
    try {
      const run = await get(runPath(route.run));
      if (mine !== asked) return;
      steps = run.steps ?? [];
      if (!steps.length)
        return void fill(host, empty("No steps yet", "The timeline of a step appears after it."));
      if (route.item === null) return void go({ ...route, item: steps.at(-1) }, { replace: true });
      data = await get(runPath(route.run, "steps", route.item, "timeline"), {
        kind: route.params.get("kind"),
      });
      if (mine !== asked) return;
      draw();
    } catch (error) {
      if (mine === asked) fill(host, failed(error, load));
    }
  }

  function draw() {
    if (frame.parentNode !== host) fill(host, frame);
    drawHead();
    const match = route.params.get("t")?.match(/^([\d.]+)-([\d.]+)$/);
    const bounds = match?.slice(1).map(Number);
    const zoom = bounds && bounds[1] > bounds[0] ? bounds : null;
    timeline.show(data, { zoom, episode: route.params.get("episode") });
  }

  function drawHead() {
    const at = steps.indexOf(Number(route.item));
    const step = (by) =>
      steps[at + by] === undefined ? null : address({ ...route, item: steps[at + by], params: {} });
    const spent = Object.entries(data.shares ?? {})
      .filter(([, took]) => took > 0)
      .sort((a, b) => b[1] - a[1]);
    const total = spent.reduce((sum, [, took]) => sum + took, 0) || 1;
    const shares = spent
      .map(([name, took]) => [name, took / total])
      .filter(([, share]) => share >= 0.0005);
    fill(
      head,
      html`<div class="conversation-title">
        <h1 class="num">Step ${num(data.step)}</h1>
        ${data.kind !== "train" && html`<span class="chip is-accent">${data.kind}</span>`}
        ${arrow(step(-1), "left", "Previous step (←)")}${arrow(step(1), "right", "Next step (→)")}
        <select class="select" aria-label="Step"
          onchange=${(event) => go({ ...route, item: event.target.value, params: {} })}>
          ${steps.map(
            (one) =>
              html`<option value=${one} selected=${one === Number(route.item)}>step ${one}</option>`,
          )}
        </select>
        <span class="soft num">
          ${seconds(Math.max(data.seconds, ...data.phases.map((one) => one.end)))},
          ${` ${plural(data.episodes.length, "episode")}`}
        </span>
        ${
          route.params.get("t") &&
          html`<button class="chip is-accent" onclick=${() => go(withParams(route, { t: null }))}>
            all of the step${icon("close")}
          </button>`
        }
        <span class="conversation-actions">
          <a class="button"
            href=${address({ run: route.run, view: "episodes", params: { step: route.item } })}>
            Episodes of this step
          </a>
        </span>
      </div>`,
      html`<div class="shares" role="img"
        aria-label=${shares.map(([name, share]) => `${timeWord(name)} ${percent(share)}`).join(", ")}>
        ${shares.map(([name, share]) => {
          const style = { "flex-grow": String(share), background: timeColor(name) };
          return html`<span style=${style} title=${`${timeWord(name)} ${percent(share, 1)}`} />`;
        })}
      </div>`,
      html`<div class="share-key num">
        ${shares.map(
          ([name, share]) => html`<span>
            <i style=${{ background: timeColor(name) }} />${timeWord(name)}${" "}
            <strong>${percent(share, share < 0.1 ? 1 : 0)}</strong>
          </span>`,
        )}
      </div>`,
    );
  }

  return {
    show(next) {
      const shown = (one) => `${one.run}/${one.item}/${one.params.get("kind")}`;
      const isSame = route && data && shown(route) === shown(next);
      route = next;
      if (isSame) draw();
      else load();
    },
    // A finished step does not change; only the list of steps grows.
    async live(changed) {
      if (!changed.includes(route.run)) return;
      if (!data) return load();
      const run = await get(runPath(route.run)).catch(() => null);
      if (run) {
        steps = run.steps ?? steps;
        drawHead();
      }
    },
    theme: () => data && draw(),
    key(event) {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const at = steps.indexOf(Number(route.item));
        const next = steps[at + (event.key === "ArrowLeft" ? -1 : 1)];
        if (next !== undefined) go({ ...route, item: next, params: {} });
        return true;
      }
      if (event.key === "Escape" && route.params.get("t")) {
        go(withParams(route, { t: null }));
        return true;
      }
      return false;
    },
    destroy() {
      asked += 1;
      timeline.destroy();
    },
  };
}

// ---- The timeline is drawn on a canvas; only the visible rows are drawn, however many there are.

const LEFT = 118;
const RIGHT = 18;
const AXIS = 26;
const PHASE = 30;
const TOP = AXIS + PHASE + 8;

export class Timeline {
  constructor(on) {
    this.on = on;
    this.canvas = html`<canvas class="timeline-canvas" role="img" aria-label="Timeline of the step" />`;
    this.space = h(".timeline-space");
    this.tip = h(".tip.hidden", { role: "tooltip" });
    this.element = h(".timeline", this.canvas, this.space, this.tip);
    this.draw = perFrame(() => this.drawNow());
    this.element.addEventListener("scroll", this.draw, { passive: true });
    this.resized = new ResizeObserver(this.draw);
    this.resized.observe(this.element);
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0) {
        this.drag = [event.offsetX, event.offsetX];
        this.canvas.setPointerCapture(event.pointerId);
      }
    });
    this.canvas.addEventListener("pointerup", (event) => this.drop(event));
    this.canvas.addEventListener("dblclick", () => this.on.zoom(null, null));
  }

  show(data, { zoom, episode }) {
    const isNew = data !== this.data;
    Object.assign(this, { data, zoom, chosen: episode });
    this.rows = isNew
      ? [...data.episodes].sort((a, b) => a.start - b.start || a.end - b.end)
      : this.rows;
    this.rowHeight = data.episodes.length > 80 ? 11 : data.episodes.length > 36 ? 13 : 18;
    this.space.style.height = `${TOP + this.rows.length * this.rowHeight + 24}px`;
    if (isNew) {
      const place = this.rows.findIndex((row) => row.id === episode);
      this.element.scrollTop =
        place < 0 ? 0 : Math.max(0, TOP + place * this.rowHeight - this.element.clientHeight / 2);
    }
    this.draw();
  }

  range() {
    const ends = [
      this.data.seconds ?? 0,
      ...this.data.phases.map((one) => one.end),
      ...this.rows.map((one) => one.end),
    ];
    return this.zoom ?? [0, Math.max(...ends, 1e-6)];
  }

  x(time) {
    const [from, to] = this.range();
    return LEFT + ((time - from) / (to - from)) * (this.width - LEFT - RIGHT);
  }

  time(x) {
    const [from, to] = this.range();
    return from + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (to - from);
  }

  drawNow() {
    if (!this.data) return;
    const { clientWidth: width, clientHeight: height, scrollTop } = this.element;
    if (!width || !height) return;
    this.width = width;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = emptyCanvas(this.canvas, width, height);
    this.colors = new Map();
    pen.fillStyle = cssColor("--line");
    for (const time of this.ticks()) pen.fillRect(Math.round(this.x(time)), AXIS, 1, height);
    this.drawRows(pen, height, scrollTop);
    this.drawTop(pen, width);
    if (!this.drag || Math.abs(this.drag[1] - this.drag[0]) < 5) return;
    pen.globalAlpha = 0.14;
    pen.fillStyle = cssColor("--accent");
    pen.fillRect(Math.min(...this.drag), AXIS, Math.abs(this.drag[1] - this.drag[0]), height);
  }

  color(name) {
    if (!this.colors.has(name)) this.colors.set(name, timeColor(name));
    return this.colors.get(name);
  }

  ticks() {
    const [from, to] = this.range();
    // Ticks are few enough that their labels do not touch.
    const rough = (to - from) / Math.max(2, Math.min(8, (this.x(to) - this.x(from)) / 62));
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const found = [];
    for (let time = Math.ceil(from / every) * every; time <= to; time += every) found.push(time);
    return found;
  }

  drawTop(pen, width) {
    pen.fillStyle = cssColor("--card");
    pen.fillRect(0, 0, width, TOP - 4);
    pen.font = `11px ${cssColor("--sans")}`;
    pen.textBaseline = "middle";
    pen.fillStyle = cssColor("--faint");
    pen.textAlign = "center";
    for (const time of this.ticks())
      pen.fillText(time === 0 ? "0" : seconds(time), this.x(time), AXIS / 2);
    pen.textAlign = "left";
    pen.fillText("phases", 20, AXIS + PHASE / 2);
    pen.fillStyle = cssColor("--line");
    pen.fillRect(0, TOP - 4, width, 1);
    for (const phase of this.data.phases)
      this.bar(pen, phase, AXIS + 3, PHASE - 6, this.color(phase.name), timeWord(phase.name));
  }

  bar(pen, { start, end }, y, height, color, label = null) {
    const from = Math.max(LEFT, this.x(start));
    const to = Math.min(this.width - RIGHT, this.x(end));
    if (to <= LEFT || from >= this.width - RIGHT || to < from) return;
    const wide = Math.max(to - from - (to - from > 3 ? 0.5 : 0), 0.7);
    pen.fillStyle = color;
    pen.beginPath();
    pen.roundRect(from, y, wide, height, Math.min(2.5, wide / 2));
    pen.fill();
    if (label && wide > pen.measureText(label).width + 14) {
      pen.fillStyle = cssColor("--on-accent");
      pen.font = `600 11px ${cssColor("--sans")}`;
      pen.fillText(label, from + 7, y + height / 2 + 0.5);
      pen.font = `11px ${cssColor("--sans")}`;
    }
  }

  drawRows(pen, height, scrollTop) {
    const first = Math.max(0, Math.floor((scrollTop - TOP) / this.rowHeight));
    const last = Math.min(
      this.rows.length - 1,
      Math.ceil((scrollTop + height - TOP) / this.rowHeight),
    );
    const thick = this.rowHeight - (this.rowHeight > 12 ? 4 : 2);
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    const [faint, base, accent, soft] = ["--faint", "--sunk", "--accent-soft", "--text"].map(
      cssColor,
    );
    const every = this.rowHeight < 13 ? 2 : 1;
    for (let place = first; place <= last; place += 1) {
      const row = this.rows[place];
      const y = TOP + place * this.rowHeight - scrollTop;
      const isChosen = row.id === this.chosen || row === this.hovered?.row;
      if (isChosen) {
        pen.fillStyle = accent;
        pen.fillRect(0, y, this.width, this.rowHeight);
      }
      if (place % every === 0 || isChosen) {
        pen.font = `${isChosen ? "600 " : ""}${this.rowHeight < 13 ? 10 : 11}px ${cssColor("--sans")}`;
        pen.fillStyle = isChosen ? soft : faint;
        pen.fillText(row.id, 20, y + this.rowHeight / 2);
      }
      const top = y + (this.rowHeight - thick) / 2;
      this.bar(pen, row, top, thick, base);
      for (const span of row.spans) this.bar(pen, span, top, thick, this.color(span.kind));
    }
  }

  at(event) {
    const time = this.time(event.offsetX);
    if (event.offsetX < LEFT && event.offsetY < TOP) return null;
    const slack = Math.abs(this.time(event.offsetX + 1.5) - time);
    const hit = (spans) =>
      spans.find((span) => time >= span.start && time <= span.end) ??
      spans.find((span) => time >= span.start - slack && time <= span.end + slack);
    if (event.offsetY < TOP - 4) {
      const phase = hit(this.data.phases);
      return phase && { phase, key: phase.name };
    }
    const row =
      this.rows[Math.floor((event.offsetY + this.element.scrollTop - TOP) / this.rowHeight)];
    if (!row) return null;
    const span = hit(row.spans);
    return { row, span, key: `${row.id}/${span?.start}` };
  }

  move(event) {
    if (!this.data) return;
    if (this.drag) {
      this.drag[1] = event.offsetX;
      this.draw();
    }
    const found = this.at(event);
    if (found?.row !== this.hovered?.row) this.draw();
    this.hovered = found;
    this.canvas.style.cursor = found?.row ? "pointer" : "crosshair";
    this.tip.classList.toggle("hidden", !found);
    if (!found) return;
    fill(this.tip, tipWords(found));
    this.tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 260)}px`;
    this.tip.style.top = `${Math.min(event.clientY + 14, innerHeight - 110)}px`;
  }

  leave() {
    this.hovered = null;
    this.tip.classList.add("hidden");
    this.draw();
  }

  drop(event) {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) >= 5) {
      const [from, to] = drag
        .map((x) => Math.max(0, this.time(Math.min(this.width - RIGHT, Math.max(LEFT, x)))))
        .sort((a, b) => a - b);
      if (to - from > 1e-4) this.on.zoom(from, to);
      this.draw();
      return;
    }
    const found = this.at(event);
    if (found?.row) this.on.open(found.row.id);
    else if (found?.phase) this.on.zoom(found.phase.start, found.phase.end);
  }

  destroy() {
    this.draw.cancel();
    this.resized.disconnect();
  }
}

function tipWords({ phase, row, span }) {
  if (phase)
    return [
      h("strong", timeWord(phase.name)),
      h(".soft.num", `${seconds(phase.end - phase.start)}, from ${seconds(phase.start)}`),
    ];
  return [
    h("strong.num", row.id),
    span
      ? html`<div class="num">
        <i class="tip-dot" style=${{ background: timeColor(span.kind) }} />
        ${timeWord(span.kind)}${span.turn >= 0 ? `, turn ${num(span.turn + 1)}` : ""}:
        ${` ${seconds(span.end - span.start)}`}
      </div>`
      : null,
    h(".soft.num", `all of it ${seconds(row.end - row.start)}, from ${seconds(row.start)}`),
  ];
}
