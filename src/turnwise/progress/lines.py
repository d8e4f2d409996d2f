"""What is known of a running training, and displays of it for pipes, files, CI and the log.

They print one line of text, or one JSON object, per step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.segment import Segment

from turnwise.legible import legible
from turnwise.runs.headline import policy_movement, reports_success

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

NUM_STEPS_OF_PACE = 20
"""The remaining time is estimated from this many latest steps."""
_LOG = logging.getLogger("turnwise")


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


class RunState:
    """Collects what a reporter receives about a run."""

    now: tuple[str, int, int] | None = None
    """The current activity: its name, how much of it is done, and of how much."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begin(RunInfo(Path(), "", "", 0))

    def begin(self, run: RunInfo) -> None:
        self.run = run
        self.history = list(run.history)
        """The metrics of every step so far."""
        self.outcome: str | None = None
        """How the run ended; None while it is running."""
        self._started = self.clock()
        self._ended: float | None = None

    def step(self, metrics: Mapping[str, float]) -> None:
        self.history.append(dict(metrics))
        self.now = None

    def progress(self, what: str, done: int, total: int) -> None:
        self.now = (one_line(what), done, total)

    def end(self, outcome: str) -> None:
        self.now = None
        # The error that follows has the reason.
        self.outcome = one_line(outcome.partition(":")[0])
        self._ended = self.clock()

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
        latest = [m for m in self.history[-NUM_STEPS_OF_PACE:] if "time/step" in m]
        if not latest:
            return None
        pace = fmean(m["time/step"] + m.get("time/evaluate", 0.0) for m in latest)
        return (self.run.num_steps - self.step_number) * pace

    def values(self, name: str) -> list[float]:
        """Return a metric of every step that has it."""
        return [metrics[name] for metrics in self.history if name in metrics]


def step_text(state: RunState, metrics: Mapping[str, float]) -> str:
    """Return a line such as `step 3/9  reward 0.50  21.4 episodes/s  eta 0:12  entropy 1.20`.

    What everybody reads comes first, what tells an expert how training goes last.
    """
    parts = [f"step {metrics['step']:.0f}/{state.run.num_steps}"]
    kinds = ["success", "reward"] if reports_success(state.history) else ["reward"]
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
    if size >= 1e7:
        return f"{value:.1e}"
    for least, digits in ((100, 0), (10, 1), (0.1, 2), (0.001, 3)):
        if size >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.0e}" if value else "0"


def clock_time(seconds: float) -> str:
    """Return a duration as 2:05, or as 1:02:05 from one hour on."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class LineReporter:
    """Prints one line per step. The run continues when the reader of a pipe is gone.

    While it is entered, it shows the warnings that turnwise logs. Handlers of the user that print
    to the same terminal do not print them a second time; files still get every record.
    """

    seconds_between_progress = 20.0
    """A slow step shows the number of finished episodes this often."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = RunState(clock)
        self._out = LastingStream(stream or sys.stdout)
        self._last_line = -self.seconds_between_progress

    def __enter__(self) -> Self:
        terminal = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
        self._printing = [
            handler
            for handler in [*logging.getLogger().handlers, *_LOG.handlers]
            if isinstance(handler, logging.StreamHandler) and handler.stream in terminal
        ]
        for handler in self._printing:
            handler.addFilter(_is_not_displayed)
        self._warnings = _WarningHandler(self)
        _LOG.addHandler(self._warnings)
        return self

    def __exit__(self, *_: object) -> None:
        _LOG.removeHandler(self._warnings)
        for handler in self._printing:
            handler.removeFilter(_is_not_displayed)

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        self._print(one_line(f"run folder {run.folder}"))
        steps = count(run.num_steps, "step")
        self._print(one_line(f"training {run.model} on {run.environment}, {steps}"))

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)
        self._print(step_text(self.state, metrics))

    def say(self, text: str) -> None:
        self._write(as_block(text))

    def progress(self, what: str, done: int, total: int) -> None:
        self.state.progress(what, done, total)
        if self.state.clock() - self._last_line >= self.seconds_between_progress:
            self._print(f"  {one_line(what)} {done:,}/{total:,}")

    def end(self, outcome: str) -> None:
        self.state.end(outcome)
        self._print(f"{self.state.outcome} after {clock_time(self.state.elapsed)}")

    def _print(self, line: str) -> None:
        self._last_line = self.state.clock()
        self._write(line)

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")


class LogReporter(LineReporter):
    """Writes lines to the log, one per step."""

    def say(self, text: str) -> None:
        self._write(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Not logged: there would be too many lines."""

    def end(self, outcome: str) -> None:
        self._write(outcome)

    def _write(self, text: str) -> None:
        _LOG.info("%s", text, extra={"is_progress": True})


class JsonReporter(LineReporter):
    """Prints each step's metrics as a line of JSON to one stream, and messages to the other."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._metrics = LastingStream(sys.stdout)

    def step(self, metrics: Mapping[str, float]) -> None:
        self._metrics.write(f"{json.dumps(dict(metrics))}\n")

    def progress(self, what: str, done: int, total: int) -> None:
        """Not reported: the messages are few."""


class _WarningHandler(logging.Handler):
    def __init__(self, display: LineReporter) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.say(record.getMessage())


def _is_not_displayed(record: logging.LogRecord) -> bool:
    is_ours = record.name == "turnwise" or record.name.startswith("turnwise.")
    is_shown = record.levelno >= logging.WARNING or getattr(record, "is_progress", False)
    return not (is_ours and is_shown)


def as_block(text: str) -> str:
    """Return text without control characters; lines after the first are indented, so that none
    looks like a line of the run."""
    return legible(text.strip("\n")).replace("\n", "\n    ")


class LegibleConsole(Console):
    """A rich console that prints no control characters of the text that it is given."""

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn. CI and `%%bash` in notebooks set FORCE_COLOR for a pipe,
        which rich takes for a terminal."""
        if self._force_terminal is not None:
            return self._force_terminal
        return super().is_terminal and self.file.isatty()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else legible(text), style, control)


class LastingStream:
    """Writes to a stream whose reader may go away, such as `| head`: the run continues."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
        except OSError:
            # Discard the stream's buffer, which would fail once more when Python exits.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
