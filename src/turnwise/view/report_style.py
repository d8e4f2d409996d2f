"""The style sheet of an exported run: that of an exported episode, curves, and print."""

from __future__ import annotations

from turnwise.view.export_style import style

STYLE = (
    style(())
    + """
header { margin-bottom: 1rem; }
h4 { font-size: .95rem; margin: .8rem 0 .3rem; }
a { color: rgb(var(--plus)); }
.problem {
  border: 1px solid var(--warn); border-radius: 6px; padding: .6rem .75rem; margin: .75rem 0;
  color: var(--warn);
}
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tiles div {
  display: grid; min-width: 9rem; padding: .5rem .75rem; border: 1px solid var(--line);
  border-radius: 6px; background: var(--card);
}
.tiles span { color: var(--soft); font-size: 13px; }
.tiles div { max-width: 20rem; align-content: start; }
.tiles b { font-size: 1.25rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { font-size: 13px; display: flex; flex-wrap: wrap; gap: 0 .8rem; }
figcaption > span { display: flex; flex-wrap: wrap; gap: 0 .8rem; color: var(--soft); }
figcaption .own::before, figcaption .greedy::before, figcaption .sampled::before {
  content: ""; display: inline-block; width: 14px; margin-right: 4px; vertical-align: 3px;
  border-top: 2px solid rgb(var(--plus));
}
figcaption .greedy::before { border-top: 2px dotted rgb(var(--minus)); }
figcaption .sampled::before { border-top: 2px dashed rgb(var(--minus)); }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg text { fill: var(--soft); font: 10px system-ui, sans-serif; }
svg .end { text-anchor: end; }
svg polyline { fill: none; stroke: rgb(var(--plus)); stroke-width: 1.6; stroke-linejoin: round; }
svg circle { fill: rgb(var(--plus)); }
svg .greedy, svg .sampled { stroke: rgb(var(--minus)); stroke-dasharray: 2 3; }
svg .sampled { stroke-dasharray: 6 3; }
svg circle.greedy, svg circle.sampled { fill: rgb(var(--minus)); stroke: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; width: 100%; min-width: 44rem; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-top: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; border-top: 0; }
td { overflow-wrap: anywhere; vertical-align: top; }
td:first-child { white-space: nowrap; }
.episode { border-top: 1px solid var(--line); margin-top: 1.2rem; }
@media (max-width: 600px) {
  body { padding: .8rem; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .3rem; }
}
@media print {
  :root {
    color-scheme: light;
    --ink: #000000; --soft: #444444; --paper: #ffffff; --card: #ffffff; --line: #bbbbbb;
    --model: #f2f5fa; --warn: #8a1c13; --plus: 33 104 201; --minus: 190 80 10;
  }
  body { max-width: none; padding: 0; font-size: 11px; }
  .charts { grid-template-columns: repeat(3, 1fr); }
  .message, .tiles div, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .wide { overflow: visible; }
  table { min-width: 0; font-size: 10px; }
  .who, .facts, .legend, figcaption, .tiles span { font-size: 10px; }
  pre, .stream { font-size: 10px; }
  a { color: inherit; text-decoration: none; }
}
"""
)
