"""How a run is shown while it goes: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.status import Status

from turnwise.cli.console import LegibleConsole
from turnwise.cli.lines import JsonReporter, LineReporter, Warnings
from turnwise.cli.run_state import RunState
from turnwise.cli.run_view import RunView

if TYPE_CHECKING:
    from turnwise.trainer.reporter import RunInfo

SECONDS_BETWEEN_PICTURES = 0.25
# Asks a terminal that knows it to show all that comes until the second one at once.
_TOGETHER, _DONE = "\x1b[?2026h", "\x1b[?2026l"


def make_reporter(
    *, plain: bool = False, as_json: bool = False
) -> LiveReporter | LineReporter | JsonReporter:
    """What suits where the output goes; a context manager, so that a terminal is left as it was."""
    if as_json:
        return JsonReporter()
    console = LegibleConsole(highlight=False, markup=False, emoji=False)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return LineReporter()
    return LiveReporter(console)


class LiveReporter:
    """Only notes what it is told, which is quick and safe in a signal's handler; a thread draws."""

    def __init__(self, console: Console) -> None:
        self.state = RunState()
        self.console = console
        self._view = RunView(self.state)
        self._live: Live | None = None
        self._setting_up = Status("setting up", console=console)
        self._width = console.width
        self._over = threading.Event()
        self._painter: threading.Thread | None = None
        self._warnings = Warnings(self.say)

    def __enter__(self) -> Self:
        self._warnings.__enter__()
        self._setting_up.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__()
        self._close()

    def begin(self, run: RunInfo) -> None:
        self._setting_up.stop()
        self.state.begin(run)
        self._width = self.console.width
        self._start()
        self._painter = threading.Thread(target=self._paint_on, name="display", daemon=True)
        self._painter.start()

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)

    def say(self, text: str) -> None:
        self.state.say(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.state.progress(what, done, total)

    def end(self, outcome: str) -> None:
        """The last picture stays."""
        self.state.end(outcome)
        self._close()

    def _close(self) -> None:
        self._setting_up.stop()
        self._over.set()
        if self._painter is not None:
            self._painter.join()
            self._painter = None
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal may be gone
                self._clear_if_narrower()
                self._live.stop()
            self._live = None

    def _start(self) -> None:
        self._live = Live(self._view, console=self.console, auto_refresh=False)
        self._live.start(refresh=True)

    def _paint_on(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_PICTURES):
            try:
                self._clear_if_narrower()
                if self._live is not None:
                    self._together(self._live)
            except OSError:  # the terminal is gone; the run is worth more than its picture
                return

    def _together(self, live: Live) -> None:
        self.console.file.write(_TOGETHER)
        try:
            live.refresh()
        finally:
            self.console.file.write(_DONE)
            self.console.file.flush()

    def _clear_if_narrower(self) -> None:
        """A terminal made narrower breaks the lines of the last picture, whose place is then
        unknown: begin on an empty screen."""
        before, self._width = self._width, self.console.width
        if self._width < before and self._live is not None:
            self._live.stop()
            self.console.clear()
            self._start()
