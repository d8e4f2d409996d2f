"""Who hears of a run: its log, a display unless disabled, and the user's callbacks."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from turnwise.errors import ConfigError
from turnwise.progress import is_worker, make_reporter
from turnwise.progress.lines import LogReporter as LogReporter, RunInfo as RunInfo, as_block

if TYPE_CHECKING:
    from turnwise.trainer.trainer import Trainer

Metrics: TypeAlias = dict[str, float]
"""The metrics of one step by name, such as `eval/greedy/reward`."""

CALLBACK_EVENTS = ("on_step", "on_evaluation", "on_save")


class Reporter(Protocol):
    """Receives the progress of a run. An exception that it raises ends the run."""

    def begin(self, run: RunInfo) -> None: ...

    def step(self, metrics: Mapping[str, float]) -> None: ...

    def say(self, text: str) -> None:
        """Report one line: a resume, a saved checkpoint, a finding of the doctor."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of a phase of a step."""

    def end(self, outcome: str) -> None:
        """`finished`, `interrupted`, or `stopped: ` and why."""


class Reporters:
    """The log, and the user's reporter or, while a run is displayed, a display.

    Worker processes (of multiprocessing or torchrun) display nothing: the terminal belongs to
    the process that started them.
    """

    def __init__(self, *reporters: Reporter, has_display: bool = False) -> None:
        self._reporters = list(reporters)
        self._has_display = has_display and not is_worker()
        self._display: Reporter | None = None
        self._folder = Path()

    @contextlib.contextmanager
    def displayed(self) -> Iterator[None]:
        """Show the display, if there is one, inside the block."""
        if not self._has_display:
            yield
            return
        with make_reporter() as display:
            self._display = display
            self._reporters.append(display)
            try:
                yield
            finally:
                self._reporters.remove(display)
                self._display = None

    def begin(self, run: RunInfo) -> None:
        self._folder = run.folder
        for reporter in self._reporters:
            reporter.begin(run)

    def step(self, metrics: Mapping[str, float]) -> None:
        for reporter in self._reporters:
            reporter.step(metrics)

    def say(self, text: str) -> None:
        for reporter in self._reporters:
            reporter.say(text)
        if self._has_display and self._display is None:  # outside `fit`, as in `evaluate()`
            print(as_block(text), file=sys.stderr)

    def progress(self, what: str, done: int, total: int) -> None:
        for reporter in self._reporters:
            reporter.progress(what, done, total)

    def end(self, outcome: str) -> None:
        for reporter in self._reporters:
            reporter.end(outcome)
        if outcome == "finished" and self._display is not None:
            folder = shlex.quote(str(self._folder))
            self.say(f"Next: turnwise view {folder}, turnwise eval {folder}")


def choose_reporter(reporter: Reporter | Literal["auto"] | None) -> Reporters:
    """Return the log with what the trainer's argument `reporter` names."""
    if reporter == "auto":
        return Reporters(LogReporter(), has_display=True)
    if reporter is None or isinstance(reporter, LogReporter):
        return Reporters(LogReporter())
    events = ("begin", "step", "say", "progress", "end")
    missing = [name for name in events if not callable(getattr(reporter, name, None))]
    if missing:
        raise ConfigError(
            f"reporter got {reporter!r:.80}, which has no method {', '.join(missing)}. Expected "
            '"auto", None for no output, or an object with the methods of turnwise.Reporter.'
        )
    return Reporters(LogReporter(), reporter)


class Callback:
    """What a callback may do. Any object with one of these methods is one; none is required.

    All are called in the thread of `fit`, between two steps. `trainer.stop()` ends the run after
    them, an exception stops it with an error.
    """

    def on_step(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after each step with all its metrics, when they are written."""

    def on_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation with its metrics: `eval/greedy/reward` ..."""

    def on_save(self, trainer: Trainer, path: Path) -> None:
        """Called with the folder of a checkpoint, when it is written."""
