// How does it learn? This view has the curves of one run or of several, and the doctor's findings.

import { get, runPath } from "./api.js";
import { positions } from "./axis.js";
import { Chart } from "./charts.js";
import { drawComparison } from "./compare.js";
import { button, cssColor, fill, h, later, perFrame } from "./dom.js";
import { plural } from "./format.js";
import { drawBar, makeBar } from "./learn_bar.js";
import { drawDoctor, drawHead, drawMore } from "./learn_parts.js";
import { readState } from "./learn_state.js";
import { chartGroups, metricsOf } from "./metrics.js";
import { drawRail } from "./rail.js";
import { go, withParams } from "./route.js";
import { empty, failed, loading } from "./states.js";
import { currentTheme } from "./theme.js";

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

  const rail = h("aside", { class: "rail", "aria-label": "Runs" });
  const head = h("div", { class: "learn-head" });
  const doctor = h("div", { class: "doctor" });
  const bar = makeBar({ change, setSmooth });
  const grids = h("div", { class: "grids" }, loading(4, 150));
  const more = h("div", { class: "learn-more" });
  const body = h("div", { class: "learn-body" }, head, doctor, bar, grids, more);
  fill(host, h("div", { class: "learn" }, rail, body));

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
      return h(
        "section",
        { class: "group" },
        h("h2", null, group.title),
        h("div", { class: "grid" }, made),
      );
    });
    const button_ = button(state.showsAll ? "Fewer curves" : plural(numRest, "more curve"), {
      class: "button",
      onclick: () => change({ all: state.showsAll ? null : "1" }),
    });
    fill(grids, sections, numRest ? h("div", { class: "grids-more" }, button_) : null);
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
