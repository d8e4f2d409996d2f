// A chart shows the curves of one metric for each run that is shown; uPlot draws it.

import { cssColor, fill, h, html, lineMark } from "./dom.js";
import { num, percent, plural, seconds } from "./format.js";
import { smooth, timeColor } from "./metrics.js";

/* global uPlot */

const HEIGHT = 132;

export class Chart {
  // `options` are the drawing options: runs [{key, color, metrics, xs}], axis, isLog,
  // hiddenKinds, smooth, range, findings, pinned; all places are on the x axis.
  constructor(spec, options, on) {
    this.spec = spec;
    this.on = on;
    this.values = h(".chart-values.num");
    this.scale = h("span.chart-scale");
    this.zeros = h("span.chart-zeros");
    this.place = h(".chart-place", this.zeros);
    this.element = html`<figure class="chart card" data-metric=${spec.name}>
      <figcaption>
        <span class="chart-title" title=${spec.name}>${spec.title}</span>${this.scale}
        ${this.values}
      </figcaption>
      ${this.place}
    </figure>`;
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
        // The cursor is on a point, never between two.
        move: (plot, left, top) => [
          left < 0 ? left : plot.valToPos(plot.data[0][plot.posToIdx(left)], "x"),
          top,
        ],
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

// ---- This module makes the axes of a chart: it formats their numbers and leaves space for every label.

const SHARES = new Set(
  (
    "success truncated cut_turns invalid_actions errors clip_fraction tool_failures " +
    "malformed_calls zero_variance idle/learner idle/engine idle/episodes"
  ).split(" "),
);

export function isShare(spec) {
  return Boolean(spec.phases) || SHARES.has(spec.name);
}

export function written(spec, value) {
  return isShare(spec) ? percent(value, value && value < 0.01 ? 2 : 0) : num(value);
}

export function scales(chart) {
  const { spec } = chart;
  const logarithmic = {
    distr: 3,
    log: 10,
    range: (_plot, min, max) => (min === null ? [0.1, 1] : uPlot.rangeLog(min, max, 10, false)),
  };
  const linear = {
    range: spec.phases ? [0, 1] : (_plot, min, max) => padded(min, max, isShare(spec)),
  };
  return {
    x: {
      time: false,
      range: (_plot, min, max) =>
        chart.options.range ?? (min === max ? [min - 1, max + 1] : [min, max]),
    },
    y: chart.isLog ? logarithmic : linear,
  };
}

export function axes(chart) {
  const { spec } = chart;
  const common = {
    stroke: cssColor("--faint"),
    font: `11px ${cssColor("--sans")}`,
    ticks: { show: false },
    gap: 4,
  };
  const increments = chart.options.axis.increments;
  return [
    {
      ...common,
      size: 22,
      space: 60,
      grid: { show: false },
      ...(increments ? { incrs: increments } : {}),
      values: (_plot, values) => values.map((value) => chart.options.axis.tick(value)),
    },
    {
      ...common,
      size: (plot, labels) => Math.max(34, widest(plot, labels ?? []) + 12),
      space: chart.isLog ? 20 : 34,
      grid: {
        stroke: cssColor("--line"),
        width: 1,
        ...(chart.isLog ? { filter: decades } : {}),
      },
      values: (_plot, values) =>
        values.map((value) => (value === null ? "" : yLabel(spec, value, chart.isLog))),
    },
  ];
}

// Over many decades a grid line for each digit would fill the chart, so only powers of ten remain.
function decades(_plot, splits) {
  const found = splits.filter((value) => value !== null);
  if (found.at(-1) / found[0] < 1e4) return splits;
  return splits.map((value) => (/^1e/.test(value?.toExponential()) ? value : null));
}

function yLabel(spec, value, isLog) {
  if (isShare(spec) && value && value < 0.01) return `${num(100 * value, 2)}%`;
  if (isShare(spec)) return percent(value);
  if (isLog && (value < 1e-3 || value >= 1e5))
    return value.toExponential(0).replace("e+", "e").replaceAll("-", "−");
  return num(value, 4);
}

// The last label is centred on the end of the axis, so half of it needs space beyond the axis.
export function padding(chart) {
  const right = (plot) => {
    const steps = plot.data?.[0] ?? [];
    const last = chart.options.range?.[1] ?? steps.at(-1) ?? 0;
    return Math.max(6, Math.ceil(widest(plot, [chart.options.axis.tick(last) || "0000"]) / 2) + 3);
  };
  return [6, right, 0, 0];
}

function widest(plot, labels) {
  const pen = plot.ctx;
  pen.save();
  pen.font = `11px ${cssColor("--sans")}`;
  const width = Math.max(0, ...labels.map((label) => pen.measureText(label ?? "").width));
  pen.restore();
  return width;
}

// ---- The numbers next to a chart's title are those at the cursor, at the chosen step, or the last
// ones.

const MOST_SHOWN = 6;

export function showValues(chart, place) {
  if (!chart.plot) return;
  const xs = chart.plot.data[0];
  let at = place;
  if (at === null || at === undefined) {
    const { pinned } = chart.options;
    at = pinned === null ? xs.length - 1 : xs.indexOf(pinned);
  }
  fill(
    chart.values,
    chart.spec.phases ? phaseShares(chart, xs[at]) : numbers(chart, xs, at, place),
  );
}

function phaseShares(chart, x) {
  const found = chart.curves.map((curve) => [curve, curve.share[curve.xs.indexOf(x)] ?? 0]);
  const largest = found.sort((a, b) => b[1] - a[1]).slice(0, 2);
  return largest.map(([curve, share]) =>
    h("span", h("i", { style: { background: curve.color } }), `${curve.label} ${percent(share)}`),
  );
}

function numbers(chart, xs, at, place) {
  const isSingle = chart.options.runs.length === 1;
  const shown = chart.curves
    .map((curve, number) => [curve, chart.plot.data[number + 1]])
    .filter(([curve]) => !curve.faint && (curve.kind === "training" || isSingle));
  const isLast = place === null || place === undefined;
  const texts = shown.map(([curve, values]) => {
    // On every axis but that of steps, runs have values at different places: this is the last one
    // before the cursor, if the run reaches that far.
    const isEvaluation = curve.kind !== "training";
    const isWithin = xs[at] >= curve.xs[0] && xs[at] <= curve.xs.at(-1);
    const value = isLast || isEvaluation || isWithin ? before(values, at) : null;
    if (value === null) return null;
    const mark = curve.dash
      ? lineMark(curve.color, curve.dash, 16)
      : h("i", { style: { background: curve.color } });
    return html`<span title=${curve.label}>
      ${shown.length !== 1 && mark}${written(chart.spec, value)}
    </span>`;
  });
  return texts.slice(0, MOST_SHOWN);
}

// ---- This module computes the curves of a chart, each with its places on the x axis.

export const KINDS = [
  { name: "training", title: "training", dash: null },
  { name: "greedy", title: "greedy evaluation", dash: [2, 3] },
  { name: "sampled", title: "sampled evaluation", dash: [6, 3] },
];

// Returns the kind of a curve by its metric's name: "eval/greedy/reward" and, of an environment in
// a mix, "eval/maze/greedy/reward" are of the greedy evaluation.
export function kindOf(name) {
  return name.match(/^eval\/(?:[^/]+\/)?(greedy|sampled)\//)?.[1] ?? "training";
}

const kindNamed = (name) => KINDS.find((kind) => kind.name === name);
const styled = (kind) => ({ kind: kind.name, dash: kind.dash, points: kind.dash !== null });

export function lines(spec, runs, weight, hiddenKinds) {
  const curves = [];
  for (const run of runs) {
    if (run.xs === null) continue;
    const { steps, series } = run.metrics;
    const common = { run, xs: run.xs, color: run.color };
    const own = kindNamed(kindOf(spec.name));
    if (!hiddenKinds.has(own.name) && series[spec.name]) {
      const main = series[spec.name];
      // A handful of points is not smoothed: there is no noise to remove.
      const sparse = main.filter((value) => value !== null).length < 6;
      const curve = { ...common, ...styled(own), label: run.key };
      if (weight > 0) curves.push({ ...curve, values: main, faint: true, points: false });
      curves.push({ ...curve, values: sparse ? main : smooth(main, weight) });
    }
    for (const name of spec.evaluations ?? []) {
      const kind = kindNamed(kindOf(name));
      if (hiddenKinds.has(kind.name)) continue;
      curves.push({
        ...common,
        values: series[name] ?? steps.map(() => null),
        ...styled(kind),
        label: `${run.key}, ${kind.title}`,
      });
    }
  }
  return curves;
}

// Returns the shares as running sums, the largest first, so that each is painted over the one
// before. All tokens of a step without these metrics are 0 behind.
export function shares(spec, run) {
  if (!run?.xs) return [];
  const { steps, series } = run.metrics;
  const columns = spec.phases.map((name) => steps.map((_, i) => series[name]?.[i] ?? 0));
  const totals = steps.map((_, i) => columns.reduce((sum, column) => sum + column[i], 0));
  const below = steps.map(() => 0);
  return spec.phases
    .map((name, place) => {
      const none = Number(name === "staleness/0");
      const share = columns[place].map((value, i) => (totals[i] ? value / totals[i] : none));
      share.forEach((value, i) => {
        below[i] += value;
      });
      return {
        run,
        xs: run.xs,
        values: [...below],
        share,
        ...styleOf(name, place),
        filled: true,
        kind: "training",
      };
    })
    .reverse();
}

function styleOf(name, place) {
  const [kind, phase] = name.split("/");
  if (kind === "time") return { label: phase.replace("_", "-"), color: timeColor(phase) };
  return { label: `${phase} behind`, color: cssColor(`--run-${(place % 8) + 1}`) };
}

export function before(values, at) {
  for (let place = at; place >= 0; place -= 1) {
    if (values[place] !== null && values[place] !== undefined) return values[place];
  }
  return null;
}

export function spread(xs, own, values) {
  if (own.length === xs.length && own.every((x, place) => x === xs[place])) return values;
  const at = new Map(own.map((x, place) => [x, values[place]]));
  return xs.map((x) => at.get(x) ?? null);
}

export function padded(min, max, isShare) {
  if (min === null || max === null) return [0, 1];
  if (isShare && min >= 0 && max <= 1) return [0, max > 0.5 ? 1 : Math.max(max * 1.15, 0.02)];
  if (min === max)
    return min === 0 ? [0, 1] : [min - Math.abs(min) * 0.5, max + Math.abs(max) * 0.5];
  const room = (max - min) * 0.08;
  return [min >= 0 && min < (max - min) * 0.3 ? 0 : min - room, max + room];
}

// ---- The x axis counts steps, time, sampled tokens or episodes, added up from the metrics.

export const AXES = [
  {
    name: "step",
    title: "Step",
    help: "Training steps of the run",
    label: (value) => `step ${num(value)}`,
    tick: (value) => (Number.isInteger(value) ? num(value) : ""),
  },
  {
    name: "time",
    title: "Time",
    help: "Time since the first step began, including evaluations and checkpoints. The time between a stop and a resume is not counted.",
    sums: ["time/step", "time/log", "time/evaluate", "time/checkpoint"],
    label: seconds,
    tick: shortTime,
    // Ticks are at times that people read on a clock.
    increments: [
      ...[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800],
      ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 480, 1200, 2400].map((hours) => 3600 * hours),
    ],
  },
  {
    name: "tokens",
    title: "Tokens",
    help: "Sampled tokens of all training episodes so far",
    sums: ["num_sampled_tokens"],
    label: (value) => `${num(value)} sampled tokens`,
    tick: short,
  },
  {
    name: "episodes",
    title: "Episodes",
    help: "Training episodes so far",
    sums: ["num_episodes"],
    label: (value) => `${num(value)} episodes`,
    tick: short,
  },
];

export function axisOf(name) {
  return AXES.find((axis) => axis.name === name) ?? AXES[0];
}

// Returns the place of each step of a run on the axis; null if the run has not recorded it.
export function positions(axis, { steps, series }) {
  if (!axis.sums) return steps;
  if (!series[axis.sums[0]]?.some((value) => value !== null)) return null;
  let sum = 0;
  return steps.map((_, place) => {
    for (const name of axis.sums) sum += series[name]?.[place] ?? 0;
    return sum;
  });
}

function short(value) {
  for (const [letter, unit] of Object.entries({ G: 1e9, M: 1e6, k: 1e3 }))
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  return Number.isInteger(value) ? num(value) : "";
}

function shortTime(value) {
  if (value === 0) return "0";
  const [unit, letter] = value < 60 ? [1, "s"] : value < 3600 ? [60, "min"] : [3600, "h"];
  return `${Number((value / unit).toPrecision(3))} ${letter}`;
}
