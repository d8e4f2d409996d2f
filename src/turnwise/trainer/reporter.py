"""Who is told how a run goes: the log by default, a live display from the command line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

Metrics: TypeAlias = dict[str, float]
"""The figures of one step, under flat names."""

_LOG = logging.getLogger("turnwise")


@dataclass(frozen=True)
class RunInfo:
    """What a run is, told when it begins."""

    folder: Path
    environment: str
    model: str
    num_steps: int
    """In all, those before a resume included."""
    first_step: int = 0
    """Steps that were done before."""
    history: Sequence[Mapping[str, float]] = ()
    """Their metrics."""


class Reporter(Protocol):
    """Is told how a run goes. What it raises would end the run, so it should not."""

    def begin(self, run: RunInfo) -> None: ...

    def step(self, metrics: Mapping[str, float]) -> None: ...

    def say(self, text: str) -> None:
        """One line: a resume, a saved checkpoint, a finding of the doctor."""

    def progress(self, what: str, done: int, total: int) -> None:
        """How far a part of a step has come."""

    def end(self, outcome: str) -> None:
        """`finished`, `interrupted`, or `stopped: ` and why."""


class LogReporter:
    """Lines in the log, one a step."""

    def __init__(self) -> None:
        self._num_steps = 0

    def begin(self, run: RunInfo) -> None:
        self._num_steps = run.num_steps
        _LOG.info("training %s on %s, %d steps", run.model, run.environment, run.num_steps)
        _LOG.info("the run is kept in %s", run.folder)

    def step(self, metrics: Mapping[str, float]) -> None:
        _LOG.info("%s", step_line(metrics, self._num_steps))

    def say(self, text: str) -> None:
        _LOG.info("%s", text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Too much for a log."""

    def end(self, outcome: str) -> None:
        _LOG.info("%s", outcome)


class Reporters:
    """Several at once: a run always writes its own log too."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def begin(self, run: RunInfo) -> None:
        for reporter in self._reporters:
            reporter.begin(run)

    def step(self, metrics: Mapping[str, float]) -> None:
        for reporter in self._reporters:
            reporter.step(metrics)

    def say(self, text: str) -> None:
        for reporter in self._reporters:
            reporter.say(text)

    def progress(self, what: str, done: int, total: int) -> None:
        for reporter in self._reporters:
            reporter.progress(what, done, total)

    def end(self, outcome: str) -> None:
        for reporter in self._reporters:
            reporter.end(outcome)


_SHOWN = ("reward", "success", "turns", "entropy", "kl")


def step_line(metrics: Mapping[str, float], num_steps: int) -> str:
    """A step in one line.

    >>> step_line({"step": 3, "reward": 0.5, "kl": 0.01, "time/tokens_per_second": 1234.0}, 9)
    'step 3/9  reward 0.5  kl 0.01  1,234 tok/s'
    """
    parts = [f"step {metrics['step']:.0f}/{num_steps}"]
    parts += [f"{name} {metrics[name]:.3g}" for name in _SHOWN if name in metrics]
    speed = metrics.get("time/tokens_per_second")
    if speed is not None:
        parts.append(f"{speed:,.0f} tok/s")
    return "  ".join(parts)
