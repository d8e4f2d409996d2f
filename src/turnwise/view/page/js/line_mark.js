// Draws a short piece of a curve for a legend.

import { svg } from "./dom.js";

export function lineMark(color, dash, width = 22) {
  const middle = width / 2;
  return svg(
    "svg",
    { viewBox: `0 0 ${width} 8`, width, height: 8, "aria-hidden": "true" },
    svg("path", {
      d: `M1 4h${width - 2}`,
      stroke: color,
      "stroke-width": dash ? 1.75 : 2.5,
      "stroke-dasharray": dash ? dash.join(" ") : null,
    }),
    dash ? svg("circle", { cx: middle, cy: 4, r: 2.4, fill: color }) : null,
  );
}
