"""The state of a running training that displays show: metrics, current activity, remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnwise.legible import legible
from turnwise.runs.headline import policy_movement, reports_success

NUM_STEPS_OF_PACE = 20
"""The remaining time is estimated from this many latest steps."""


@dataclass(frozen=True)
class RunInfo:
    """What a reporter gets when a run begins."""

    folder: Path
    environment: str
    model: str
    num_steps: int
    """Steps in all, including those before a resume."""
    first_step: int = 0
    """Steps that were done before a resume."""
    history: Sequence[Mapping[str, float]] = ()
    """Their metrics."""
    evaluated_on: str = "held-out seeds"
    """`held-out seeds`, `16 held-out rows`, `training rows` ..."""


@dataclass
class RunState:
    """Collects what a reporter receives about a run."""

    clock: Callable[[], float] = time.monotonic
    run: RunInfo = RunInfo(Path(), "", "", 0)
    history: list[Mapping[str, float]] = field(default_factory=list)
    """The metrics of every step so far."""
    now: tuple[str, int, int] | None = None
    """The current activity: its name, how much of it is done, and of how much."""
    outcome: str | None = None
    """How the run ended; None while it is running."""

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._ended: float | None = None
        self._step_ends: deque[float] = deque(maxlen=NUM_STEPS_OF_PACE + 1)

    def begin(self, run: RunInfo) -> None:
        self._started = self.clock()
        self._ended = self.outcome = None
        self.run = run
        self.history = list(run.history)

    def step(self, metrics: Mapping[str, float]) -> None:
        self.history.append(dict(metrics))
        self.now = None
        self._step_ends.append(self.clock())

    def progress(self, what: str, done: int, total: int) -> None:
        self.now = (one_line(what), done, total)

    def end(self, outcome: str) -> None:
        self.now = None
        # The error that follows has the reason.
        self.outcome = one_line(outcome.partition(":")[0])
        self._ended = self.clock()

    @property
    def opening(self) -> list[str]:
        """The lines at the beginning of the run."""
        run = self.run
        what = f"training {run.model} on {run.environment}, {count(run.num_steps, 'step')}"
        return [one_line(f"run folder {run.folder}"), one_line(what)]

    @property
    def ending(self) -> str:
        """The line at the end of the run."""
        return f"{self.outcome} after {clock_time(self.elapsed)}"

    @property
    def elapsed(self) -> float:
        """Seconds since this start of the run; time before a resume is not counted."""
        return (self.clock() if self._ended is None else self._ended) - self._started

    @property
    def step_number(self) -> int:
        """The number of the last finished step."""
        return int(self.history[-1]["step"]) if self.history else self.run.first_step

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining seconds; None before the first step is finished."""
        if not self._step_ends:
            return None
        num_timed = len(self._step_ends) - 1
        pace = self.history[-1].get("time/step")
        if num_timed:
            pace = (self._step_ends[-1] - self._step_ends[0]) / num_timed
        if pace is None:
            return None
        since = self.clock() - self._step_ends[-1]
        return max((self.run.num_steps - self.step_number) * pace - since, 0.0)

    @property
    def reports_success(self) -> bool:
        """Whether the environment reports success."""
        return reports_success(self.history)

    def values(self, name: str) -> list[float]:
        """Return a metric of every step that has it."""
        return [metrics[name] for metrics in self.history if name in metrics]


def step_text(state: RunState, metrics: Mapping[str, float]) -> str:
    """Return a line such as `step 3/9  reward 0.50  21.4 episodes/s  eta 0:12  entropy 1.20`.

    What everybody reads comes first, what tells an expert how training goes last.
    """
    parts = [f"step {metrics['step']:.0f}/{state.run.num_steps}"]
    kinds = ["success", "reward"] if state.reports_success else ["reward"]
    names = [*reversed(kinds), *(f"eval/{w}/{k}" for w in ("greedy", "sampled") for k in kinds)]
    parts += [f"{name} {brief(metrics[name])}" for name in names if name in metrics]
    if (speed := metrics.get("time/episodes_per_second")) is not None:
        parts.append(f"{brief(speed)} episodes/s")
    if (left := state.seconds_left) is not None:
        parts.append(f"eta {clock_time(left)}")
    details = ["entropy", *policy_movement(metrics)]
    parts += [f"{name} {brief(metrics[name])}" for name in details if name in metrics]
    return "  ".join(parts)


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "step"), count(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Return text as one line without control characters."""
    return legible(" ".join(text.split()))


def brief(value: float) -> str:
    """Return a number in at most seven characters."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e7:
        return f"{value:.1e}"
    for least, digits in ((100, 0), (10, 1), (0.1, 2), (0.001, 3)):
        if size >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.0e}"


def clock_time(seconds: float) -> str:
    """Return a duration as 2:05, or as 1:02:05 from one hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
