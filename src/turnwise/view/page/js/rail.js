// The list at the left of the curves chooses a run and compares it with others.

import { fill, h, link, svg } from "./dom.js";
import { ago, num, plural } from "./format.js";
import { metricsOf } from "./metrics.js";
import { address, runsAddress } from "./route.js";

const MOST_SPARKS = 40;

// Archived runs are in the table of runs; this list has only those of them that are shown.
export function drawRail(rail, app, { keys, colors, toggle }) {
  const focused = rail.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const scroll = rail.scrollTop;
  const listed = app.runs.filter((run) => !run.notes.archived || keys.includes(run.key));
  fill(
    rail,
    h(
      "h2",
      null,
      plural(listed.length, "run"),
      link(runsAddress(), { class: "rail-all" }, "All runs"),
    ),
    listed.map((run, number) => row(run, number, { app, keys, colors, toggle })),
  );
  rail.scrollTop = scroll;
  if (focused) rail.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function row(run, number, { app, keys, colors, toggle }) {
  const isMain = run.key === keys[0];
  const color = colors.get(run.key) ?? "var(--ghost)";
  const box = h("input", {
    type: "checkbox",
    checked: keys.includes(run.key),
    disabled: isMain,
    "aria-label": `Show ${run.key}`,
    title: isMain ? "The current run" : "Compare with this run",
    style: { "accent-color": color },
    onchange: () => toggle(run.key),
  });
  const spark = h("span", { class: "spark" });
  if (number < MOST_SPARKS) {
    metricsOf(run.key, run.step).then(
      (data) => fill(spark, sparkline(data.series.reward ?? [], color)),
      () => {},
    );
  }
  const last = run.last?.reward;
  return h(
    "div",
    { class: `rail-run ${isMain ? "is-main" : ""}`, data: { run: run.key } },
    box,
    link(
      address({ run: run.key, view: "learn", params: app.route.params }),
      {
        class: "rail-link",
        title: run.path,
        data: { key: run.key },
        "aria-current": isMain ? "true" : null,
      },
      h(
        "span",
        { class: "rail-name" },
        run.is_live ? h("span", { class: "dot is-live" }) : null,
        h("span", null, run.key),
      ),
      h(
        "span",
        { class: "rail-facts num" },
        `${run.environment ?? ""} · ${run.total_steps ? `${num(run.step)}/${num(run.total_steps)}` : num(run.step)} · ${run.is_live ? "live" : ago(run.updated)}`,
      ),
    ),
    h(
      "span",
      { class: "rail-side" },
      spark,
      h(
        "span",
        { class: "num rail-reward", title: "reward of the last step" },
        last === undefined ? "" : num(last, 2),
      ),
    ),
  );
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
    svg("path", {
      d: path,
      fill: "none",
      stroke: color,
      "stroke-width": "1.4",
      "stroke-linejoin": "round",
    }),
  );
}
