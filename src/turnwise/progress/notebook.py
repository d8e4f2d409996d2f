"""The display of a run in a notebook: one output of the cell, updated in place."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from turnwise.progress.display import Display
from turnwise.progress.lines import as_block
from turnwise.progress.run_state import RunInfo, RunState, brief, clock_time, step_text

SECONDS_BETWEEN_UPDATES = 0.5
NUM_STEP_LINES = 10
NUM_MESSAGES = 12
_CHART = (260, 90)
"""Width and height of a curve, in pixels."""
_COLOURS = {"reward": "#0b7285", "success": "#2b8a3e"}


def is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook (Jupyter, VS Code, Colab)."""
    ipython = sys.modules.get("IPython")  # imported by every kernel
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookReporter(Display):
    """Shows curves, progress and messages as HTML, with plain text for readers without HTML."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.state = RunState(clock)
        self._steps: list[str] = []
        """One line for each of the latest steps."""
        self._messages: list[str] = []
        self._handle: Any = None
        self._shown = -SECONDS_BETWEEN_UPDATES
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._update()

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        self._update()

    def step(self, metrics: Mapping[str, float]) -> None:
        self.state.step(metrics)
        self._steps = [*self._steps, step_text(self.state, metrics)][-NUM_STEP_LINES:]
        self._update_if_time()

    def say(self, text: str) -> None:
        """Record a message, which is safe in a signal handler; the next update shows it."""
        self._messages = [*self._messages, as_block(text)][-NUM_MESSAGES:]
        if self.state.outcome is not None:
            self._update()

    def progress(self, what: str, done: int, total: int) -> None:
        self.state.progress(what, done, total)
        self._update_if_time()

    def end(self, outcome: str) -> None:
        self.state.end(outcome)
        self._update()

    def _update_if_time(self) -> None:
        if self.state.clock() - self._shown >= SECONDS_BETWEEN_UPDATES:
            self._update()

    def _update(self) -> None:
        """Show the current state. Episodes report from a thread of their own."""
        if not self.state.folder and not self._messages:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._shown = self.state.clock()
            bundle = {"text/plain": self.as_text(), "text/html": self.as_html()}
            if self._handle is None:
                show: Any = importlib.import_module("IPython.display").display
                self._handle = show(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
        finally:
            self._lock.release()

    def as_text(self) -> str:
        """Return the current state as lines."""
        state = self.state
        lines = [
            *state.opening,
            *self._steps,
            *([] if state.outcome is None else [state.ending]),
            *self._messages,
        ]
        return "\n".join(lines if state.folder else self._messages)

    def as_html(self) -> str:
        """Return the current state as HTML without scripts; all text is escaped."""
        state = self.state
        names = ["reward", *(["success"] if state.reports_success else [])]
        charts = "".join(_chart(name, state.points(name)) for name in names)
        head = f"<b>{escape(state.environment)}</b> · {escape(state.model)}"
        head += f" · run folder <code>{escape(state.folder)}</code>"
        bar = f'<progress value="{state.step_number}" max="{max(state.num_steps, 1)}"></progress>'
        rows = [head, f"{bar} {escape(_standing(state))}"] if state.folder else []
        if charts:
            rows.append(charts)
        if self._steps:
            rows.append(escape(self._steps[-1]))
        said = "\n".join(self._messages)
        if said:
            style = "margin:0;white-space:pre-wrap;font-size:12px"
            rows.append(f'<pre style="{style}">{escape(said)}</pre>')
        return "".join(f'<div style="margin:2px 0">{row}</div>' for row in rows)


def _standing(state: RunState) -> str:
    if state.outcome is not None:
        return state.ending
    text = f"step {state.step_number:,}/{state.num_steps:,}, {clock_time(state.elapsed)} elapsed"
    if (left := state.seconds_left) is not None:
        text += f", {clock_time(left)} left"
    if state.now is not None:
        what, done, total = state.now
        text += f" · {what} {done:,}/{total:,}"
    return text


def _chart(name: str, points: Sequence[tuple[float, float]]) -> str:
    """Return a curve as SVG, with its last, lowest and highest value in the caption."""
    if len(points) < 2:
        return ""
    width, height = _CHART
    steps, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    across, up = max(steps[-1] - steps[0], 1), (high - low) or 1.0
    line = " ".join(
        f"{(step - steps[0]) / across * width:.1f},{height - (value - low) / up * height:.1f}"
        for step, value in points
    )
    colour = _COLOURS[name]
    return (
        '<figure style="display:inline-block;margin:4px 16px 4px 0;font-size:12px">'
        f'<figcaption style="color:{colour}">{name} {brief(values[-1])} '
        f"({brief(low)} to {brief(high)})</figcaption>"
        f'<svg width="{width}" height="{height + 4}" viewBox="0 -2 {width} {height + 4}">'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/></svg>'
        "</figure>"
    )
