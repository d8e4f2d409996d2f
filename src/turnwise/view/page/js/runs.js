// The table of all runs can be sorted and filtered; runs get notes there and are chosen to compare.

import { button, fill, h, later, link } from "./dom.js";
import { num, plural } from "./format.js";
import { icon } from "./icons.js";
import { changeNotes, editButton, tagChips } from "./notes.js";
import { address, go, withParams } from "./route.js";
import { COLUMNS, matches, sorted } from "./run_columns.js";
import { hasFailed } from "./shell.js";
import { empty } from "./states.js";
import { visible } from "./visible.js";

const PAGE = 200;
const MOST_COMPARED = 24;

export function runsView(host, app) {
  let route = null;
  let numRows = PAGE;
  const change = (changes, options) => go(withParams(route, changes), options);
  const list = (name) => (route.params.get(name) ?? "").split(",").filter(Boolean);
  const setText = later(120, (value) => change({ q: value.trim() }, { replace: true }));

  const search = h("input", {
    class: "field runs-search",
    type: "search",
    placeholder: "Filter by name, environment, status, tag or note",
    "aria-label": "Filter runs by text",
    oninput: (event) => setText(event.target.value),
  });
  const tags = h("div", { class: "runs-tags" });
  const archived = h("label", { class: "control" });
  const count = h("span", { class: "faint num runs-count" });
  const actions = h("div", { class: "runs-actions" });
  const place = h("div", { class: "runs-table" });
  fill(
    host,
    h(
      "div",
      { class: "runs" },
      h(
        "div",
        { class: "runs-bar" },
        h("h1", null, "Runs"),
        search,
        archived,
        count,
        actions,
        tags,
      ),
      place,
    ),
  );

  function draw() {
    const text = route.params.get("q") ?? "";
    if (document.activeElement !== search) search.value = text;
    const wanted = list("tag");
    const showsArchived = route.params.get("archived") === "1";
    const current = app.runs.filter((run) => showsArchived || !run.notes.archived);
    const found = sorted(
      current.filter((run) => matches(run, text, wanted)),
      route.params.get("sort") ?? "-updated",
    );
    drawBar(current, found, wanted, showsArchived);
    keepPlace(place, () => drawTable(current, found, showsArchived));
  }

  function drawTable(current, found, showsArchived) {
    if (!found.length) fill(place, nothing(current, showsArchived));
    else
      fill(
        place,
        h("table", { class: "table" }, heads(), h("tbody", null, found.slice(0, numRows).map(row))),
        found.length > numRows
          ? button(`Show ${num(Math.min(PAGE, found.length - numRows))} more runs`, {
              class: "button",
              onclick: () => {
                numRows += PAGE;
                draw();
              },
            })
          : null,
      );
  }

  function drawBar(current, found, wanted, showsArchived) {
    const numArchived = app.runs.filter((run) => run.notes.archived).length;
    fill(
      archived,
      h("input", {
        type: "checkbox",
        checked: showsArchived,
        disabled: !numArchived && !showsArchived,
        onchange: (event) => change({ archived: event.target.checked ? "1" : null }),
      }),
      `Show archived (${num(numArchived)})`,
    );
    count.textContent =
      found.length === current.length
        ? plural(current.length, "run")
        : `${num(found.length)} of ${plural(current.length, "run")}`;
    const known = [...new Set([...wanted, ...current.flatMap((run) => run.notes.tags)])].sort();
    fill(
      tags,
      known.map((tag) =>
        button(visible(tag), {
          class: `chip tag ${wanted.includes(tag) ? "is-accent" : ""}`,
          "aria-pressed": String(wanted.includes(tag)),
          title: `Only runs with the tag ${tag}`,
          onclick: () => chooseTag(tag),
        }),
      ),
    );
    drawActions();
  }

  const chosen = () =>
    list("runs")
      .map((key) => app.run(key))
      .filter(Boolean);
  const without = (all, one) => all.filter((other) => other !== one);

  function chooseTag(tag) {
    const now = list("tag");
    change({ tag: (now.includes(tag) ? without(now, tag) : [...now, tag]).join(",") });
  }

  function drawActions() {
    const runs = chosen();
    if (!runs.length) {
      fill(actions, h("span", { class: "faint hint" }, "Select runs to compare them"));
      return;
    }
    const keys = runs.map((run) => run.key);
    const compare = address({
      run: keys[0],
      view: "learn",
      params: { with: keys.slice(1).join(",") },
    });
    const isPossible = keys.length > 1 && keys.length <= MOST_COMPARED;
    const areArchived = runs.every((run) => run.notes.archived);
    fill(
      actions,
      isPossible
        ? link(compare, { class: "button is-strong" }, `Compare ${plural(keys.length, "run")}`)
        : h(
            "span",
            { class: "faint" },
            keys.length > 1
              ? `At most ${MOST_COMPARED} runs can be compared`
              : "Select another run to compare",
          ),
      app.writeToken
        ? button(areArchived ? "Unarchive" : "Archive", {
            class: "button",
            onclick: async () => {
              await changeNotes(app, runs, { archived: !areArchived });
              change({ runs: null });
            },
          })
        : null,
      button(icon("close"), {
        class: "icon-button",
        "aria-label": "Clear the selection",
        title: "Clear the selection",
        onclick: () => change({ runs: null }),
      }),
    );
  }

  function heads() {
    const order = route.params.get("sort") ?? "-updated";
    const head = (column) => {
      const isHere = order.replace(/^-/, "") === column.name;
      const isDown = order.startsWith("-");
      const next = isHere ? !isDown : column.isNumber;
      return h(
        "th",
        {
          class: `column-${column.name} ${column.isNumber ? "is-number" : ""}`,
          "aria-sort": isHere ? (isDown ? "descending" : "ascending") : null,
        },
        button(column.title, {
          title: column.help ?? `Sort by ${column.title.toLowerCase()}`,
          data: { sort: column.name },
          onclick: () => change({ sort: `${next ? "-" : ""}${column.name}` }),
        }),
      );
    };
    return h(
      "thead",
      null,
      h("tr", null, h("th", null, h("span", { class: "unseen" }, "Choose")), COLUMNS.map(head)),
    );
  }

  function row(run) {
    const isChosen = list("runs").includes(run.key);
    const toggle = () => {
      const now = list("runs");
      const next = isChosen ? without(now, run.key) : [...now, run.key];
      change({ runs: next.join(",") }, { replace: true });
    };
    return h(
      "tr",
      {
        class: `${isChosen ? "is-chosen" : ""} ${run.notes.archived ? "is-archived" : ""}`,
        data: { run: run.key },
      },
      h(
        "td",
        { class: "cell-choose" },
        h("input", {
          type: "checkbox",
          checked: isChosen,
          "aria-label": `Choose ${run.key}`,
          onchange: toggle,
        }),
      ),
      COLUMNS.map((column) => cell(run, column)),
    );
  }

  function cell(run, column) {
    const content = {
      name: () => [
        link(address({ run: run.key, view: "learn" }), { title: run.path }, run.key),
        run.notes.archived ? h("span", { class: "chip" }, "archived") : null,
        run.notes.note
          ? h("span", { class: "note-text", title: run.notes.note }, visible(run.notes.note))
          : null,
      ],
      status: () => [
        h("span", { class: `dot ${run.is_live ? "is-live" : hasFailed(run) ? "is-failed" : ""}` }),
        h(
          "span",
          { title: [column.text(run), ...run.problems].join("\n") },
          visible(column.text(run)),
        ),
        run.problems.length && run.status
          ? h(
              "span",
              { class: "chip is-warn", title: run.problems.join("\n") },
              "partly unreadable",
            )
          : null,
      ],
      tags: () => [
        tagChips(run.notes.tags, chooseTag),
        editButton(app, run, "Edit tags, note and archive"),
      ],
    }[column.name];
    return h(
      "td",
      {
        class: `cell-${column.name} column-${column.name} ${column.isNumber ? "is-number num" : ""}`,
        title: column.detail?.(run) ?? null,
      },
      content ? content() : visible(String(column.text(run))),
    );
  }

  function nothing(current, showsArchived) {
    if (!current.length && app.runs.length)
      return empty(
        "All runs are archived",
        "Archived runs are hidden by default.",
        button("Show archived runs", {
          class: "button",
          onclick: () => change({ archived: "1" }),
        }),
      );
    return empty(
      "No runs match these filters",
      showsArchived ? "" : "Archived runs are searched only if they are shown.",
      button("Clear the filters", {
        class: "button",
        onclick: () => {
          search.value = "";
          change({ q: null, tag: null });
        },
      }),
    );
  }

  return {
    show(next) {
      route = next;
      draw();
    },
    live: () => draw(),
    key(event) {
      if (event.key !== "/") return false;
      search.focus();
      return true;
    },
    destroy: () => setText.cancel(),
  };
}

// Keeps scroll position and focus of a table that is drawn again because a run changed or a box was
// ticked.
function keepPlace(place, draw) {
  const { scrollTop, scrollLeft } = place;
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const name = active?.getAttribute("aria-label");
  const sort = active?.dataset.sort;
  draw();
  place.scrollTop = scrollTop;
  place.scrollLeft = scrollLeft;
  if (sort)
    place.querySelector(`[data-sort="${CSS.escape(sort)}"]`)?.focus({ preventScroll: true });
  else if (name)
    place.querySelector(`[aria-label="${CSS.escape(name)}"]`)?.focus({ preventScroll: true });
}
