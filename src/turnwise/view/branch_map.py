"""Draws the turns of an episode that has branches as a small tree, for exported pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMN, _ROW, _LEFT, _ORIGIN, _RADIUS = 34, 28, 98, 70, 10


def is_branched(agent: Mapping[str, Any]) -> bool:
    """Return whether the payload of an agent has more than one branch."""
    return bool(agent["num_branches"] > 1)


def place_words(turn: Mapping[str, Any]) -> str:
    """Return which branch a turn is on, and which turn it follows."""
    follows = turn["follows"]
    before = "from the start" if follows is None else f"follows turn {follows + 1}"
    return f"branch {turn['branch'] + 1} · {before}"


def branch_map(agent: Mapping[str, Any], prefix: str) -> str:
    """Return an SVG in which every turn links to its place in the page."""
    turns: Sequence[Mapping[str, Any]] = agent["turns"]
    rows = 1 + max(turn["row"] for turn in turns)
    width = _LEFT + _COLUMN * max(turn["column"] for turn in turns) + _RADIUS + 6
    lines = [_line(turn, turns) for turn in turns]
    nodes = [_node(turn, number, prefix) for number, turn in enumerate(turns)]
    names = {turn["branch"]: turn["row"] for turn in turns}
    labels = [
        f'<text class="name" x="2" y="{_ROW // 2 + row * _ROW + 4}">branch {branch + 1}</text>'
        for branch, row in names.items()
    ]
    return (
        '<div class="map"><svg class="branches" role="img" aria-label="Branches" '
        f'style="width: {width}px; height: {rows * _ROW}px">'
        f"{''.join([*lines, *nodes, *labels])}</svg></div>"
    )


def _spot(turn: Mapping[str, Any]) -> tuple[int, int]:
    return _LEFT + turn["column"] * _COLUMN, _ROW // 2 + turn["row"] * _ROW


def _line(turn: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the line from the turn before, or from the start of all conversations."""
    x, y = _spot(turn)
    before = turn["follows"]
    left, top = (_ORIGIN, _ROW // 2) if before is None else _spot(turns[before])
    bend = f"V{y - 9}Q{left} {y} {left + 9} {y}" if y > top else ""
    return f'<path d="M{left} {top}{bend}H{x}"/>'


def _node(turn: Mapping[str, Any], number: int, prefix: str) -> str:
    x, y = _spot(turn)
    return (
        f'<a href="#{prefix}turn-{number + 1}"><title>{place_words(turn)}</title>'
        f'<circle cx="{x}" cy="{y}" r="{_RADIUS}"/>'
        f'<text x="{x}" y="{y + 4}">{number + 1}</text></a>'
    )
