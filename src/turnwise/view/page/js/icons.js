// Icons are line drawings of 24 by 24, in the colour of the text around them.

import { svg } from "./dom.js";

const PATHS = {
  sun: "M12 4V2M12 22v-2M4 12H2M22 12h-2M6.3 6.3 4.9 4.9M19.1 19.1l-1.4-1.4M6.3 17.7l-1.4 1.4M19.1 4.9l-1.4 1.4M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Z",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13ZM20 20l-4.9-4.9",
  left: "m14.5 6-6 6 6 6",
  right: "m9.5 6 6 6-6 6",
  up: "m6 14.5 6-6 6 6",
  down: "m6 9.5 6 6 6-6",
  save: "M12 4v11M7.5 11 12 15.5 16.5 11M5 20h14",
  link: "M10 14a4 4 0 0 0 5.7 0l3-3A4 4 0 0 0 13 5.3l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.7l1-1",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  tokens: "M4 7h5M11 7h9M4 12h9M15 12h5M4 17h3M9 17h11",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18ZM12 7.5V12l3 2",
  close: "M6 6l12 12M18 6 6 18",
  check: "m5 12.5 4.5 4.5L19 7.5",
  alert:
    "M12 8v5M12 16.5v.1M10.4 4.3 2.9 17.5A1.9 1.9 0 0 0 4.5 20h15a1.9 1.9 0 0 0 1.6-2.5L13.6 4.3a1.9 1.9 0 0 0-3.2 0Z",
  filter: "M4 6h16M7 12h10M10 18h4",
  edit: "M4 20h4L19 9l-4-4L4 16v4ZM13 7l4 4",
};

export function icon(name) {
  return svg(
    "svg",
    {
      viewBox: "0 0 24 24",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    },
    svg("path", { d: PATHS[name] }),
  );
}
