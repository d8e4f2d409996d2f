// Where did the time go? This view shows the phases of one step, and a row for each episode.

import { get, runPath } from "./api.js";
import { button, fill, h, link } from "./dom.js";
import { num, percent, plural, seconds } from "./format.js";
import { icon } from "./icons.js";
import { address, go, withParams } from "./route.js";
import { empty, failed, loading } from "./states.js";
import { timeColor, timeWord } from "./time_kinds.js";
import { Timeline } from "./timeline.js";

export function timeView(host) {
  let route = null;
  let data = null;
  let steps = [];
  let asked = 0;
  const head = h("header", { class: "time-head" });
  const timeline = new Timeline({
    open: (id) => go({ run: route.run, view: "episodes", item: id, params: {} }),
    zoom: (from, to) =>
      go(withParams(route, { t: from === null ? null : `${from.toFixed(4)}-${to.toFixed(4)}` })),
  });
  const frame = h("div", { class: "time" }, head, timeline.element);
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
    const bounds = route.params
      .get("t")
      ?.match(/^([\d.]+)-([\d.]+)$/)
      ?.slice(1)
      .map(Number);
    const zoom = bounds && bounds[1] > bounds[0] ? bounds : null;
    timeline.show(data, { zoom, episode: route.params.get("episode") });
  }

  function drawHead() {
    const at = steps.indexOf(Number(route.item));
    const step = (by, name, label) =>
      link(
        steps[at + by] === undefined
          ? "#"
          : address({ ...route, item: steps[at + by], params: {} }),
        {
          class: "button is-plain",
          "aria-label": label,
          title: label,
          "aria-disabled": steps[at + by] === undefined ? "true" : null,
        },
        icon(name),
      );
    const spent = Object.entries(data.shares ?? {})
      .filter(([, took]) => took > 0)
      .sort((a, b) => b[1] - a[1]);
    const total = spent.reduce((sum, [, took]) => sum + took, 0) || 1;
    const shares = spent
      .map(([name, took]) => [name, took / total])
      .filter(([, share]) => share >= 0.0005);
    fill(
      head,
      h(
        "div",
        { class: "conversation-title" },
        h("h1", { class: "num" }, `Step ${num(data.step)}`),
        data.kind === "train" ? null : h("span", { class: "chip is-accent" }, data.kind),
        step(-1, "left", "Previous step (←)"),
        step(1, "right", "Next step (→)"),
        h(
          "select",
          {
            class: "select",
            "aria-label": "Step",
            onchange: (event) => go({ ...route, item: event.target.value, params: {} }),
          },
          steps.map((one) =>
            h("option", { value: one, selected: one === Number(route.item) }, `step ${one}`),
          ),
        ),
        h(
          "span",
          { class: "soft num" },
          `${seconds(Math.max(data.seconds, ...data.phases.map((one) => one.end)))}, ${plural(data.episodes.length, "episode")}`,
        ),
        route.params.get("t")
          ? button(
              "all of the step",
              { class: "chip is-accent", onclick: () => go(withParams(route, { t: null })) },
              icon("close"),
            )
          : null,
        h(
          "span",
          { class: "conversation-actions" },
          link(
            address({ run: route.run, view: "episodes", params: { step: route.item } }),
            { class: "button" },
            "Episodes of this step",
          ),
        ),
      ),
      h(
        "div",
        {
          class: "shares",
          role: "img",
          "aria-label": shares
            .map(([name, share]) => `${timeWord(name)} ${percent(share)}`)
            .join(", "),
        },
        shares.map(([name, share]) =>
          h("span", {
            style: { "flex-grow": String(share), background: timeColor(name) },
            title: `${timeWord(name)} ${percent(share, 1)}`,
          }),
        ),
      ),
      h(
        "div",
        { class: "share-key num" },
        shares.map(([name, share]) =>
          h(
            "span",
            null,
            h("i", { style: { background: timeColor(name) } }),
            timeWord(name),
            " ",
            h("strong", null, percent(share, share < 0.1 ? 1 : 0)),
          ),
        ),
      ),
    );
  }

  return {
    show(next) {
      const same =
        route &&
        data &&
        route.run === next.run &&
        route.item === next.item &&
        route.params.get("kind") === next.params.get("kind");
      route = next;
      if (same) draw();
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
