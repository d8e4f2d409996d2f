"""Displays for pipes, files, CI and the log: one line of text, or one JSON object, per step."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.segment import Segment

from turnwise.legible import legible
from turnwise.progress.run_state import RunInfo, RunState, one_line, step_text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

SECONDS_BETWEEN_PROGRESS_LINES = 20.0
"""A slow step prints the number of finished episodes this often."""
_LOG = logging.getLogger("turnwise")


class LineReporter:
    """Prints one line per step. The run continues when the reader of a pipe is gone.

    While it is entered, it shows the warnings that turnwise logs. Handlers of the user that print
    to the same terminal do not print them a second time; files still get every record.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = RunState(clock)
        self._out = LastingStream(stream or sys.stdout)
        self._last_line = -SECONDS_BETWEEN_PROGRESS_LINES

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
        for line in self.state.opening:
            self._print(line)

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)
        self._print(step_text(self.state, metrics))

    def say(self, text: str) -> None:
        self._write(as_block(text))

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of a phase of a step."""
        if self.state.clock() - self._last_line >= SECONDS_BETWEEN_PROGRESS_LINES:
            self._print(f"  {one_line(what)} {done:,}/{total:,}")

    def end(self, outcome: str) -> None:
        self.state.end(outcome)
        self._print(self.state.ending)

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

    def __init__(self, stream: TextIO | None = None, messages: TextIO | None = None) -> None:
        super().__init__(messages or sys.stderr)
        self._metrics = LastingStream(stream or sys.stdout)

    def begin(self, run: RunInfo) -> None:
        self._write(f"run folder {one_line(str(run.folder))}")

    def step(self, metrics: Mapping[str, float]) -> None:
        self._metrics.write(f"{json.dumps(dict(metrics))}\n")

    def progress(self, what: str, done: int, total: int) -> None:
        """Not reported: the messages are few."""

    def end(self, outcome: str) -> None:
        self._write(one_line(outcome.partition(":")[0]))


class _WarningHandler(logging.Handler):
    """Passes the warnings of turnwise to a display instead of the standard error."""

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
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(legible(text), style)


class LastingStream:
    """Writes to a stream whose reader may go away, such as `| head`: the run continues."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._waiting: list[str] = []
        self._is_writing = False

    def write(self, text: str) -> int:
        # A signal handler may report while a line is being written, which a stream refuses.
        self._waiting.append(text)
        if not self._is_writing:
            self._is_writing = True
            try:
                while self._waiting:
                    self._write(self._waiting.pop(0))
            finally:
                self._is_writing = False
        return len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
        except OSError:
            # Discard the stream's buffer, which would fail once more when Python exits.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def flush(self) -> None:
        """Do nothing: what is written is flushed at once."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
