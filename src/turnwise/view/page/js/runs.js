// The table of all runs can be sorted and filtered; runs get notes there and are chosen to compare.

import { empty, fill, h, html, icon, later, refill } from "./dom.js";
import { ago, num, percent, plural, visible } from "./format.js";
import { changeNotes, editButton, tagButton, tagChips } from "./notes.js";
import { address, go, withParams } from "./route.js";
import { dotClass, stateWord, stepsWords } from "./shell.js";

const PAGE = 200;
const MOST_COMPARED = 24;

export function runsView(host, app) {
  let route = null;
  let numRows = PAGE;
  const change = (changes, options) => go(withParams(route, changes), options);
  const list = (name) => (route.params.get(name) ?? "").split(",").filter(Boolean);
  const setText = later(120, (value) => change({ q: value.trim() }, { replace: true }));

  const search = html`<input class="field runs-search" type="search"
    placeholder="Filter by name, environment, status, tag or note"
    aria-label="Filter runs by text" oninput=${(event) => setText(event.target.value)}
  />`;
  const tags = h(".runs-tags");
  const archived = h("label.control");
  const count = h("span.faint.num.runs-count");
  const actions = h(".runs-actions");
  const place = h(".runs-table");
  fill(
    host,
    h(".runs", h(".runs-bar", h("h1", "Runs"), search, archived, count, actions, tags), place),
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
    if (!found.length) return void fill(place, nothing(current, showsArchived));
    const showMore = () => {
      numRows += PAGE;
      draw();
    };
    refill(
      place,
      h("table.table", heads(), h("tbody", found.slice(0, numRows).map(row))),
      found.length > numRows &&
        html`<button class="button" onclick=${showMore}>
          Show ${num(Math.min(PAGE, found.length - numRows))} more runs
        </button>`,
    );
  }

  function drawBar(current, found, wanted, showsArchived) {
    const numArchived = app.runs.filter((run) => run.notes.archived).length;
    fill(
      archived,
      html`<input type="checkbox" checked=${showsArchived}
        disabled=${!numArchived && !showsArchived}
        onchange=${(event) => change({ archived: event.target.checked ? "1" : null })}
      />`,
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
        tagButton(tag, `Only runs with the tag ${tag}`, () => chooseTag(tag), wanted.includes(tag)),
      ),
    );
    drawActions();
  }

  const without = (all, one) => all.filter((other) => other !== one);

  function chooseTag(tag) {
    const now = list("tag");
    change({ tag: (now.includes(tag) ? without(now, tag) : [...now, tag]).join(",") });
  }

  function drawActions() {
    const runs = list("runs").flatMap((key) => app.run(key) ?? []);
    if (!runs.length) {
      fill(actions, h("span.faint.hint", "Select runs to compare them"));
      return;
    }
    const keys = runs.map((run) => run.key);
    const others = keys.slice(1).join(",");
    const compare = address({ run: keys[0], view: "learn", params: { with: others } });
    const isPossible = keys.length > 1 && keys.length <= MOST_COMPARED;
    const tooMany = `At most ${MOST_COMPARED} runs can be compared`;
    const areArchived = runs.every((run) => run.notes.archived);
    const archive = async () => {
      await changeNotes(app, runs, { archived: !areArchived });
      change({ runs: null });
    };
    fill(
      actions,
      isPossible
        ? html`<a class="button is-strong" href=${compare}>Compare ${plural(keys.length, "run")}</a>`
        : h("span.faint", keys.length > 1 ? tooMany : "Select another run to compare"),
      app.writeToken &&
        html`<button class="button" onclick=${archive}>
          ${areArchived ? "Unarchive" : "Archive"}
        </button>`,
      html`<button class="icon-button" aria-label="Clear the selection"
        title="Clear the selection" onclick=${() => change({ runs: null })}>
        ${icon("close")}
      </button>`,
    );
  }

  function heads() {
    const order = route.params.get("sort") ?? "-updated";
    const head = (column) => {
      const isHere = order.replace(/^-/, "") === column.name;
      const isDown = order.startsWith("-");
      const next = isHere ? !isDown : column.isNumber;
      return html`<th class="column-${column.name} ${column.isNumber ? "is-number" : ""}"
        aria-sort=${isHere ? (isDown ? "descending" : "ascending") : null}>
        <button title=${column.help ?? `Sort by ${column.title.toLowerCase()}`}
          data-name=${`sort ${column.name}`}
          onclick=${() => change({ sort: `${next ? "-" : ""}${column.name}` })}>
          ${column.title}
        </button>
      </th>`;
    };
    return h("thead", h("tr", h("th", h("span.unseen", "Choose")), COLUMNS.map(head)));
  }

  function row(run) {
    const isChosen = list("runs").includes(run.key);
    const toggle = () => {
      const now = list("runs");
      const next = isChosen ? without(now, run.key) : [...now, run.key];
      change({ runs: next.join(",") }, { replace: true });
    };
    return html`<tr class="${isChosen ? "is-chosen" : ""} ${run.notes.archived ? "is-archived" : ""}"
      data-run=${run.key}>
      <td class="cell-choose">
        <input type="checkbox" checked=${isChosen} aria-label=${`Choose ${run.key}`}
          data-name=${`choose ${run.key}`} onchange=${toggle}
        />
      </td>
      ${COLUMNS.map((column) => cell(run, column))}
    </tr>`;
  }

  function cell(run, column) {
    const content = {
      name: () => [
        html`<a href=${address({ run: run.key })} title=${run.path}>${run.key}</a>`,
        run.notes.archived && h("span.chip", "archived"),
        run.notes.note && h("span.note-text", { title: run.notes.note }, visible(run.notes.note)),
      ],
      status: () => [
        h("span", { class: `dot ${dotClass(run)}` }),
        html`<span title=${[column.text(run), ...run.problems].join("\n")}>
          ${visible(column.text(run))}
        </span>`,
        run.problems.length > 0 &&
          run.status &&
          h("span.chip.is-warn", { title: run.problems.join("\n") }, "partly unreadable"),
      ],
      tags: () => [tagChips(run.notes.tags, chooseTag), editButton(app, run)],
    }[column.name];
    return html`<td
      class="cell-${column.name} column-${column.name} ${column.isNumber ? "is-number num" : ""}"
      title=${column.detail?.(run) ?? null}>
      ${content ? content() : visible(String(column.text(run)))}
    </td>`;
  }

  function nothing(current, showsArchived) {
    if (!current.length && app.runs.length)
      return empty(
        "All runs are archived",
        "Archived runs are hidden by default.",
        html`<button class="button" onclick=${() => change({ archived: "1" })}>
          Show archived runs
        </button>`,
      );
    const clear = () => {
      search.value = "";
      change({ q: null, tag: null });
    };
    return empty(
      "No runs match these filters",
      showsArchived ? "" : "Archived runs are searched only if they are shown.",
      html`<button class="button" onclick=${clear}>Clear the filters</button>`,
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

// ---- The columns of the table of runs: the value that a column is sorted by, and its text.

// `text` is the value as a number, unless a column has its own.
const NUMBERS = {
  step: { title: "Step", help: "Trained steps", value: (run) => run.step, text: stepsWords },
  headline: {
    title: "Headline",
    help: "The last greedy evaluation; without one, the episodes of the last training step",
    value: (run) => run.headline?.value,
    text: (run) => (run.headline ? `${run.headline.metric} ${run.headline.number}` : "–"),
    detail: (run) => run.headline?.about,
  },
  best: {
    title: "Best checkpoint",
    help: "The best checkpoint; sorted by its metric",
    value: (run) => run.best_checkpoint?.value,
    text: (run) => (run.best_checkpoint ? `step ${num(run.best_checkpoint.step)}` : "–"),
    detail: (run) => run.best_checkpoint?.about,
  },
  reward: {
    title: "Training reward",
    help: "Mean reward of the last training step's episodes",
    value: (run) => run.last?.reward,
  },
  success: {
    title: "Training success",
    help: "Fraction of the last training step's episodes that succeeded",
    value: (run) => run.last?.success,
    text: (run) => percent(run.last?.success),
  },
  episodes: {
    title: "Episodes",
    help: "Episodes in the run's folder",
    value: (run) => run.num_episodes,
  },
};
const when = (name, title) => ({
  name,
  title,
  value: (run) => run[name],
  text: (run) => (run[name] ? ago(run[name]) : "–"),
  isNumber: true,
});

export const RESULTS = [
  { name: "status", title: "Status", value: stateWord, text: stateWord },
  ...Object.entries(NUMBERS).map(([name, column]) => ({
    name,
    text: (run) => num(column.value(run)),
    isNumber: true,
    ...column,
  })),
];
const COLUMNS = [
  { name: "name", title: "Run", value: (run) => run.key },
  { name: "tags", title: "Tags", value: (run) => run.notes.tags.join(", ") },
  {
    name: "environment",
    title: "Environment",
    value: (run) => run.environment,
    text: (run) => run.environment || "–",
  },
  ...RESULTS,
  when("updated", "Last change"),
  when("started", "Started"),
];

// Sorts runs; those without a value come last in both directions.
export function sorted(runs, order) {
  const isDown = order.startsWith("-");
  const column = COLUMNS.find((one) => one.name === order.replace(/^-/, ""));
  if (!column) return runs;
  const isMissing = (value) => value === null || value === undefined || value === "";
  const compare = (a, b) =>
    column.isNumber ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return runs
    .map((run) => [column.value(run), run])
    .sort(([a], [b]) => {
      if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
      return isDown ? compare(b, a) : compare(a, b);
    })
    .map(([, run]) => run);
}

export function matches(run, text, tags) {
  const { notes } = run;
  if (!tags.every((tag) => notes.tags.includes(tag))) return false;
  const found = [run.key, run.environment, stateWord(run), run.path, notes.note, ...notes.tags]
    .join("\n")
    .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => found.includes(word));
}
