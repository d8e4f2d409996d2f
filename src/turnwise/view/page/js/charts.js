// One small chart: the curves of one metric for each run that is shown, drawn by uPlot.

import { before, lines, padded, shares, spread } from "./curves.js";
import { cssColor, fill, h } from "./dom.js";
import { num, percent } from "./format.js";

/* global uPlot */

const HEIGHT = 132;
const SHARES = new Set([
  "success",
  "truncated",
  "cut_turns",
  "invalid_actions",
  "errors",
  "clip_fraction",
  "tool_failures",
  "malformed_calls",
  "zero_variance",
]);
export class Chart {
  // `look` tells how it is drawn now: runs [{key, color, metrics}], smooth, range, findings, pinned.
  constructor(spec, look, on) {
    this.spec = spec;
    this.on = on;
    this.values = h("div", { class: "chart-values num" });
    this.place = h("div", { class: "chart-place" });
    this.element = h(
      "figure",
      { class: "chart card", data: { metric: spec.name } },
      h(
        "figcaption",
        null,
        h("span", { class: "chart-title", title: spec.name }, spec.title),
        this.values,
      ),
      this.place,
    );
    this.look = look;
    this.plot = null;
  }

  update(look) {
    this.look = look;
    const shape =
      JSON.stringify(look.runs.map((run) => [run.key, run.color])) + (look.smooth > 0) + look.theme;
    if (this.plot && shape === this.shape) {
      this.plot.setData(this.data(), false);
      this.rescale();
      this.showValues(null);
      return;
    }
    this.shape = shape;
    this.draw();
  }

  draw() {
    this.destroy();
    const width = this.place.clientWidth;
    if (!width) return;
    const data = this.data();
    this.plot = new uPlot(this.options(width), data, this.place);
    this.showValues(null);
  }

  resize() {
    const width = this.place.clientWidth;
    if (!width) return;
    if (!this.plot) this.draw();
    else if (Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }

  // All runs on one axis of steps; a run that has no such step has no value there.
  data() {
    const { runs, smooth: weight } = this.look;
    const steps = [...new Set(runs.flatMap((run) => run.metrics.steps))].sort((a, b) => a - b);
    this.curves = this.spec.parts ? shares(this.spec, runs[0]) : lines(this.spec, runs, weight);
    return [steps, ...this.curves.map((curve) => spread(steps, curve.steps, curve.values))];
  }

  options(width) {
    const grid = { stroke: cssColor("--line"), width: 1 };
    const axis = {
      stroke: cssColor("--faint"),
      font: `11px ${cssColor("--sans")}`,
      grid,
      ticks: { show: false },
    };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      padding: [6, 6, 0, 0],
      cursor: {
        y: false,
        points: { size: 5 },
        drag: { x: true, y: false, setScale: false },
        move: (plot, left, top) => [nearestStep(plot, left), top],
        sync: {
          key: "learn",
          filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
        },
      },
      scales: {
        x: {
          time: false,
          range: (plot, min, max) =>
            this.look.range ?? (min === max ? [min - 1, max + 1] : [min, max]),
        },
        y: {
          range: this.spec.parts
            ? [0, 1]
            : (plot, min, max) => padded(min, max, SHARES.has(this.spec.name)),
        },
      },
      axes: [
        {
          ...axis,
          size: 22,
          gap: 4,
          space: 60,
          grid: { show: false },
          values: (plot, values) => values.map((v) => (Number.isInteger(v) ? num(v) : "")),
        },
        {
          ...axis,
          size: 46,
          gap: 4,
          space: 34,
          values: (plot, values) =>
            values.map((v) =>
              this.spec.parts || SHARES.has(this.spec.name)
                ? percent(v, v && v < 0.01 ? 2 : 0)
                : num(v, 4),
            ),
        },
      ],
      series: [{}, ...this.curves.map((curve) => this.line(curve))],
      hooks: {
        setCursor: [
          (plot) => {
            this.showValues(plot.cursor.idx);
            this.on.hover(plot.data[0][plot.cursor.idx] ?? null);
          },
        ],
        setSelect: [(plot) => this.select(plot)],
        draw: [(plot) => this.markers(plot)],
        ready: [(plot) => this.clicks(plot)],
      },
    };
  }

  line(curve) {
    const stroke = curve.faint ? `${curve.color}55` : curve.color;
    const isLonely = curve.values.filter((value) => value !== null).length < 2;
    return {
      stroke: curve.filled ? null : stroke,
      fill: curve.filled ? curve.color : null,
      width: curve.filled ? 0 : curve.faint ? 1 : curve.beside ? 1.25 : 1.75,
      dash: curve.dash,
      spanGaps: true,
      points: {
        show: Boolean(curve.points) || isLonely,
        size: 4.5,
        fill: curve.color,
        stroke: curve.color,
      },
    };
  }

  rescale() {
    const steps = this.plot.data[0];
    const [min, max] = this.look.range ?? [steps[0], steps.at(-1)];
    this.plot.setScale("x", { min, max });
  }

  select(plot) {
    // The cursor jumps from step to step: only the pointer itself knows a click from a drag.
    const moved = Math.abs((plot.cursor.event?.clientX ?? this.downAt) - this.downAt);
    if (moved < 5 || !plot.select.width) {
      if (plot.select.width) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      return;
    }
    const from = Math.ceil(plot.posToVal(plot.select.left, "x"));
    const to = Math.floor(plot.posToVal(plot.select.left + plot.select.width, "x"));
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (to > from) this.on.zoom(from, to);
  }

  // Not by its click, which the library keeps to itself when the cursor has jumped.
  clicks(plot) {
    plot.over.addEventListener("mousedown", (event) => {
      this.downAt = event.clientX;
    });
    plot.over.addEventListener("mouseup", (event) => {
      const step = plot.data[0][plot.cursor.idx];
      if (Math.abs(event.clientX - this.downAt) < 5 && step !== undefined) this.on.pin(step);
    });
    plot.over.addEventListener("dblclick", () => this.on.zoom(null, null));
  }

  // The doctor's findings, and the step that was chosen.
  markers(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const vertical = (step, color, dash) => {
      const x = Math.round(plot.valToPos(step, "x", true)) + 0.5;
      if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return null;
      ctx.strokeStyle = ctx.fillStyle = color;
      ctx.lineWidth = ratio;
      ctx.setLineDash(dash.map((one) => one * ratio));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      return x;
    };
    ctx.save();
    for (const finding of this.look.findings) {
      const x = vertical(finding.step, cssColor("--warn"), [2, 3]);
      if (x === null) continue;
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top - 1 * ratio);
      ctx.lineTo(x + 4 * ratio, bbox.top - 1 * ratio);
      ctx.lineTo(x, bbox.top + 6 * ratio);
      ctx.fill();
    }
    if (this.look.pinned !== null) vertical(this.look.pinned, cssColor("--accent"), []);
    ctx.restore();
  }

  showValues(place) {
    if (!this.plot) return;
    const steps = this.plot.data[0];
    let at = place;
    if (at === null || at === undefined)
      at = this.look.pinned === null ? steps.length - 1 : steps.indexOf(this.look.pinned);
    const shown = this.curves
      .map((curve, number) => [curve, this.plot.data[number + 1]])
      .filter(([curve]) => curve.shown || (curve.beside && this.look.runs.length === 1));
    if (this.spec.parts) {
      const parts = shown.map(([curve]) => [
        curve,
        curve.share[curve.steps.indexOf(steps[at])] ?? 0,
      ]);
      const largest = [...parts].sort((a, b) => b[1] - a[1]).slice(0, 2);
      fill(
        this.values,
        largest.map(([curve, share]) =>
          h(
            "span",
            null,
            h("i", { style: { background: curve.color } }),
            `${curve.label} ${percent(share)}`,
          ),
        ),
      );
      return;
    }
    const isShare = SHARES.has(this.spec.name);
    const texts = shown.map(([curve, values]) => {
      const value =
        at < 0 ? null : curve.beside || place === null ? before(values, at) : values[at];
      if (value === null) return null;
      const single = shown.length === 1;
      return h(
        "span",
        { title: curve.label },
        single
          ? null
          : h("i", {
              class: curve.beside ? "is-ring" : "",
              style: {
                background: curve.beside ? "transparent" : curve.color,
                "border-color": curve.color,
              },
            }),
        curve.beside && this.look.runs.length === 1 ? `${curve.label} ` : "",
        isShare ? percent(value, value && value < 0.01 ? 2 : 0) : num(value),
      );
    });
    fill(this.values, texts.slice(0, 6));
  }
}

// The cursor stands on a step, never between two.
function nearestStep(plot, left) {
  if (left < 0) return left;
  return plot.valToPos(plot.data[0][plot.posToIdx(left)], "x");
}
