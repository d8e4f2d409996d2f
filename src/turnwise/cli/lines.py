"""A run as plain lines, for pipes, files and CI: one a step, or a JSON object a step."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self, TextIO

from turnwise.cli.run_state import RunState, brief, clock_time, one_line

if TYPE_CHECKING:
    from turnwise.trainer.reporter import RunInfo

# Quick steps share a line, slow parts of a step get one: a log that can be read either way.
SECONDS_BETWEEN_STEPS = 2.0
SECONDS_BETWEEN_SIGNS_OF_LIFE = 20.0


class Warnings(logging.Handler):
    """Hands what turnwise logs as a warning to a reporter, in the place of the standard error."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger("turnwise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("turnwise").removeHandler(self)


class LineReporter:
    """Lines that can be read and searched; a run goes on when nobody reads them any more."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = RunState(clock)
        self._out = _Out(stream or sys.stdout)
        self._told = -SECONDS_BETWEEN_SIGNS_OF_LIFE
        self._first_told = False
        self._untold: str | None = None
        self._warnings = Warnings(self.say)

    def __enter__(self) -> Self:
        self._warnings.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__()
        self._tell_rest()

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        state = self.state
        self._tell(f"training {state.model} on {state.environment}, {state.num_steps:,} steps")
        self._tell(f"run folder {state.folder}")

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)
        line = self._line(metrics)
        is_last = self.state.step_number >= self.state.num_steps
        was_evaluated = any(name.startswith("eval/") for name in metrics)
        if is_last or was_evaluated or not self._first_told or self._is_time(SECONDS_BETWEEN_STEPS):
            self._first_told = True
            self._tell(line)
        else:
            self._untold = line

    def say(self, text: str) -> None:
        self.state.say(text)
        self._out.write(one_line(text))

    def progress(self, what: str, done: int, total: int) -> None:
        if self._is_time(SECONDS_BETWEEN_SIGNS_OF_LIFE):
            self._tell(f"  {one_line(what)} {done:,}/{total:,}")

    def end(self, outcome: str) -> None:
        self._tell_rest()
        self.state.end(outcome)
        self._tell(f"{self.state.outcome} after {clock_time(self.state.elapsed)}")

    def _tell_rest(self) -> None:
        if self._untold is not None:
            self._tell(self._untold)

    def _is_time(self, seconds: float) -> bool:
        return self.state.clock() - self._told >= seconds

    def _tell(self, line: str) -> None:
        self._told = self.state.clock()
        self._untold = None
        self._out.write(line)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [f"step {self.state.step_number}/{self.state.num_steps}"]
        names = ["reward", "success", "entropy", "kl"]
        if not self.state.reports_success:
            names.remove("success")
        kinds = ["success", "reward"] if "success" in names else ["reward"]
        names += [f"eval/{way}/{kind}" for way in ("greedy", "sampled") for kind in kinds]
        parts += [f"{name} {brief(metrics[name])}" for name in names if name in metrics]
        if (speed := metrics.get("time/tokens_per_second")) is not None:
            parts.append(f"{speed:,.0f} tok/s")
        if (left := self.state.seconds_left) is not None:
            parts.append(f"eta {clock_time(left)}")
        return "  ".join(parts)


class JsonReporter:
    """The metrics of each step as a line of JSON on one stream, words on the other."""

    def __init__(self, stream: TextIO | None = None, words: TextIO | None = None) -> None:
        self._out = _Out(stream or sys.stdout)
        self._words = _Out(words or sys.stderr)
        self._warnings = Warnings(self.say)

    def __enter__(self) -> Self:
        self._warnings.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__()

    def begin(self, run: RunInfo) -> None:
        self._words.write(f"run folder {one_line(str(run.folder))}")

    def step(self, metrics: Mapping[str, float]) -> None:
        self._out.write(json.dumps(dict(metrics)))

    def say(self, text: str) -> None:
        self._words.write(one_line(text))

    def progress(self, what: str, done: int, total: int) -> None:
        """Only whole steps are written."""

    def end(self, outcome: str) -> None:
        self._words.write(one_line(outcome))


class _Out:
    """Whole lines, each at once. A signal's handler may write while a line is being written."""

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
        except OSError:  # `| head` has seen enough; the run is worth more than its log
            self._forget()
        except UnicodeEncodeError as error:
            self._stream.write(line.encode(error.encoding, "replace").decode(error.encoding) + "\n")

    def _forget(self) -> None:
        """What is still in the buffer would fail once more when Python ends."""
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
