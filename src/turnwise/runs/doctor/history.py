"""What the doctor remembers of a run: the last steps, how each metric began, how good it was."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from itertools import islice

NUM_KEPT = 64
"""Steps that are remembered."""
NUM_RECENT = 5
"""Steps that "now" means."""
NUM_STEADY = 10
"""Steps over which a level counts as lasting, and a mean as more than luck."""

COUNTED = ("truncated", "errors", "tool_calls", "malformed_calls", "cut_turns", "invalid_actions")
"""Metrics that a step leaves out when there was nothing to count."""


class History:
    """The metrics so far, as the symptoms need them."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.steps: deque[Mapping[str, float]] = deque(maxlen=NUM_KEPT)
        self._first: dict[str, list[float]] = {}
        self._best: dict[str, tuple[float, int]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        self.num_steps += 1
        finite = {name: value for name, value in metrics.items() if _is_finite(value)}
        self.steps.append(finite)
        for name in ("entropy", "reward"):
            first = self._first.setdefault(name, [])
            if name in finite and len(first) < NUM_RECENT:
                first.append(finite[name])
        for name in ("reward", "tool_calls"):
            level = self.mean(name, NUM_STEADY)
            if level is not None and level > self._best.get(name, (-math.inf, 0))[0]:
                self._best[name] = level, self.num_steps

    def last(self, name: str, num: int = NUM_RECENT, ago: int = 0) -> list[float]:
        """The values of so many steps, up to `ago` steps before the last; [] if one is missing."""
        end = max(len(self.steps) - ago, 0)
        steps = list(islice(self.steps, max(end - num, 0), end))
        if name.startswith(COUNTED):
            values = [step.get(name, 0.0) for step in steps]
        else:
            values = [step[name] for step in steps if name in step]
        return values if len(values) == num else []

    def mean(self, name: str, num: int = NUM_RECENT, ago: int = 0) -> float | None:
        values = self.last(name, num, ago)
        return statistics.fmean(values) if values else None

    def median(self, name: str, num: int = NUM_RECENT) -> float | None:
        values = self.last(name, num)
        return statistics.median(values) if values else None

    def start(self, name: str) -> float | None:
        """The mean of the metric's first steps."""
        first = self._first.get(name, [])
        return statistics.fmean(first) if len(first) == NUM_RECENT else None

    def best(self, name: str) -> tuple[float, int]:
        """The highest mean of ten steps, and how many steps ago it ended."""
        level, step = self._best.get(name, (-math.inf, self.num_steps))
        return level, self.num_steps - step

    def rise(self, name: str, num: int, ago: int | None = None) -> tuple[float, float] | None:
        """From the mean of `num` steps, `ago` steps back, to that of the last: by how much, and
        the standard error of that."""
        before, after = self.last(name, num, num if ago is None else ago), self.last(name, num)
        if not before or not after:
            return None
        spread = statistics.variance(before) + statistics.variance(after)
        return statistics.fmean(after) - statistics.fmean(before), math.sqrt(spread / num)

    def is_rising(self) -> bool:
        """Whether the reward went up lately, by more than luck."""
        rise = self.rise("reward", NUM_STEADY)
        return rise is not None and rise[0] > max(rise[1], 1e-9)

    def success(self) -> float:
        return self.mean("success") or 0.0

    def stays_high(self, name: str, level: float) -> float | None:
        """The present value of a share that has been at `level` or above, and does not fall: what
        a run begins with is no fault while it gets better."""
        before = self.mean(name, NUM_STEADY, ago=NUM_STEADY)
        now = self.mean(name, NUM_STEADY)
        if before is None or now is None or min(before, now) < level:
            return None
        return None if now < before - 0.02 or self.is_rising() else now


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
