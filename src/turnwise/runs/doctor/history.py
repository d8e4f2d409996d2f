"""The metrics that the doctor keeps: the last steps, the first values, and the best."""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from turnwise.runs.headline import is_number

NUM_KEPT = 64
"""Steps that are kept."""
NUM_RECENT = 5
"""Steps that count as the present."""
NUM_STEADY = 10
"""Steps over which a level counts as lasting, and a mean as significant."""

COUNTED = (
    "truncated",
    "errors",
    "tool_calls",
    "malformed_calls",
    "unread_calls",
    "cut_turns",
    "invalid_actions",
    "answers_shown",
)
"""Metrics that are absent from a step if their count is 0."""

_WRITTEN = ("cut_turns", "malformed_calls", "invalid_actions")
"""Fractions of turns with errors in the format of the text."""
_FACTOR = 10.0
"""The factor by which an update that destroys the policy changes the entropy. Noise in batches of
eight episodes makes up to 3."""
_RISE = 0.7
"""By how much it raises a fraction of `_WRITTEN`."""


@dataclass(frozen=True)
class Jump:
    """One update that changed a metric by far more than others do."""

    name: str
    step: int
    before: float
    after: float


class History:
    """The metrics so far, in the form that the checks need."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.steps: deque[Mapping[str, float]] = deque(maxlen=NUM_KEPT)
        self.first: dict[str, float] = {}
        """The first value of each metric."""
        self.evaluation: dict[str, float] = {}
        """The metrics of the newest evaluation."""
        self.first_jump: Jump | None = None
        """The first update that suddenly changed the entropy or a fraction of `_WRITTEN`."""
        self.gradient_peak: Jump | None = None
        """From the first nonzero norm of the gradient to the largest."""
        self.highest_reward = -math.inf
        """Of any episode, as is the lowest."""
        self.lowest_reward = math.inf
        self._early: list[Mapping[str, float]] = []
        self._best: dict[str, tuple[float, int]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        self.num_steps += 1
        finite = {name: value for name, value in metrics.items() if is_number(value)}
        self._note_jumps(finite)
        self.steps.append(finite)
        self.first = {**finite, **self.first}
        evaluation = {name: value for name, value in finite.items() if name.startswith("eval/")}
        self.evaluation = evaluation or self.evaluation
        self.highest_reward = max(self.highest_reward, finite.get("reward_max", -math.inf))
        self.lowest_reward = min(self.lowest_reward, finite.get("reward_min", math.inf))
        if len(self._early) < NUM_RECENT:
            self._early.append(finite)
        for name in ("reward", "tool_calls"):
            level = self.mean(name, NUM_STEADY)
            if level is not None and level > self._best.get(name, (-math.inf, 0))[0]:
                self._best[name] = level, self.num_steps

    def _note_jumps(self, metrics: Mapping[str, float]) -> None:
        step = int(metrics.get("step", self.num_steps))
        norm, peak = metrics.get("grad_norm", 0.0), self.gradient_peak
        if norm > 0 and (peak is None or norm > peak.after):
            before = norm if peak is None else peak.before
            self.gradient_peak = Jump("norm of the gradient", step, before, norm)
        if self.first_jump is not None or not self.steps:
            return
        for name in reversed(_WRITTEN):  # the first of them is kept
            before, after = self.steps[-1].get(name, 0.0), metrics.get(name, 0.0)
            if after - before >= _RISE:
                self.first_jump = Jump(f"share of {name.replace('_', ' ')}", step, before, after)
        usual, entropy = self.known("entropy", NUM_RECENT), metrics.get("entropy")
        if usual and entropy is not None:
            before = statistics.median(usual)
            # The entropy of a nearly deterministic policy is noisy.
            has_fallen = before >= 0.1 and entropy <= before / _FACTOR
            if has_fallen or entropy >= max(before * _FACTOR, 1.0):
                self.first_jump = Jump("entropy", step, before, entropy)

    def last(self, name: str, num: int = NUM_RECENT, ago: int = 0) -> list[float]:
        """Return the values of `num` steps that end `ago` steps ago; [] if one is missing."""
        end = max(len(self.steps) - ago, 0)
        values = _values(islice(self.steps, max(end - num, 0), end), name)
        return values if len(values) == num else []

    def mean(self, name: str, num: int = NUM_RECENT, ago: int = 0) -> float | None:
        values = self.last(name, num, ago)
        return statistics.fmean(values) if values else None

    def median(self, name: str, num: int = NUM_RECENT) -> float | None:
        values = self.last(name, num)
        return statistics.median(values) if values else None

    def known(self, name: str, num: int = NUM_STEADY) -> list[float]:
        """Return the values of the last `num` steps, of a metric that many steps do not have."""
        return _values(islice(self.steps, max(len(self.steps) - num, 0), None), name)

    def start(self, name: str, num: int = NUM_RECENT) -> float | None:
        """Return the mean of the first `num` steps, at most five."""
        first = _values(self._early[:num], name)
        return statistics.fmean(first) if len(first) == num else None

    def best(self, name: str) -> tuple[float, int]:
        """Return the highest mean over ten steps, and how many steps ago it was."""
        level, step = self._best.get(name, (-math.inf, self.num_steps))
        return level, self.num_steps - step

    def rise(self, name: str, num: int, ago: int | None = None) -> tuple[float, float] | None:
        """Return the change of the mean over `num` steps since `ago` steps ago, and its standard
        error."""
        before, after = self.last(name, num, num if ago is None else ago), self.last(name, num)
        if not before or not after:
            return None
        spread = statistics.variance(before) + statistics.variance(after)
        return statistics.fmean(after) - statistics.fmean(before), math.sqrt(spread / num)

    def is_rising(self, *ago: int) -> bool:
        """Return whether the reward is above that of some steps ago, by default 10, by more than
        noise."""
        rises = (self.rise("reward", NUM_STEADY, number) for number in ago or (NUM_STEADY,))
        return any(rise is not None and rise[0] > max(rise[1], 1e-9) for rise in rises)

    def success(self, num: int = NUM_RECENT) -> float:
        """Return the mean success; 0 if the environment reports none."""
        return self.mean("success", num) or 0.0

    @property
    def reports_success(self) -> bool:
        """Whether the environment says which episodes succeed."""
        return "success" in self.first

    def is_solved(self, num: int = NUM_RECENT) -> bool:
        """Return whether nearly all episodes succeed, or earn as much as the best ones."""
        if self.reports_success:
            return self.success(num) >= 0.9
        now, span = self.mean("reward", num), self.highest_reward - self.lowest_reward
        return now is not None and span > 0 and now >= self.lowest_reward + 0.95 * span

    def has_fallen(self) -> bool:
        """Return whether the reward of the last three steps is clearly below the first one."""
        now = self.mean("reward", 3)
        least = max(0.25 * self.first.get("reward_std", 0.0), 1e-6)
        return now is not None and now <= self.first["reward"] - least

    def is_at_its_highest(self) -> bool:
        """Return whether the mean reward has risen to about that of the best episode so far."""
        now, first = self.mean("reward"), self.first.get("reward", math.inf)
        highest = first + 0.95 * (self.highest_reward - first)
        return now is not None and now > first and now >= highest

    def has_no_spread(self) -> bool:
        """Return whether the rewards were identical within each of five steps: no signal."""
        spreads, rewards = self.last("reward_std"), self.last("reward")
        pairs = zip(spreads, rewards, strict=False)
        return bool(spreads) and all(s <= 1e-6 * max(1.0, abs(r)) for s, r in pairs)

    def stays_high(self, name: str) -> float | None:
        """Return the present value of a fraction that has stayed at a half or above; else None.

        It takes twenty steps to see whether it falls, unless there is no signal to learn from.
        """
        recent = self.last(name)
        is_hopeless = self.has_no_spread() and not self.success()
        if recent and min(recent) >= 0.9 and is_hopeless:
            return statistics.fmean(recent)
        before = self.mean(name, NUM_STEADY, ago=NUM_STEADY)
        now = self.mean(name, NUM_STEADY)
        if before is None or now is None or min(before, now) < 0.5:
            return None
        return None if now < before - 0.02 or self.is_rising() else now


def _values(steps: Iterable[Mapping[str, float]], name: str) -> list[float]:
    if name.startswith(COUNTED):
        return [step.get(name, 0.0) for step in steps]
    return [step[name] for step in steps if name in step]
