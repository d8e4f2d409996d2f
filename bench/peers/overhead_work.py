"""The work and the report of the sides of bench/overhead.py; needs only the standard library.

A side reads its order as JSON on stdin and prints its report as the last line of stdout. It
measures its own CPU time, and subtracts that of its script.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Order:
    """The episodes that a side plays."""

    observation: str
    """The observation of every step."""
    answer: str
    """The text of every turn."""
    num_turns: int
    episodes: tuple[int, ...] = (1, 64, 1024)
    """Numbers of concurrent episodes."""
    repeats: int = 5
    tokenizer: str = ""
    """The folder of the tokenizer and its chat template."""

    @classmethod
    def read(cls) -> Order:
        return cls(**json.load(sys.stdin))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def repeats_of(self, num_episodes: int) -> int:
        """Returns more repeats for a single episode, which is too short to time well."""
        return self.repeats * (20 if num_episodes == 1 else 1)


@dataclass
class Report:
    """The times of one side."""

    name: str
    note: str = ""
    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By number of episodes: the seconds per turn of framework and script in each repeat."""

    def print(self) -> None:
        print(json.dumps(dataclasses.asdict(self)))


Measure = Callable[[int], tuple[float, float]]
"""Takes a number of concurrent episodes; returns the CPU seconds of all, and of the script."""


def time_turns(report: Report, order: Order, measure: Measure) -> Report:
    """Measures every number of episodes; returns the filled report."""
    on_one_core()
    measure(1)  # fills the caches
    for num_episodes in order.episodes:
        num_turns = num_episodes * order.num_turns
        taken = [measure(num_episodes) for _ in range(order.repeats_of(num_episodes))]
        report.times[str(num_episodes)] = [
            ((whole - script) / num_turns, script / num_turns) for whole, script in taken
        ]
    return report


def on_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
