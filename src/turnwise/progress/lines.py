"""Displays for pipes, files and CI: one line of text, or one JSON object, per step."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from turnwise.legible import legible
from turnwise.progress.display import Display
from turnwise.progress.run_state import RunInfo, RunState, one_line, step_text

SECONDS_BETWEEN_PROGRESS_LINES = 20.0
"""A slow step prints the number of finished episodes this often."""


class LineReporter(Display):
    """Prints one line per step. The run continues when the reader of a pipe is gone."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.state = RunState(clock)
        self._out = _Out(stream or sys.stdout)
        self._last_line = -SECONDS_BETWEEN_PROGRESS_LINES

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        for line in self.state.opening:
            self._print(line)

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)
        self._print(step_text(self.state, metrics))

    def say(self, text: str) -> None:
        self.state.say(text)
        self._out.write(as_block(text))

    def progress(self, what: str, done: int, total: int) -> None:
        if self.state.clock() - self._last_line >= SECONDS_BETWEEN_PROGRESS_LINES:
            self._print(f"  {one_line(what)} {done:,}/{total:,}")

    def end(self, outcome: str) -> None:
        self.state.end(outcome)
        self._print(self.state.ending)

    def _print(self, line: str) -> None:
        self._last_line = self.state.clock()
        self._out.write(line)


class JsonReporter(Display):
    """Prints each step's metrics as a line of JSON to one stream, and messages to the other."""

    def __init__(self, stream: TextIO | None = None, messages: TextIO | None = None) -> None:
        super().__init__()
        self._out = _Out(stream or sys.stdout)
        self._messages = _Out(messages or sys.stderr)

    def begin(self, run: RunInfo) -> None:
        self._messages.write(f"run folder {one_line(str(run.folder))}")

    def step(self, metrics: Mapping[str, float]) -> None:
        self._out.write(json.dumps(dict(metrics)))

    def say(self, text: str) -> None:
        self._messages.write(as_block(text))

    def progress(self, what: str, done: int, total: int) -> None:
        """Only whole steps are written."""

    def end(self, outcome: str) -> None:
        self._messages.write(one_line(outcome.partition(":")[0]))


def as_block(text: str) -> str:
    """Return text without control characters; lines after the first are indented, so that none
    looks like a line of the run."""
    first, *rest = legible(text.strip("\n")).split("\n")
    return "\n".join([first, *(f"    {line}" for line in rest)])


class _Out:
    """Writes whole lines. A signal handler may call it while a line is being written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self._waiting: list[str] = []
        self._is_writing = False

    def write(self, line: str) -> None:
        self._waiting.append(line)
        if self._is_writing:
            return
        self._is_writing = True
        try:
            while self._waiting:
                self._write(self._waiting.pop(0))
        finally:
            self._is_writing = False

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:  # the reader of a pipe, such as `| head`, has ended; the run continues
            self._forget()
        except UnicodeEncodeError as error:
            self._stream.write(line.encode(error.encoding, "replace").decode(error.encoding) + "\n")

    def _forget(self) -> None:
        """Discard the stream's buffer, which would fail once more when Python exits."""
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
