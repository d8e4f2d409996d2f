// How does it learn? Curves of one run, others laid over it, and what the doctor said.

import { get, runPath } from "./api.js";
import { Chart } from "./charts.js";
import { button, cssColor, fill, h, later, link, perFrame } from "./dom.js";
import { num, plural } from "./format.js";
import { icon } from "./icons.js";
import { drawDoctor, drawHead, drawMore } from "./learn_parts.js";
import { chartGroups, metricsOf } from "./metrics.js";
import { drawRail } from "./rail.js";
import { address, go, withParams } from "./route.js";
import { empty, failed, loading } from "./states.js";
import { currentTheme } from "./theme.js";

const NUM_COLORS = 8;

export function learnView(host, app) {
  const rail = h("aside", { class: "rail", "aria-label": "Runs" });
  const head = h("div", { class: "learn-head" });
  const doctor = h("div", { class: "doctor" });
  const bar = h("div", { class: "learn-bar" });
  const grids = h("div", { class: "grids" }, loading(4, 150));
  const more = h("div", { class: "learn-more" });
  const body = h("div", { class: "learn-body" }, head, doctor, bar, grids, more);
  fill(host, h("div", { class: "learn" }, rail, body));

  let route = null;
  let shown = null;
  let details = new Map();
  let asked = 0;
  const charts = new Map();

  const others = () =>
    (route.params.get("with") ?? "")
      .split(",")
      .filter((key) => key && key !== route.run && app.run(key));
  const smoothing = () => Math.min(0.99, Math.max(0, Number(route.params.get("smooth") ?? 0) || 0));
  const pinned = () => {
    const step = Number(route.params.get("step") ?? NaN);
    return Number.isInteger(step) ? step : null;
  };
  const range = () =>
    route.params
      .get("x")
      ?.match(/^(\d+)-(\d+)$/)
      ?.slice(1)
      .map(Number) ?? null;
  const showsAll = () => route.params.get("all") === "1";
  const change = (changes, options) => go(withParams(route, changes), options);

  function colors() {
    return new Map(
      [route.run, ...others()].map((key, place) => [
        key,
        cssColor(`--run-${(place % NUM_COLORS) + 1}`),
      ]),
    );
  }

  async function load() {
    const mine = ++asked;
    const keys = [route.run, ...others()];
    drawRail(rail, app, { main: route.run, others: others(), colors: colors(), toggle });
    try {
      const metrics = await Promise.all(
        keys.map((key) => metricsOf(key, app.run(key)?.step ?? null)),
      );
      const found = await Promise.all(keys.map((key) => get(runPath(key))));
      if (mine !== asked) return;
      details = new Map(keys.map((key, place) => [key, found[place]]));
      shown = keys.map((key, place) => ({ key, metrics: metrics[place] }));
      draw();
    } catch (error) {
      if (mine === asked) fill(grids, failed(error, load));
    }
  }

  function toggle(key) {
    const now = others();
    const next = now.includes(key) ? now.filter((one) => one !== key) : [...now, key];
    change({ with: next.join(",") });
  }

  function look() {
    const color = colors();
    return {
      runs: shown.map((run) => ({ ...run, color: color.get(run.key) })),
      smooth: smoothing(),
      range: range(),
      pinned: pinned(),
      theme: currentTheme(),
      findings: details.get(route.run)?.findings ?? [],
    };
  }

  function draw() {
    const run = details.get(route.run);
    drawHead(head, run, app.run());
    drawDoctor(doctor, run, pinned(), (step) =>
      change({ step: step === pinned() ? null : step }),
    );
    drawBar();
    drawMore(more, run, [...details.values()]);
    if (!shown[0].metrics.steps.length) {
      charts.forEach((chart) => chart.destroy());
      charts.clear();
      fill(
        grids,
        empty(
          "No steps yet",
          "The first step's numbers appear here as soon as it is done. A warm start comes before it.",
        ),
      );
      return;
    }
    const names = new Set(shown.flatMap((one) => Object.keys(one.metrics.series)));
    const { groups, rest } = chartGroups(names);
    arrange(
      showsAll() && rest.length ? [...groups, { title: "Everything else", charts: rest }] : groups,
      rest.length,
    );
    const now = look();
    charts.forEach((chart) => chart.update(now));
  }

  // Charts stay where they are while a run goes on: nothing jumps.
  function arrange(groups, numRest) {
    const wanted =
      groups.map((group) => `${group.title}:${group.charts.map((c) => c.name)}`).join("|") +
      numRest;
    if (grids.dataset.wanted === wanted) return;
    grids.dataset.wanted = wanted;
    charts.forEach((chart) => chart.destroy());
    charts.clear();
    const sections = groups.map((group) => {
      const made = group.charts.map((spec) => {
        const chart = new Chart(spec, look(), { zoom, pin, hover });
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
    fill(
      grids,
      sections,
      numRest
        ? h(
            "div",
            { class: "grids-more" },
            button(showsAll() ? "Fewer curves" : `${plural(numRest, "more curve")}`, {
              class: "button",
              onclick: () => change({ all: showsAll() ? null : "1" }),
            }),
          )
        : null,
    );
  }

  const hover = (step) => {
    bar.querySelector(".at-step").textContent = step === null ? "" : `at step ${num(step)}`;
  };
  const zoom = (from, to) => change({ x: from === null ? null : `${from}-${to}` });
  const pin = (step) => change({ step: step === pinned() ? null : step });
  const setSmooth = later(120, (value) =>
    change({ smooth: Number(value) ? value : null }, { replace: true }),
  );

  function drawBar() {
    const step = pinned();
    if (!bar.firstChild) {
      const slider = h("input", {
        type: "range",
        min: 0,
        max: 0.95,
        step: 0.05,
        id: "smooth",
        oninput: (event) => setSmooth(event.target.value),
      });
      fill(
        bar,
        h(
          "label",
          { class: "smooth", for: "smooth" },
          "Smoothing",
          slider,
          h("output", { class: "num" }),
        ),
        h("div", { class: "legend" }),
        h("span", { class: "at-step num faint" }),
        h("div", { class: "pin" }),
      );
    }
    const slider = bar.querySelector("input");
    if (document.activeElement !== slider) slider.value = smoothing();
    bar.querySelector("output").textContent = smoothing() ? smoothing().toFixed(2) : "none";
    const color = colors();
    fill(
      bar.querySelector(".legend"),
      shown.length < 2
        ? null
        : shown.map((run) =>
            h(
              "span",
              { class: "legend-run" },
              h("i", { style: { background: color.get(run.key) } }),
              run.key,
            ),
          ),
    );
    fill(
      bar.querySelector(".pin"),
      range()
        ? button(
            `steps ${num(range()[0])} to ${num(range()[1])}`,
            { class: "chip is-accent", title: "Show all steps", onclick: () => zoom(null, null) },
            icon("close"),
          )
        : null,
      step === null
        ? h("span", { class: "faint hint" }, "Click a curve to choose a step, drag to look closer")
        : [
            h("span", { class: "pin-step" }, h("strong", { class: "num" }, `Step ${num(step)}`)),
            link(
              address({ run: route.run, view: "episodes", params: { step } }),
              { class: "button" },
              "Episodes",
            ),
            link(
              address({ run: route.run, view: "time", item: step }),
              { class: "button" },
              "Time",
            ),
            button(icon("close"), {
              class: "icon-button",
              "aria-label": "Choose no step",
              onclick: () => pin(step),
            }),
          ],
    );
  }

  const resized = new ResizeObserver(perFrame(() => charts.forEach((chart) => chart.resize())));
  resized.observe(grids);

  return {
    show(next) {
      const isNew = route?.run !== next.run;
      const wasWith = route?.params.get("with");
      route = next;
      if (isNew) body.scrollTop = 0;
      if (isNew || wasWith !== next.params.get("with") || !shown) load();
      else {
        drawRail(rail, app, { main: route.run, others: others(), colors: colors(), toggle });
        draw();
      }
    },
    live: () => load(),
    theme: () => shown && redraw(),
    key(event) {
      if (event.key === "Escape" && (pinned() !== null || range())) {
        change({ step: null, x: null });
        return true;
      }
      const steps = shown?.[0].metrics.steps ?? [];
      if (
        (event.key === "ArrowLeft" || event.key === "ArrowRight") &&
        steps.length &&
        event.target.type !== "range"
      ) {
        const at = pinned() === null ? steps.length : steps.indexOf(pinned());
        const next =
          steps[Math.min(steps.length - 1, Math.max(0, at + (event.key === "ArrowLeft" ? -1 : 1)))];
        change({ step: next }, { replace: true });
        return true;
      }
      return false;
    },
    destroy() {
      asked += 1;
      setSmooth.cancel();
      resized.disconnect();
      charts.forEach((chart) => chart.destroy());
    },
  };

  function redraw() {
    drawRail(rail, app, { main: route.run, others: others(), colors: colors(), toggle });
    draw();
  }
}
