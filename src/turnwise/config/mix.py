"""Checks of a mix of environments, and the name of each in the metrics."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from turnwise.config.environment import EnvironmentConfig, EnvironmentItem
from turnwise.config.sections import DatasetConfig
from turnwise.errors import ConfigError

_PART_NAME = re.compile(r"[\w.-]+")
_METRICS_OF_RUNS = frozenset(
    {"eval", "time", "greedy", "sampled", "reward", "truncated", "errors", "tool_calls"}
)
"""Prefixes that metrics have already."""


def part_names(items: Sequence[EnvironmentItem]) -> list[str]:
    """Return the name of each environment of a mix: `Maze` for `games.py:Maze`, then `Maze-2`.

    >>> part_names([EnvironmentItem("games.py:Maze"), EnvironmentItem("games.py:Maze")])
    ['Maze', 'Maze-2']
    """
    taken = [item.name for item in items if item.name is not None]
    names: list[str] = []
    for item in items:
        if item.name is not None:
            names.append(item.name)
            continue
        stem = re.sub(r"[^\w.-]+", "-", item.environment.rpartition(":")[2]).strip("-.") or "part"
        numbered = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names.append(next(name for name in numbered if name not in {*taken, *names}))
    return names


def check_mix(
    items: list[EnvironmentItem],
    datasets: Mapping[str, DatasetConfig],
    data: Mapping[str, Any],
    source: str,
) -> None:
    """Refuse an empty mix, names that metrics cannot have, and settings of a single environment."""

    def refuse(problem: str) -> NoReturn:
        raise ConfigError(f"{source}: {problem}")

    if not items:
        refuse("environments got an empty list, expected at least one environment")
    if data.get("environment", {}) not in ({}, dataclasses.asdict(EnvironmentConfig())):
        refuse(
            "environment and environments are both given. Keep one of them: a run is played in one "
            "environment, or in a mix."
        )
    for name, dataset in datasets.items():
        if dataset != DatasetConfig():
            refuse(
                f"{name} and environments are both given, and rows are tasks of one environment. "
                f"Write {name} into the part of the mix that plays them."
            )
    for item, name in zip(items, part_names(items), strict=True):
        item.name = name
        if not _PART_NAME.fullmatch(name) or name in _METRICS_OF_RUNS:
            refuse(
                f"environments: the name {name!r} cannot stand in the metrics, which have names "
                "such as 'maze/reward'. Give this environment another one of letters, digits, dots "
                "and dashes: {environment: ..., name: ...}"
            )
    names = [item.name for item in items]
    if twice := next((name for name in names if names.count(name) > 1), None):
        refuse(f"environments: two parts have the name {twice!r}. Give each one of its own.")
