"""What the sides of bench/overhead.py share; it needs nothing but Python's standard library.

A side gets its order as JSON on stdin and prints its report as the last line of stdout. Each times
itself in the processor's seconds, and what its script takes is measured and left out.
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
    """What is to be played."""

    observation: str
    """What the environment says each time."""
    answer: str
    """What the script says each time."""
    num_turns: int
    episodes: tuple[int, ...] = (1, 64, 1024)
    """How many at once."""
    repeats: int = 5
    tokenizer: str = ""
    """A folder with the tokenizer and its chat template."""

    @classmethod
    def read(cls) -> Order:
        return cls(**json.load(sys.stdin))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def repeats_of(self, num_episodes: int) -> int:
        """A single episode is over so soon that chance has the say."""
        return self.repeats * (20 if num_episodes == 1 else 1)


@dataclass
class Report:
    """What came of it."""

    name: str
    note: str = ""
    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By the number of episodes: for each repeat the seconds per turn of the framework, and of the
    script."""

    def print(self) -> None:
        print(json.dumps(dataclasses.asdict(self)))


Measure = Callable[[int], tuple[float, float]]
"""The processor's seconds for so many episodes at once: all, and the script's of them."""


def time_turns(report: Report, order: Order, measure: Measure) -> Report:
    """Fill in the report."""
    on_one_core()
    measure(1)  # what is found out once
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
