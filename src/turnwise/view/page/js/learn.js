// How does it learn? This view has the curves of one run or of several, and the doctor's findings.

import { get, runPath } from "./api.js";
import { Chart, positions } from "./charts.js";
import {
  cssColor,
  empty,
  failed,
  fill,
  h,
  html,
  later,
  loading,
  perFrame,
  refill,
  svg,
} from "./dom.js";
import { ago, num, plural } from "./format.js";
import {
  drawBar,
  drawComparison,
  drawDoctor,
  drawHead,
  drawMore,
  makeBar,
  readState,
} from "./learn_parts.js";
import { chartGroups, metricsOf } from "./metrics.js";
import { address, go, runsAddress, withParams } from "./route.js";
import { currentTheme, stepsWords } from "./shell.js";

const NUM_COLORS = 8;

export function learnView(host, app) {
  let route = null;
  let state = null;
  let shown = null;
  let details = new Map();
  let compared = null;
  let asked = 0;
  const charts = new Map();

  const change = (changes, options) => go(withParams(route, changes), options);
  const setSmooth = later(120, (value) =>
    change({ smooth: Number(value) ? value : null }, { replace: true }),
  );
  const zoom = (from, to) => {
    if (from === null) return change({ x: null });
    const isTime = state.axis.name === "time";
    const [low, high] = isTime
      ? [from.toFixed(2), to.toFixed(2)]
      : [Math.ceil(from), Math.floor(to)];
    if (Number(high) > Number(low)) change({ x: `${low}-${high}` });
  };
  const pin = (step) => change({ step: step === state.step ? null : step });

  const rail = h("aside.rail", { "aria-label": "Runs" });
  const head = h(".learn-head");
  const doctor = h(".doctor");
  const bar = makeBar({ change, setSmooth });
  const grids = h(".grids", loading(4, 150));
  const more = h(".learn-more");
  const body = h(".learn-body", head, doctor, bar, grids, more);
  fill(host, h(".learn", rail, body));

  const hover = (x) => {
    bar.querySelector(".at-step").textContent = x === null ? "" : `at ${state.axis.label(x)}`;
  };

  function colors() {
    return new Map(
      state.keys.map((key, place) => [key, cssColor(`--run-${(place % NUM_COLORS) + 1}`)]),
    );
  }

  async function load() {
    const mine = ++asked;
    const { keys } = state;
    showRail();
    try {
      const [metrics, found, compare] = await Promise.all([
        Promise.all(keys.map((key) => metricsOf(key, app.run(key)?.step ?? null))),
        Promise.all(keys.map((key) => get(runPath(key)))),
        keys.length > 1 ? get("/compare", { runs: keys.join(",") }, { fresh: true }) : null,
      ]);
      if (mine !== asked) return;
      details = new Map(keys.map((key, place) => [key, found[place]]));
      compared = compare;
      shown = keys.map((key, place) => ({ key, metrics: metrics[place] }));
      draw();
    } catch (error) {
      if (mine === asked) fill(grids, failed(error, load));
    }
  }

  function toggle(key) {
    const others = state.keys.slice(1);
    const next = others.includes(key) ? others.filter((one) => one !== key) : [...others, key];
    change({ with: next.join(",") });
  }

  const showRail = () => drawRail(rail, app, { keys: state.keys, colors: colors(), toggle });

  // `placeOf` returns the first run's place of a step on the axis; `stepAt` pins the step nearest
  // to a place.
  const main = () => shown[0];
  const placeOf = (step) => main().xs?.[main().metrics.steps.indexOf(step)] ?? null;
  function stepAt(x) {
    const { xs, metrics } = main();
    if (!xs?.length) return;
    const best = xs.reduce((a, b, i) => (Math.abs(b - x) < Math.abs(xs[a] - x) ? i : a), 0);
    pin(metrics.steps[best]);
  }

  function chartOptions() {
    const color = colors();
    return {
      runs: shown
        .filter((run) => !state.hiddenRuns.has(run.key))
        .map((run) => ({ ...run, color: color.get(run.key) })),
      axis: state.axis,
      isLog: state.isLog,
      hiddenKinds: state.hiddenKinds,
      smooth: state.smooth,
      range: state.range,
      pinned: state.step === null ? null : placeOf(state.step),
      theme: currentTheme(),
      findings: (details.get(route.run)?.findings ?? [])
        .map((finding) => placeOf(finding.step))
        .filter((x) => x !== null),
    };
  }

  function draw() {
    for (const run of shown) run.xs = positions(state.axis, run.metrics);
    const run = details.get(route.run);
    if (compared)
      drawComparison(head, {
        compared,
        runs: state.keys.map((key) => app.run(key) ?? details.get(key)),
        colors: colors(),
        showsAll: state.showsAllSettings,
        change,
        remove: toggle,
        main: route.run,
      });
    else drawHead(head, run, app.run(), app);
    drawDoctor(doctor, run, state.step, pin, compared !== null);
    drawBar(bar, { state, shown, colors: colors(), run: route.run, change, zoom, pin });
    drawMore(more, run);
    if (!shown.some((one) => one.metrics.steps.length)) {
      clearCharts();
      fill(
        grids,
        empty(
          "No steps yet",
          "The first step's numbers appear here as soon as it is done. A warm start comes before it.",
        ),
      );
      return;
    }
    const { groups, rest } = chartGroups(shown.map((one) => one.metrics));
    const all = rest.length ? [...groups, { title: "Everything else", charts: rest }] : groups;
    arrange(state.showsAll ? all : groups, rest.length);
    const now = chartOptions();
    for (const chart of charts.values()) chart.update(now);
  }

  function clearCharts() {
    for (const chart of charts.values()) chart.destroy();
    charts.clear();
    delete grids.dataset.wanted;
  }

  // Keeps the charts in place while a run is training, so that nothing jumps.
  function arrange(groups, numRest) {
    const wanted = JSON.stringify([
      groups.map((group) => [
        group.title,
        group.charts.map((c) => [c.name, c.evaluations, c.phases]),
      ]),
      numRest,
      state.showsAll,
    ]);
    if (grids.dataset.wanted === wanted) return;
    clearCharts();
    grids.dataset.wanted = wanted;
    const sections = groups.map((group) => {
      const made = group.charts.map((spec) => {
        const chart = new Chart(spec, chartOptions(), { zoom, pin: stepAt, hover });
        charts.set(spec.name, chart);
        return chart.element;
      });
      return h("section.group", h("h2", group.title), h(".grid", made));
    });
    const button_ = html`<button class="button" onclick=${() => change({ all: state.showsAll ? null : "1" })}>
      ${state.showsAll ? "Fewer curves" : plural(numRest, "more curve")}
    </button>`;
    fill(grids, sections, numRest > 0 && h(".grids-more", button_));
  }

  const resized = new ResizeObserver(
    perFrame(() => {
      for (const chart of charts.values()) chart.resize();
    }),
  );
  resized.observe(grids);

  return {
    show(next) {
      const isNew = route?.run !== next.run;
      const before = state?.keys.join(",");
      route = next;
      state = readState(route, app);
      if (isNew) body.scrollTop = 0;
      if (isNew || before !== state.keys.join(",") || !shown) {
        load();
        if (isNew) rail.querySelector(".is-main")?.scrollIntoView({ block: "nearest" });
      } else {
        showRail();
        draw();
      }
    },
    live() {
      state = readState(route, app);
      load();
    },
    theme() {
      if (!shown) return;
      showRail();
      draw();
    },
    key(event) {
      if (event.key === "Escape" && (state.step !== null || state.range)) {
        change({ step: null, x: null });
        return true;
      }
      const steps = shown?.[0].metrics.steps ?? [];
      const isArrow = event.key === "ArrowLeft" || event.key === "ArrowRight";
      if (!isArrow || !steps.length || event.target.type === "range") return false;
      const at = state.step === null ? steps.length : steps.indexOf(state.step);
      const next = Math.max(0, at + (event.key === "ArrowLeft" ? -1 : 1));
      change({ step: steps[Math.min(steps.length - 1, next)] }, { replace: true });
      return true;
    },
    destroy() {
      asked += 1;
      setSmooth.cancel();
      resized.disconnect();
      for (const chart of charts.values()) chart.destroy();
    },
  };
}

// ---- The list at the left of the curves chooses a run and compares it with others.

const MOST_SPARKS = 40;

// Archived runs are in the table of runs; this list has only those of them that are shown.
export function drawRail(rail, app, { keys, colors, toggle }) {
  const listed = app.runs.filter((run) => !run.notes.archived || keys.includes(run.key));
  refill(
    rail,
    html`<h2>
      ${plural(listed.length, "run")}<a class="rail-all" href=${runsAddress()}>All runs</a>
    </h2>`,
    listed.map((run, number) => row(run, number, { app, keys, colors, toggle })),
  );
}

function row(run, number, { app, keys, colors, toggle }) {
  const isMain = run.key === keys[0];
  const color = colors.get(run.key) ?? "var(--ghost)";
  const box = html`<input type="checkbox" checked=${keys.includes(run.key)} disabled=${isMain}
    aria-label=${`Show ${run.key}`}
    title=${isMain ? "The current run" : "Compare with this run"}
    style=${{ "accent-color": color }} onchange=${() => toggle(run.key)}
  />`;
  const spark = h("span.spark");
  if (number < MOST_SPARKS) {
    metricsOf(run.key, run.step).then(
      (data) => fill(spark, sparkline(data.series.reward ?? [], color)),
      () => {},
    );
  }
  const last = run.last?.reward;
  return html`<div class="rail-run ${isMain ? "is-main" : ""}" data-run=${run.key}>
    ${box}
    <a class="rail-link"
      href=${address({ run: run.key, view: "learn", params: app.route.params })}
      title=${run.path} data-name=${run.key} aria-current=${isMain ? "true" : null}>
      <span class="rail-name">
        ${run.is_live && html`<span class="dot is-live" />`}<span>${run.key}</span>
      </span>
      <span class="rail-facts num">
        ${run.environment ?? ""} · ${stepsWords(run, "/")} · ${run.is_live ? "live" : ago(run.updated)}
      </span>
    </a>
    <span class="rail-side">
      ${spark}
      <span class="num rail-reward" title="reward of the last step">
        ${last === undefined ? "" : num(last, 2)}
      </span>
    </span>
  </div>`;
}

function sparkline(values, color, width = 64, height = 20) {
  const points = values.map((value, place) => [place, value]).filter(([, value]) => value !== null);
  if (points.length < 2) return null;
  const low = Math.min(...points.map(([, v]) => v));
  const high = Math.max(...points.map(([, v]) => v));
  const x = (place) => 1 + ((width - 2) * place) / (values.length - 1 || 1);
  const y = (value) => height - 2 - ((height - 4) * (value - low)) / (high - low || 1);
  // So many points are enough for a small curve.
  const every = Math.ceil(points.length / width);
  const path = points
    .filter((_, i) => i % every === 0 || i === points.length - 1)
    .map(([p, v], i) => `${i ? "L" : "M"}${x(p).toFixed(1)} ${y(v).toFixed(1)}`)
    .join("");
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("path", { d: path, stroke: color }),
  );
}
