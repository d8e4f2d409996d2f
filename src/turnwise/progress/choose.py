"""Chooses the display for the place where a run is started."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from turnwise.progress.display import LegibleConsole
from turnwise.progress.lines import JsonReporter, LineReporter, as_block
from turnwise.progress.live import LiveReporter
from turnwise.progress.notebook import NotebookReporter, is_notebook

if TYPE_CHECKING:
    from turnwise.trainer.reporter import RunInfo


def make_reporter(
    *, plain: bool = False, as_json: bool = False
) -> LiveReporter | NotebookReporter | LineReporter | JsonReporter:
    """Return a display for the standard output; leaving its context restores the terminal."""
    if as_json:
        return JsonReporter()
    is_main = threading.current_thread() is threading.main_thread()
    if plain or not is_main:  # several threads may train at once: only lines can share a terminal
        return LineReporter()
    if is_notebook():
        return NotebookReporter()
    console = LegibleConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal or console.is_dumb_terminal:
        return LineReporter()
    return LiveReporter(console)


class AutoReporter:
    """The trainer's default reporter: it chooses a display when it is entered around a run.

    Worker processes (of multiprocessing, Ray or torchrun) display nothing: the terminal belongs to
    the process that started them.
    """

    def __init__(self) -> None:
        self._display: LiveReporter | NotebookReporter | LineReporter | JsonReporter | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if not is_worker():
            self._display = make_reporter()
            self._open.enter_context(self._display)
        return self

    def __exit__(self, *_: object) -> None:
        self._display = None
        self._open.close()

    def begin(self, run: RunInfo) -> None:
        if self._display is not None:
            self._display.begin(run)

    def step(self, metrics: Mapping[str, float]) -> None:
        if self._display is not None:
            self._display.step(metrics)

    def say(self, text: str) -> None:
        if self._display is not None:
            self._display.say(text)
        elif not is_worker():  # outside `fit`, for example in `evaluate()`
            print(as_block(text), file=sys.stderr)

    def progress(self, what: str, done: int, total: int) -> None:
        if self._display is not None:
            self._display.progress(what, done, total)

    def end(self, outcome: str) -> None:
        if self._display is not None:
            self._display.end(outcome)


def is_worker() -> bool:
    """Return whether this process is a worker of multiprocessing, of torchrun or of Ray."""
    if multiprocessing.parent_process() is not None or os.environ.get("RANK", "0") != "0":
        return True
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
