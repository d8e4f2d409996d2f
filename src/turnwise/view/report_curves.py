"""Curves of a run as pictures inside a page: plain SVG, without a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnwise.view.exported_pages import render

_WIDTH, _HEIGHT = 340, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 20
_MOST_POINTS = 300
"""The limit of one curve; of more points, the minimum and maximum of neighbours are drawn."""

# The charts in their order, with their titles. Evaluations are drawn in the chart of their metric.
_TITLES = {
    "reward": "reward",
    "success": "success",
    "turns": "turns per episode",
    "tokens_per_episode": "tokens per episode",
    "truncated": "truncated episodes",
    "errors": "failed episodes",
    "invalid_actions": "invalid actions",
    "tool_failures": "failed tool calls",
    "entropy": "entropy",
    "kl": "KL to the sampler",
    "kl_ref": "KL to the reference",
    "clip_fraction": "clipped tokens",
    "grad_norm": "gradient norm",
    "gap_max": "largest log-prob gap",
    "zero_variance": "zero-variance groups",
    "explained_variance": "explained variance",
    "value_loss": "value loss",
    "learning_rate": "learning rate",
    "time/step": "seconds per step",
}
_EVALUATIONS = ("greedy", "sampled")


class Curve(NamedTuple):
    """One line of a chart."""

    label: str
    points: list[tuple[float, float]]
    style: str
    """A class of the page's style sheet."""


def charts(columns: Mapping[str, Any], environments: Sequence[str] = ()) -> list[str]:
    """Return a figure for each main metric, for each term of the reward, and for reward and success
    in each environment of a mix."""
    series = columns["series"]
    terms = sorted(name for name in series if name.startswith("reward/"))
    minor = columns.get("minor", ())
    wanted = [("", name) for name in (*_TITLES, *terms) if name not in minor]
    wanted += [(f"{one}/", name) for one in environments for name in ("reward", "success")]
    drawn = []
    for place, name in wanted:
        sources = [("training", f"{place}{name}", "own")]
        sources += [(f"{e} evaluation", f"eval/{place}{e}/{name}", e) for e in _EVALUATIONS]
        curves = [
            Curve(label, _points(columns["steps"], series.get(metric, ())), style)
            for label, metric, style in sources
        ]
        if known := [curve for curve in curves if curve.points]:
            drawn.append(_figure(f"{place}{_TITLES.get(name, name)}", known))
    return drawn


def _points(steps: Sequence[Any], values: Sequence[Any]) -> list[tuple[float, float]]:
    pairs = zip(steps, values, strict=False)
    known = [(float(s), float(v)) for s, v in pairs if s is not None and v is not None]
    size = -(-2 * len(known) // _MOST_POINTS)
    if size <= 1:
        return known
    buckets = [known[start : start + size] for start in range(0, len(known), size)]
    ends = [{min(b, key=lambda p: p[1]), max(b, key=lambda p: p[1])} for b in buckets]
    return [point for both in ends for point in sorted(both)]


def _figure(title: str, curves: Sequence[Curve]) -> str:
    every = [point for curve in curves for point in curve.points]
    steps = _range([x for x, _ in every], 0.0)
    values = _range([y for _, y in every], 0.06)

    def place(step: float, value: float) -> tuple[float, float]:
        return (
            _place(step, steps, _LEFT, _WIDTH - _RIGHT),
            _place(value, values, _HEIGHT - _BOTTOM, _TOP),
        )

    return render(
        "figure.html",
        title=title,
        curves=curves,
        lines=[(curve.style, [place(*point) for point in curve.points]) for curve in curves],
        steps=steps,
        ticks=[(place(steps[0], value)[1], value) for value in _ticks(*values)],
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
    )


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) / 2 or 1.0
        return (low, high + 1) if not margin else (low - pad, high + pad)
    room = (high - low) * margin
    return low - room, high + room


def _place(value: float, span: tuple[float, float], start: float, end: float) -> float:
    share = (value - span[0]) / (span[1] - span[0])
    return round(start + share * (end - start), 1)


def _ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    first = math.ceil(low / every)
    ticks = [(first + n) * every for n in range(8)]
    return [value for value in ticks if value <= high]
