"""The episodes of an exported run: a table of many, and a few as whole conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnwise.view.episode_list import EpisodeList
from turnwise.view.exported_pages import render
from turnwise.view.payloads import episode_payload
from turnwise.view.query import EpisodeQuery
from turnwise.view.runs import ViewedRun

MOST_ROWS = 1000
"""The limit of the table, which has the episodes of steps spread over the training."""
_FAILED_SHARE = 4
"""One in so many of the whole conversations may be a failed episode."""


class Chosen(NamedTuple):
    """An episode that is shown as a whole conversation, and why."""

    episode: Mapping[str, Any]
    why: str


def choose(episodes: EpisodeList, steps: Sequence[int], number: int) -> list[Chosen]:
    """Return the best and the worst episodes of steps spread over the training, and failed ones."""
    failed = _ask(episodes, status="error", limit=max(1, number // _FAILED_SHARE))[:number]
    found = {one["id"]: Chosen(one, "failed") for one in failed}
    for step in spread(steps, max((number - len(found)) // 2, 1)):
        for sort, why in (("-reward", "best"), ("reward", "worst")):
            ranked = _ask(episodes, step=step, kind="train", sort=sort, limit=1)
            for one in ranked:
                if one["reward"] is not None and len(found) < number:
                    found.setdefault(one["id"], Chosen(one, f"{why} reward of step {step}"))
    for step in spread(steps, number):  # with few steps or equal rewards, others fill up
        for one in (
            _ask(episodes, step=step, limit=number - len(found)) if len(found) < number else ()
        ):
            found.setdefault(one["id"], Chosen(one, f"from step {step}"))
    chosen = list(found.values())[:number]
    return sorted(chosen, key=lambda one: (one.episode["step"], one.episode["index"]))


def listed(episodes: EpisodeList, steps: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
    """Return the episodes of the table, and how many there are in all."""
    total = int(EpisodeQuery.parse([("limit", "1")]).run(episodes)["total"])
    wanted = len(steps) if total <= MOST_ROWS else max(MOST_ROWS * len(steps) // total, 2)
    rows: list[dict[str, Any]] = []
    for step in spread(steps, wanted):
        rows += _ask(episodes, step=step, sort="index", limit=500)
    return rows[:MOST_ROWS], total


def _ask(episodes: EpisodeList, **query: object) -> list[dict[str, Any]]:
    items = [(name, str(value)) for name, value in query.items()]
    found: list[dict[str, Any]] = EpisodeQuery.parse(items).run(episodes)["episodes"]
    return found


def spread(steps: Sequence[int], number: int) -> list[int]:
    """Return so many of the steps, the first and the last among them.

    >>> spread(range(1, 101), 3), spread([4, 9], 5)
    ([1, 50, 100], [4, 9])
    """
    if number >= len(steps):
        return list(steps)
    if number == 1:
        return [steps[-1]]
    places = (n * (len(steps) - 1) // (number - 1) for n in range(number))
    return [steps[place] for place in places]


def whole_episode(run: ViewedRun, chosen: Chosen) -> str:
    """Return an episode's conversation with its tool calls, rewards and reports."""
    key, place, episode = run.episode(chosen.episode["id"])
    payload = episode_payload(*key, place, episode)
    reward = chosen.episode["reward"]
    about = [chosen.why, f"status {payload['status'].replace('_', ' ')}"]
    about += [] if reward is None else [f"reward {reward:.6g}"]
    about += [f"environment {payload['part']}"] if payload["part"] else []
    about.append(f"seed {payload['seed']}")
    return render("article.html", about=about, **payload)
