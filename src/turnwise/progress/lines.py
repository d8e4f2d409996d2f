"""Displays for pipes, files and CI: one line of text, or one JSON object, per step."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, TextIO

from turnwise.legible import legible
from turnwise.progress.display import PrintedDisplay
from turnwise.progress.run_state import RunInfo, RunState, one_line, step_text

SECONDS_BETWEEN_PROGRESS_LINES = 20.0
"""A slow step prints the number of finished episodes this often."""


class LineReporter(PrintedDisplay):
    """Prints one line per step. The run continues when the reader of a pipe is gone."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = RunState(clock)
        self._out = LastingStream(stream or sys.stdout)
        self._last_line = -SECONDS_BETWEEN_PROGRESS_LINES

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


class JsonReporter(PrintedDisplay):
    """Prints each step's metrics as a line of JSON to one stream, and messages to the other."""

    def __init__(self, stream: TextIO | None = None, messages: TextIO | None = None) -> None:
        self._out = LastingStream(stream or sys.stdout)
        self._messages = LastingStream(messages or sys.stderr)

    def begin(self, run: RunInfo) -> None:
        self._messages.write(f"run folder {one_line(str(run.folder))}\n")

    def step(self, metrics: Mapping[str, float]) -> None:
        self._out.write(f"{json.dumps(dict(metrics))}\n")

    def say(self, text: str) -> None:
        self._messages.write(f"{as_block(text)}\n")

    def end(self, outcome: str) -> None:
        self._messages.write(one_line(outcome.partition(":")[0]) + "\n")


def as_block(text: str) -> str:
    """Return text without control characters; lines after the first are indented, so that none
    looks like a line of the run."""
    first, *rest = legible(text.strip("\n")).split("\n")
    return "\n".join([first, *(f"    {line}" for line in rest)])


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
