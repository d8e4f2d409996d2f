"""Curves of a run as pictures inside a page: plain SVG, without a script."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    x_range = _range([x for x, _ in every], 0.0)
    y_range = _range([y for _, y in every], 0.06)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{html.escape(title)}</title>'
    ]
    for value in _ticks(*y_range):
        y = _place(value, y_range, _HEIGHT - _BOTTOM, _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 3.5}" class="end">{value:.4g}</text>')
    for value, anchor in zip(x_range, ("", "end"), strict=True):
        x = _place(value, x_range, _LEFT, _WIDTH - _RIGHT)
        text = f"step {value:.0f}" if not anchor else f"{value:.0f}"
        parts.append(f'<text x="{x}" y="{_HEIGHT - 5}" class="{anchor}">{text}</text>')
    parts += [_line(curve, x_range, y_range) for curve in curves]
    parts.append("</svg>")
    last = "".join(
        f'<span class="{curve.style}">{html.escape(curve.label)} <b>{curve.points[-1][1]:.4g}</b>'
        "</span>"
        for curve in curves
    )
    caption = f"<figcaption><b>{html.escape(title)}</b><span>{last}</span></figcaption>"
    return f"<figure>{caption}{''.join(parts)}</figure>"


def _line(curve: Curve, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    places = [
        (
            _place(x, x_range, _LEFT, _WIDTH - _RIGHT),
            _place(y, y_range, _HEIGHT - _BOTTOM, _TOP),
        )
        for x, y in curve.points
    ]
    drawn = f'<polyline class="{curve.style}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
    if len(places) <= 40:
        dots = (f'<circle class="{curve.style}" cx="{x}" cy="{y}" r="2"/>' for x, y in places)
        drawn += "".join(dots)
    return drawn


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
