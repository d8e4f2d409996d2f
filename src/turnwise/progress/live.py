"""The picture of a run: redrawn in place in a terminal by rich, updated in the cell of a notebook.

While it is shown, no other thread writes to the terminal: messages and other output (an
environment's `print`, a library's warning, a log record) are queued, and printed above the display
with the next refresh. So a signal handler may report, too.
"""

import importlib
import io
import sys
import threading
from collections import deque
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from statistics import fmean
from typing import Any, Self

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from turnwise.progress.lines import (
    LastingStream,
    LegibleConsole,
    LineReporter,
    RunInfo,
    RunState,
    as_block,
    brief,
    clock_time,
    one_line,
)
from turnwise.runs.headline import policy_movement, reports_success

MOST_COLUMNS = 100
CURVE_ROWS = 6
"""Rows of a curve; a terminal with fewer than `LEAST_ROWS` has none."""
LEAST_ROWS = 20
_LABELS = {
    "reward": "reward",
    "success": "success",
    "entropy": "entropy",
    "kl_ref": "KL to reference",
    "kl": "KL",
    "grad_norm": "gradient norm",
    "time/episodes_per_second": "episodes/s",
}


class RunView:
    """Renders the current state of a run: curves, the main metrics, progress."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._spinner = Spinner("dots", style="cyan")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, run = self.state, self.state.run
        # Smaller than the terminal: a full last column would wrap.
        width = max(min(options.max_width - 1, MOST_COLUMNS), 20)
        title = Text.assemble(
            (one_line(run.environment), "bold"),
            " - " if options.ascii_only else " · ",
            one_line(run.model),
        )
        yield _row(width, title, "", Text(one_line(str(run.folder)), "dim"))
        names = ("reward", "success") if reports_success(state.history) else ("reward",)
        curves = {name: values for name in names if (values := state.values(name))}
        if console.height >= LEAST_ROWS and curves:
            yield Text()
            room = width // len(curves) - 2
            blocks = " #" if options.ascii_only else " ▁▂▃▄▅▆▇█"
            yield Columns(_curve(name, curves[name], room, blocks) for name in curves)
        if state.history:
            yield Text()
            yield self._metrics(width)
            yield Text()
        times = clock_time(state.elapsed)
        if state.outcome is None:
            times += " elapsed"
            if (left := state.seconds_left) is not None:
                times += f", {clock_time(left)} left"
        steps = Text(f"step {state.step_number:,}/{run.num_steps:,}", "bold")
        bar = ProgressBar(max(run.num_steps, 1), state.step_number)
        yield _row(width, steps, bar, Text(times, "dim"))
        kind = names[-1]
        evaluations = {way: state.values(f"eval/{way}/{kind}") for way in ("greedy", "sampled")}
        known = [f"{brief(values[-1])} {way}" for way, values in evaluations.items() if values]
        held_out = f"{kind} on {one_line(run.evaluated_on)} {', '.join(known)}" if known else ""
        yield _row(width, self._now(), "", Text(held_out, "dim"))

    def _metrics(self, width: int) -> Table:
        """Return the latest values below their names."""
        latest = self.state.history[-1]
        hidden = {"kl_ref", "kl", "grad_norm"} - set(policy_movement(latest)[:1])
        if not reports_success(self.state.history):
            hidden.add("success")
        shown = [name for name in _LABELS if name in latest and name not in hidden]
        table = Table(box=None, padding=0, width=width, header_style="dim")
        for name in shown:
            table.add_column(_LABELS[name], no_wrap=True, ratio=1)
        table.add_row(*(Text(brief(latest[name]), "bold") for name in shown))
        return table

    def _now(self) -> RenderableType:
        """Return what the run does now, or how it ended."""
        state = self.state
        if state.outcome is not None:
            return Text(state.outcome, "bold green" if state.outcome == "finished" else "bold")
        if state.now is None:
            return ""
        what, done, total = state.now
        words = f"{what} {done:,}/{total:,}"
        if what == "episodes" and done >= total:
            words = f"learning from {total:,} episodes"
        self._spinner.update(text=words)
        return self._spinner


def _row(width: int, left: RenderableType, middle: RenderableType, right: Text) -> Table:
    """Return a line with two ends, and something between them that takes what they leave."""
    table = Table.grid(padding=(0, 1))
    table.width = width
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    table.add_row(left, middle, right)
    return table


def _curve(name: str, values: Sequence[float], width: int, blocks: str) -> Text:
    """Return a curve as columns of blocks, one for each step, or the mean of several steps."""
    low, high = min(values), max(values)
    num_columns = min(len(values), width - 8)
    bounds = [round(column * len(values) / num_columns) for column in range(num_columns + 1)]
    columns = [fmean(values[start:end]) for start, end in pairwise(bounds)]
    most = CURVE_ROWS * (len(blocks) - 1)
    heights = [1 + round((value - low) / ((high - low) or 1.0) * (most - 1)) for value in columns]
    style = "green" if name == "success" else "cyan"
    lines = [Text(name.ljust(width), f"bold {style}")]
    for row in reversed(range(CURVE_ROWS)):
        label = {0: brief(low), CURVE_ROWS - 1: brief(high)}.get(row, "")
        below = row * (len(blocks) - 1)
        cells = (blocks[min(max(height - below, 0), len(blocks) - 1)] for height in heights)
        lines.append(Text.assemble((f"{label:>7} ", "dim"), ("".join(cells), style)))
    return Text("\n").join(lines)


class _QueueLive(Live):
    """Prints what waits in a queue above the display with each refresh."""

    def __init__(self, queue: deque[Text], console: Console) -> None:
        super().__init__(
            Spinner("dots", "setting up"),
            console=console,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,  # a display without a run is removed
        )
        self._queue = queue

    def refresh(self) -> None:
        while self._queue:
            self.console.print(self._queue.popleft())
        super().refresh()


class LiveReporter(LineReporter):
    """Records events; the refreshing thread of rich draws them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # Fixed now: `sys.stdout` is replaced below by the stream that prints above the display.
        self.console.file = LastingStream(console.file)  # type: ignore[assignment]
        self._above: deque[Text] = deque()
        self._live = _QueueLive(self._above, console)

    def __enter__(self) -> Self:
        super().__enter__()
        self._before = sys.stdout, sys.stderr
        streams = out, err = [QueuedStream(stream, self._above) for stream in self._before]
        self._streams = streams
        # A handler keeps the stream that it was created with, and would write into the display.
        self._moved = [(handler, handler.stream) for handler in self._printing]
        for handler, stream in self._moved:
            handler.setStream(out if stream in (sys.__stdout__, sys.stdout) else err)
        sys.stdout, sys.stderr = out, err
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._live.is_started:
            return
        for stream in self._streams:
            stream.close_lines()
        for handler, before in self._moved:
            handler.setStream(before)
        # Streams that others have set since (pytest, contextlib.redirect_stdout) stay.
        if sys.stdout is self._streams[0]:
            sys.stdout = self._before[0]
        if sys.stderr is self._streams[1]:
            sys.stderr = self._before[1]
        self._live.stop()
        super().__exit__()

    def begin(self, run: RunInfo) -> None:
        super().begin(run)
        self._live.update(RunView(self.state))
        self._live.transient = False

    def say(self, text: str) -> None:
        line = Text(as_block(text))
        line.highlight_words(["doctor:"], "bold yellow")
        self._above.append(line)
        if not self._live.is_started:
            self.console.print(self._above.popleft())

    def end(self, outcome: str) -> None:
        """Stop refreshing; the last state stays on the screen."""
        super().end(outcome)
        self.__exit__()

    def _print(self, line: str) -> None:
        """Do nothing: the picture shows it."""


class QueuedStream:
    """Wraps a stream, and queues whole lines to be printed above the display."""

    def __init__(self, stream: Any, queue: deque[Text]) -> None:
        self._stream = stream
        self._queue = queue
        self._begun: dict[int, str] = {}
        """The unfinished line of each thread."""

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, begun = (self._begun.pop(thread, "") + text).split("\n")
        for line in lines:
            self._add(line)
        if begun:
            self._begun[thread] = begun
        return len(text)

    def _add(self, line: str) -> None:
        # As a terminal shows it: with colours, and only what follows the last return.
        self._queue.append(Text.from_ansi(line.rstrip("\r").rpartition("\r")[2]))

    def flush(self) -> None:
        """Do nothing: a line is printed when it is complete."""

    def close_lines(self) -> None:
        """Queue the unfinished lines as well."""
        while self._begun:
            self._add(self._begun.popitem()[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# ---- notebooks ----

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
        self._lines: deque[str] = deque(maxlen=NUM_LINES)
        self._messages: deque[str] = deque(maxlen=NUM_LINES)
        self._handle: Any = None
        self._shown = -SECONDS_BETWEEN_UPDATES
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._update()

    def begin(self, run: RunInfo) -> None:
        self.state.begin(run)
        self._update()

    def say(self, text: str) -> None:
        super().say(text)
        self._messages.append(self._lines[-1])
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
        self._lines.append(text)

    def _update(self) -> None:
        """Show the current state. Episodes report from a thread of their own."""
        has_begun = self.state.run.num_steps > 0
        if not (has_begun or self._lines) or not self._lock.acquire(blocking=False):
            return
        try:
            self._shown = self.state.clock()
            opening = self.state.opening if has_begun else []
            # Without scripts, and all text is escaped.
            console = LegibleConsole(record=True, file=io.StringIO(), width=MOST_COLUMNS, height=30)
            if has_begun:
                console.print(RunView(self.state))
            code = f'<pre style="{_STYLE}">{{code}}</pre>'
            picture = console.export_html(code_format=code, inline_styles=True)
            said = escape("\n".join(self._messages))
            bundle = {
                "text/plain": "\n".join([*opening, *self._lines]),
                "text/html": f'{picture}<pre style="{_STYLE}-wrap">{said}</pre>',
            }
            if self._handle is None:
                show: Any = importlib.import_module("IPython.display").display
                self._handle = show(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
        finally:
            self._lock.release()
