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
    environment: str = ""
    model: str = ""
    folder: str = ""
    num_steps: int = 0
    """Steps of the whole run, including those before a resume."""
    evaluated_on: str = "held-out seeds"
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
        self._first_step = 0

    def begin(self, run: RunInfo) -> None:
        self._started = self.clock()
        self._ended = self.outcome = None
        self.environment = one_line(run.environment)
        self.model = one_line(run.model)
        self.folder = one_line(str(run.folder))
        self.num_steps = run.num_steps
        self.evaluated_on = one_line(run.evaluated_on)
        self.history = list(run.history)
        self._first_step = run.first_step

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
        what = f"training {self.model} on {self.environment}, {count(self.num_steps, 'step')}"
        return [f"run folder {self.folder}", what]

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
        return int(self.history[-1]["step"]) if self.history else self._first_step

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining seconds; None before the first step is finished."""
        if not self._step_ends:
            return None
        if len(self._step_ends) == 1:
            pace = self.history[-1].get("time/step")
            if pace is None:
                return None
        else:
            pace = (self._step_ends[-1] - self._step_ends[0]) / (len(self._step_ends) - 1)
        since = self.clock() - self._step_ends[-1]
        return max((self.num_steps - self.step_number) * pace - since, 0.0)

    @property
    def reports_success(self) -> bool:
        """Whether the environment reports success."""
        return reports_success(self.history)

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return (step, value) of a metric for every step that has one."""
        return [(m["step"], m[name]) for m in self.history if name in m]

    def latest(self, name: str) -> float | None:
        """Return the value of a metric where it was last reported."""
        return next((m[name] for m in reversed(self.history) if name in m), None)


def step_text(state: RunState, metrics: Mapping[str, float]) -> str:
    """Return a line such as `step 3/9  reward 0.50  21.4 episodes/s  eta 0:12  entropy 1.20`.

    What everybody reads comes first, what tells an expert how training goes last.
    """
    parts = [f"step {metrics['step']:.0f}/{state.num_steps}"]
    names = ["reward", "success"]
    if not state.reports_success:
        names.remove("success")
    kinds = ["success", "reward"] if "success" in names else ["reward"]
    names += [f"eval/{way}/{kind}" for way in ("greedy", "sampled") for kind in kinds]
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
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.001 else f"{value:.0e}"


def clock_time(seconds: float) -> str:
    """Return a duration as 2:05, or as 1:02:05 from one hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
