// Of a run that stopped, the page shows the reason and a link to the episodes that failed.

import { get, runPath } from "./api.js";
import { fill, h, link } from "./dom.js";
import { plural } from "./format.js";
import { icon } from "./icons.js";
import { address } from "./route.js";
import { visible } from "./visible.js";

const VIEWS = ["learn", "episodes"];
const STOPPED = /^stopped:?\s*/;

export async function drawFailure(place, app) {
  const run = app.run();
  const isWanted = run && STOPPED.test(run.status) && VIEWS.includes(app.route.view);
  const wanted = isWanted ? `${run.key} ${run.status} ${run.num_episodes}` : "";
  place.classList.toggle("hidden", !isWanted);
  if (place.dataset.wanted === wanted) return;
  place.dataset.wanted = wanted;
  if (!isWanted) return void fill(place);
  draw(place, run, 0);
  const { statuses = {} } = await get(runPath(run.key)).catch(() => ({}));
  if (place.dataset.wanted !== wanted) return;
  const failed = Object.entries(statuses)
    .filter(([status]) => status.endsWith("_error"))
    .reduce((sum, [, count]) => sum + count, 0);
  draw(place, run, failed);
}

function draw(place, run, failed) {
  const [first, ...rest] = run.status.replace(STOPPED, "").split("\n");
  const isOpen = place.querySelector("details")?.open ?? false;
  fill(
    place,
    icon("alert"),
    h(
      "div",
      { class: "failure-words" },
      h("strong", null, "This run stopped: "),
      h("span", null, visible(first)),
      rest.length
        ? h(
            "details",
            { open: isOpen },
            h("summary", null, "Traceback"),
            h("pre", { class: "words mono" }, visible(rest.join("\n"))),
          )
        : null,
    ),
    failed
      ? link(
          address({ run: run.key, view: "episodes", params: { status: "error" } }),
          { class: "button", data: { action: "failed" } },
          plural(failed, "failed episode"),
        )
      : null,
  );
}
