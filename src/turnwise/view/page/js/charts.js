// A chart shows the curves of one metric for each run that is shown; uPlot draws it.

import { axes, padding, scales } from "./chart_axes.js";
import { showValues } from "./chart_values.js";
import { lines, shares, spread } from "./curves.js";
import { cssColor, h } from "./dom.js";
import { plural } from "./format.js";

/* global uPlot */

const HEIGHT = 132;

export class Chart {
  // `options` are the drawing options: runs [{key, color, metrics, xs}], axis, isLog,
  // hiddenKinds, smooth, range, findings, pinned; all places are on the x axis.
  constructor(spec, options, on) {
    this.spec = spec;
    this.on = on;
    this.values = h("div", { class: "chart-values num" });
    this.scale = h("span", { class: "chart-scale" });
    this.zeros = h("span", { class: "chart-zeros" });
    this.place = h("div", { class: "chart-place" }, this.zeros);
    this.element = h(
      "figure",
      { class: "chart card", data: { metric: spec.name } },
      h(
        "figcaption",
        null,
        h("span", { class: "chart-title", title: spec.name }, spec.title),
        this.scale,
        this.values,
      ),
      this.place,
    );
    this.options = options;
    this.plot = null;
  }

  update(options) {
    this.options = options;
    const data = this.data();
    const shape = JSON.stringify([
      this.curves.map((curve) => [curve.label, curve.color, curve.faint]),
      options.theme,
      options.axis.name,
      this.isLog,
    ]);
    if (this.plot && shape === this.shape) {
      this.plot.setData(data, false);
      this.rescale();
      showValues(this, null);
      return;
    }
    this.shape = shape;
    this.draw(data);
  }

  draw(data = this.data()) {
    this.destroy();
    const width = this.place.clientWidth;
    if (!width) return;
    this.plot = new uPlot(this.plotOptions(width), data, this.place);
    showValues(this, null);
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

  // Brings all runs to one axis; a run that has no value at a place has null there.
  data() {
    const { runs, smooth, hiddenKinds } = this.options;
    const xs = [...new Set(runs.flatMap((run) => run.xs ?? []))].sort((a, b) => a - b);
    this.curves = this.spec.phases
      ? shares(this.spec, runs[0])
      : lines(this.spec, runs, smooth, hiddenKinds);
    this.chooseScale();
    return [
      xs,
      ...this.curves.map((curve) => {
        const values = spread(xs, curve.xs, curve.values);
        return this.isLog ? values.map((value) => (value > 0 ? value : null)) : values;
      }),
    ];
  }

  // A chart with negative values stays linear. Zeros are left out of a logarithmic chart, and the
  // chart says how many.
  chooseScale() {
    const values = this.curves
      .filter((curve) => !curve.faint)
      .flatMap((curve) => curve.values.filter((value) => value !== null));
    const hasNegative = values.some((value) => value < 0);
    this.isLog =
      this.options.isLog && !this.spec.phases && !hasNegative && values.some((value) => value > 0);
    const numZeros = values.filter((value) => value === 0).length;
    this.scale.textContent = this.isLog ? "log" : "";
    this.zeros.textContent = this.isLog && numZeros ? `${plural(numZeros, "zero")} not drawn` : "";
  }

  plotOptions(width) {
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      padding: padding(this),
      cursor: {
        y: false,
        points: { size: 5 },
        drag: { x: true, y: false, setScale: false },
        move: (plot, left, top) => [nearest(plot, left), top],
        sync: {
          key: "learn",
          filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
        },
      },
      scales: scales(this),
      axes: axes(this),
      series: [{}, ...this.curves.map((curve) => this.line(curve))],
      hooks: {
        setCursor: [
          (plot) => {
            showValues(this, plot.cursor.idx);
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
    const isLonely = curve.values.filter((value) => value !== null).length < 2;
    const isEvaluation = curve.kind !== "training";
    return {
      stroke: curve.filled ? null : curve.faint ? `${curve.color}55` : curve.color,
      fill: curve.filled ? curve.color : null,
      width: curve.filled ? 0 : curve.faint ? 1 : isEvaluation ? 1.25 : 1.75,
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
    const xs = this.plot.data[0];
    const [min, max] = this.options.range ?? [xs[0], xs.at(-1)];
    this.plot.setScale("x", { min, max });
  }

  select(plot) {
    // The cursor jumps from point to point, so only the pointer's own place tells a click from a
    // drag.
    const moved = Math.abs((plot.cursor.event?.clientX ?? this.downAt) - this.downAt);
    const { left, width } = plot.select;
    if (width) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (moved < 5 || !width) return;
    this.on.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  // This listens to the pointer, because uPlot swallows the click when its cursor has jumped.
  clicks(plot) {
    plot.over.addEventListener("mousedown", (event) => {
      this.downAt = event.clientX;
    });
    plot.over.addEventListener("mouseup", (event) => {
      const x = plot.data[0][plot.cursor.idx];
      if (Math.abs(event.clientX - this.downAt) < 5 && x !== undefined) this.on.pin(x);
    });
    plot.over.addEventListener("dblclick", () => this.on.zoom(null, null));
  }

  // Draws lines at the doctor's findings and at the chosen step.
  markers(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const vertical = (at, color, dash) => {
      const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
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
    for (const finding of this.options.findings) {
      const x = vertical(finding, cssColor("--warn"), [2, 3]);
      if (x === null) continue;
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top - 1 * ratio);
      ctx.lineTo(x + 4 * ratio, bbox.top - 1 * ratio);
      ctx.lineTo(x, bbox.top + 6 * ratio);
      ctx.fill();
    }
    if (this.options.pinned !== null) vertical(this.options.pinned, cssColor("--accent"), []);
    ctx.restore();
  }
}

// Puts the cursor on a point, never between two.
function nearest(plot, left) {
  if (left < 0) return left;
  return plot.valToPos(plot.data[0][plot.posToIdx(left)], "x");
}
