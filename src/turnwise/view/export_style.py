"""The style sheet of an exported episode: light and dark, and the colours of tokens."""

from __future__ import annotations

from collections.abc import Sequence

NUM_SHADES = 5
"""The number of shades for positive values, and for negative ones."""

_STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c2024; --soft: #60646c; --paper: #ffffff; --card: #f6f7f9; --line: #d9dce1;
  --model: #eaf2fd; --warn: #b42318; --plus: 33 104 201; --minus: 217 95 14; --own: #cfe3c9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8eb; --soft: #9ba1a6; --paper: #14171a; --card: #1c2024; --line: #343a40;
    --model: #16283f; --warn: #ff8f85; --plus: 96 160 255; --minus: 255 145 77; --own: #2d4a2a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
pre, .words, .stream { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
pre, .stream { font: 13px/1.6 ui-monospace, monospace; }
.message {
  border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; margin: .5rem 0;
  background: var(--card);
}
.assistant { background: var(--model); }
.who { color: var(--soft); font-size: 13px; }
.facts { color: var(--soft); font-size: 13px; margin-top: .4rem; }
.facts b { color: var(--ink); font-weight: 600; }
.call { border-left: 3px solid var(--line); padding-left: .6rem; margin: .5rem 0; }
.bad { color: var(--warn); }
.odd {
  border: 1px solid var(--warn); border-radius: 3px; color: var(--warn); font-size: 10px;
  padding: 0 2px; margin: 0 1px; unicode-bidi: isolate; white-space: nowrap;
}
.words, .stream, pre { unicode-bidi: plaintext; }
.legend { color: var(--soft); font-size: 13px; margin: .4rem 0; }
.audit label { margin-right: 1rem; font-size: 13px; }
.stream { border: 1px solid var(--line); border-radius: 6px; padding: .75rem; margin-top: .5rem; }
.t { border-radius: 2px; unicode-bidi: isolate; }
.t.m { box-shadow: inset 0 -1px 0 var(--soft); }
.t:not(.m) { color: var(--soft); }
.t.e { display: inline-block; width: 3px; height: 1em; background: var(--line); }
.t:hover { outline: 1px solid var(--ink); }
.by-mask:checked ~ .stream .m { background: var(--own); }
"""


def style(columns: Sequence[str]) -> str:
    """Return the style sheet; tokens are coloured by the column whose button is chosen."""
    rules = [_STYLE]
    for column in columns:
        for shade in range(1, NUM_SHADES + 1):
            strength = 0.12 + 0.68 * shade / NUM_SHADES
            for sign, colour in (("p", "--plus"), ("n", "--minus")):
                rules.append(
                    f".by-{column}:checked ~ .stream .{column}-{sign}{shade} "
                    f"{{ background: rgb(var({colour}) / {strength:.2f}); }}"
                )
    return "\n".join(rules)
