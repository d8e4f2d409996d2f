"""Exports a run as one HTML file: curves, findings, settings, provenance and episodes.

The file needs neither network nor scripts, and can be printed.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnwise.view.episodes import EpisodeList, find_episodes
from turnwise.view.export import render
from turnwise.view.payloads import episode_payload
from turnwise.view.runs import ViewedRun

NUM_EPISODES = 12
MAX_BYTES = 20 * 2**20
"""The limit of the file; whole episodes that do not fit are left out."""


def export_run(run: ViewedRun, num_episodes: int = NUM_EPISODES, max_bytes: int = MAX_BYTES) -> str:
    """Return the HTML file of a run, with up to `num_episodes` conversations in it."""
    run.open_episodes(math.inf)
    about = run.detail()
    started = time.localtime(about["started"]) if about["started"] else None
    facts = {"Start": run.facts("provenance"), "Hashes": run.facts("identity")}
    page = {
        "run": about,
        "title": about["name"],
        "started": started and time.strftime("%Y-%m-%d %H:%M", started),
        "charts": charts(run.metrics.columns(), list(about["parts"])),
        "provenance": {title: named for title, named in facts.items() if named},
        "max_mib": max_bytes / 2**20,
    }
    size = len(render("run.html", episodes=None, **page).encode())
    episodes = _episodes(run, about["steps"], num_episodes, max_bytes - size)
    return render("run.html", episodes=episodes, **page)


# ---- episodes ----

MOST_ROWS = 1000
"""The limit of the table, which has the episodes of steps spread over the training."""
_FAILED_SHARE = 4
"""One in so many of the whole conversations may be a failed episode."""


def _episodes(
    run: ViewedRun, steps: Sequence[int], number: int, max_bytes: float
) -> dict[str, Any]:
    """Return the rows of the table, and as many whole episodes as fit."""
    total = _ask(run.episodes, limit=1)["total"]
    wanted = len(steps) if total <= MOST_ROWS else max(MOST_ROWS * len(steps) // total, 2)
    asked = [_ask(run.episodes, step=n, sort="index", limit=500) for n in spread(steps, wanted)]
    rows = [row for answer in asked for row in answer["episodes"]]
    chosen = _choose(run.episodes, steps, number) if number else []
    articles = {}
    for one in chosen:
        (kind, step), index, stored = run.episode(one.row["id"])
        payload = episode_payload(kind, step, index, stored)
        article = render("article.html", why=one.why, reward=one.row["reward"], **payload)
        if len(article.encode()) <= max_bytes:
            max_bytes -= len(article.encode())
            articles[one.row["id"]] = article
    return {
        "total": total,
        "rows": rows[:MOST_ROWS],
        "articles": articles,
        "num_left_out": len(chosen) - len(articles),
    }


@dataclass(frozen=True)
class _Chosen:
    """An episode that is shown whole."""

    row: Mapping[str, Any]
    """It in the table."""
    why: str


def _choose(episodes: EpisodeList, steps: Sequence[int], number: int) -> list[_Chosen]:
    """Return the best and the worst episodes of steps spread over the training, and failed ones."""
    failed = _ask(episodes, status="error", limit=max(1, number // _FAILED_SHARE))["episodes"]
    chosen = {row["id"]: _Chosen(row, "failed") for row in failed[:number]}
    for step in spread(steps, max((number - len(chosen)) // 2, 1)):
        for sort, which in (("-reward", "best"), ("reward", "worst")):
            for row in _ask(episodes, step=step, kind="train", sort=sort, limit=1)["episodes"]:
                if row["reward"] is not None and len(chosen) < number:
                    chosen.setdefault(row["id"], _Chosen(row, f"{which} reward of step {step}"))
    for step in spread(steps, number):  # with few steps or equal rewards, others fill up
        if len(chosen) < number:
            for row in _ask(episodes, step=step, limit=number - len(chosen))["episodes"]:
                chosen.setdefault(row["id"], _Chosen(row, f"from step {step}"))
    return sorted(chosen.values(), key=lambda one: (one.row["step"], one.row["index"]))


def _ask(episodes: EpisodeList, **query: object) -> dict[str, Any]:
    return find_episodes(episodes, [(name, str(value)) for name, value in query.items()])


def spread(steps: Sequence[int], number: int) -> list[int]:
    """Return so many of the steps, the first and the last among them.

    >>> spread(range(1, 101), 3), spread([4, 9], 5)
    ([1, 50, 100], [4, 9])
    """
    if number >= len(steps):
        return list(steps)
    if number == 1:
        return [steps[-1]]
    return [steps[n * (len(steps) - 1) // (number - 1)] for n in range(number)]


# ---- curves, as plain SVG ----

_WIDTH, _HEIGHT = 340, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 20
_MOST_POINTS = 300
"""The limit of one curve; of more points, the minimum and maximum of neighbours are drawn."""

# The charts in their order. Evaluations are drawn in the chart of their metric.
_CHARTS = (
    "reward",
    "success",
    "turns",
    "tokens_per_episode",
    "truncated",
    "errors",
    "invalid_actions",
    "tool_failures",
    "entropy",
    "kl",
    "kl_ref",
    "clip_fraction",
    "grad_norm",
    "gap_max",
    "zero_variance",
    "explained_variance",
    "value_loss",
    "learning_rate",
    "time/step",
)
Points: TypeAlias = list[tuple[float, float]]


def charts(columns: Mapping[str, Any], environments: Sequence[str] = ()) -> list[str]:
    """Return a figure for each main metric, for each term of the reward, and for reward and success
    in each environment of a mix."""
    series = columns["series"]
    terms = sorted(name for name in series if name.startswith("reward/"))
    minor = columns.get("minor", ())
    wanted = [("", name) for name in (*_CHARTS, *terms) if name not in minor]
    wanted += [(f"{one}/", name) for one in environments for name in ("reward", "success")]
    drawn = []
    for prefix, name in wanted:
        sources = [("training", f"{prefix}{name}", "own")]
        for how in ("greedy", "sampled"):
            sources.append((f"{how} evaluation", f"eval/{prefix}{how}/{name}", how))
        curves = [
            {"label": label, "points": points, "style": style}
            for label, metric, style in sources
            if (points := _points(columns["steps"], series.get(metric, ())))
        ]
        if curves:
            drawn.append(_figure(f"{prefix}{name}".replace("_", " "), curves))
    return drawn


def _points(steps: Sequence[Any], values: Sequence[Any]) -> Points:
    pairs = zip(steps, values, strict=False)
    known = [(float(s), float(v)) for s, v in pairs if s is not None and v is not None]
    size = -(-2 * len(known) // _MOST_POINTS)
    if size <= 1:
        return known
    buckets = [known[start : start + size] for start in range(0, len(known), size)]
    ends = [{min(b, key=lambda p: p[1]), max(b, key=lambda p: p[1])} for b in buckets]
    return [point for both in ends for point in sorted(both)]


def _figure(title: str, curves: Sequence[Mapping[str, Any]]) -> str:
    every: Points = [point for curve in curves for point in curve["points"]]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    last = last if last > first else first + 1
    low, high = min(y for _, y in every), max(y for _, y in every)
    room = (high - low) * 0.06 or abs(low) / 2 or 1.0
    low, high = low - room, high + room

    def position(step: float, value: float) -> tuple[float, float]:
        x = _LEFT + (step - first) / (last - first) * (_WIDTH - _RIGHT - _LEFT)
        y = _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)
        return round(x, 1), round(y, 1)

    # Three to six round numbers.
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    every_tick = next(n * power for n in (1, 2, 5, 10) if n * power >= (high - low) / 4)
    ticks = [(math.ceil(low / every_tick) + n) * every_tick for n in range(8)]
    return render(
        "figure.html",
        title=title,
        curves=curves,
        lines=[(one["style"], [position(*point) for point in one["points"]]) for one in curves],
        steps=(first, last),
        ticks=[(position(first, value)[1], value) for value in ticks if value <= high],
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
    )
