"""Who hears of a run: its log, a display unless disabled, and the user's callbacks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias

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
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = list(reporters)

    def begin(self, run: RunInfo) -> None:
        self._tell("begin", run)

    def step(self, metrics: Mapping[str, float]) -> None:
        self._tell("step", metrics)

    def say(self, text: str) -> None:
        self._tell("say", text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._tell("progress", what, done, total)

    def end(self, outcome: str) -> None:
        self._tell("end", outcome)

    def _tell(self, event: str, *values: object) -> None:
        for reporter in self._reporters:
            getattr(reporter, event)(*values)


class AutoReporter(Reporters):
    """The log, and while it is entered around a run, the display that fits the place.

    Worker processes (of multiprocessing, Ray or torchrun) display nothing: the terminal belongs to
    the process that started them.
    """

    def __init__(self) -> None:
        super().__init__(LogReporter())
        self._display = ExitStack()

    def __enter__(self) -> Self:
        if not is_worker():
            display = make_reporter()
            self._display.enter_context(display)
            self._reporters.append(display)
        return self

    def __exit__(self, *_: object) -> None:
        del self._reporters[1:]
        self._display.close()

    def begin(self, run: RunInfo) -> None:
        super().begin(run)
        self._folder = run.folder

    def end(self, outcome: str) -> None:
        super().end(outcome)
        if outcome == "finished" and len(self._reporters) > 1:
            folder = shlex.quote(str(self._folder))
            self.say(f"Next: turnwise view {folder}, turnwise eval {folder}")

    def say(self, text: str) -> None:
        super().say(text)
        if len(self._reporters) == 1 and not is_worker():  # outside `fit`, as in `evaluate()`
            print(as_block(text), file=sys.stderr)


def choose_reporter(
    reporter: Reporter | Literal["auto"] | None,
) -> tuple[Reporter, AbstractContextManager[object]]:
    """Return the reporter for the trainer's argument, and a context to enter around a run."""
    if reporter == "auto":
        automatic = AutoReporter()
        return automatic, automatic
    if reporter is None or isinstance(reporter, LogReporter):
        return reporter or LogReporter(), nullcontext()
    missing = [
        name
        for name in ("begin", "step", "say", "progress", "end")
        if not callable(getattr(reporter, name, None))
    ]
    if missing:
        raise ConfigError(
            f"reporter got {reporter!r:.80}, which has no method {', '.join(missing)}. Expected "
            '"auto" (the default), None for no output, or an object with the methods of '
            "turnwise.Reporter."
        )
    return Reporters(LogReporter(), reporter), nullcontext()


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
