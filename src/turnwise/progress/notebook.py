"""The display of a run in a notebook: one output of the cell, updated in place."""

from __future__ import annotations

import importlib
import io
import sys
import threading
from html import escape
from typing import Any

from turnwise.progress.display import LegibleConsole
from turnwise.progress.lines import LineReporter
from turnwise.progress.live import MOST_COLUMNS, RunView
from turnwise.progress.run_state import RunInfo

SECONDS_BETWEEN_UPDATES = 0.5
NUM_LINES = 20
_STYLE = "margin:0;line-height:1.2;white-space:pre"


def is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook (Jupyter, VS Code, Colab)."""
    ipython = sys.modules.get("IPython")  # imported by every kernel
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookReporter(LineReporter):
    """Shows the picture of a terminal and the messages as HTML, and lines where there is no HTML.

    What is said is recorded, which is safe in a signal handler; the next update shows it.
    """

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self._opening: list[str] = []
        self._lines: list[str] = []
        self._messages: list[str] = []
        self._handle: Any = None
        self._shown = -SECONDS_BETWEEN_UPDATES
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._update()

    def begin(self, run: RunInfo) -> None:
        super().begin(run)
        self._opening, self._lines = self._lines, []
        self._update()

    def say(self, text: str) -> None:
        super().say(text)
        self._messages = [*self._messages, self._lines[-1]][-NUM_LINES:]
        if self.state.outcome is not None:
            self._update()

    def progress(self, what: str, done: int, total: int) -> None:
        self.state.progress(what, done, total)
        if self.state.clock() - self._shown >= SECONDS_BETWEEN_UPDATES:
            self._update()

    def end(self, outcome: str) -> None:
        super().end(outcome)
        self._update()

    def _write(self, text: str) -> None:
        self._lines = [*self._lines, text][-NUM_LINES:]

    def _update(self) -> None:
        """Show the current state. Episodes report from a thread of their own."""
        if not (self._opening or self._lines) or not self._lock.acquire(blocking=False):
            return
        try:
            self._shown = self.state.clock()
            lines = "\n".join([*self._opening, *self._lines])
            bundle = {"text/plain": lines, "text/html": self._as_html()}
            if self._handle is None:
                show: Any = importlib.import_module("IPython.display").display
                self._handle = show(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
        finally:
            self._lock.release()

    def _as_html(self) -> str:
        """Return HTML without scripts; all text is escaped."""
        console = LegibleConsole(record=True, file=io.StringIO(), width=MOST_COLUMNS, height=30)
        if self._opening:
            console.print(RunView(self.state))
        picture = console.export_html(
            code_format=f'<pre style="{_STYLE}">{{code}}</pre>', inline_styles=True
        )
        said = "\n".join(self._messages)
        return f'{picture}<pre style="{_STYLE}-wrap">{escape(said)}</pre>'
