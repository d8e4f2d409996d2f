"""The picture of a run: redrawn in place in a terminal by rich, updated in a notebook's output.

While it is shown in a terminal, rich prints messages and other output (an environment's `print`, a
library's warning, a log record) above it.
"""

import importlib
import io
import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Self

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
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
        columns = [Column(_LABELS[name], no_wrap=True, ratio=1) for name in shown]
        table = Table(*columns, box=None, padding=0, width=width, header_style="dim")
        table.add_row(*(Text(brief(latest[name]), "bold") for name in shown))
        return table

    def _now(self) -> RenderableType:
        """Return what the run does now, or how it ended."""
        if (outcome := self.state.outcome) is not None:
            return Text(outcome, "bold green" if outcome == "finished" else "bold")
        if self.state.now is None:
            return ""
        what, done, total = self.state.now
        words = f"{what} {done:,}/{total:,}"
        if what == "episodes" and done >= total:
            words = f"learning from {total:,} episodes"
        self._spinner.update(text=words)
        return self._spinner


def _row(width: int, left: RenderableType, middle: RenderableType, right: Text) -> Table:
    """Return a line with two ends, and something between them that takes what they leave."""
    end = Column(no_wrap=True)
    table = Table.grid(end, Column(ratio=1), end.copy(), padding=(0, 1))
    table.width = width
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


class LiveReporter(LineReporter):
    """Records events; the refreshing thread of rich draws them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # Fixed now: rich replaces `sys.stdout` by what prints above the display.
        self.console.file = LastingStream(console.file)  # type: ignore[assignment]
        # Transient: a display without a run is removed.
        self._live = Live(Spinner("dots", "setting up"), console=console, transient=True)

    def __enter__(self) -> Self:
        super().__enter__()
        # A handler keeps the stream that it was created with, and would write into the display.
        self._moved = [(handler, handler.stream) for handler in self._printing]
        self._live.start(refresh=True)
        for handler, stream in self._moved:
            is_error = stream in (sys.__stderr__, getattr(sys.stderr, "rich_proxied_file", None))
            handler.setStream(sys.stderr if is_error else sys.stdout)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            for handler, before in self._moved:
                handler.setStream(before)
            self._live.stop()
            super().__exit__()

    def begin(self, run: RunInfo) -> None:
        super().begin(run)
        self._live.update(RunView(self.state))
        self._live.transient = False

    def say(self, text: str) -> None:
        line = Text(as_block(text))
        line.highlight_words(["doctor:"], "bold yellow")
        self.console.print(line)

    def end(self, outcome: str) -> None:
        """Stop refreshing; the last state stays on the screen."""
        super().end(outcome)
        self.__exit__()

    def _print(self, line: str) -> None:
        """Do nothing: the picture shows it."""


class NotebookReporter(LineReporter):
    """Shows the picture and the latest messages in one output, which it updates."""

    seconds_between_progress = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[str] = deque(maxlen=20)
        self._output: Any = None

    def _print(self, line: str) -> None:
        """Update the picture, which shows it."""
        self._last_line = self.state.clock()
        self._update()

    def _write(self, text: str) -> None:
        self._messages.append(text)
        self._update()

    def _update(self) -> None:
        # Not rich's own display in notebooks: it needs ipywidgets to update an output.
        console = LegibleConsole(
            file=io.StringIO(), record=True, width=MOST_COLUMNS, force_jupyter=False
        )
        if self.state.run.num_steps:  # it has begun
            console.print(RunView(self.state))
        console.print(Text("\n".join(self._messages)))
        form = '<pre style="line-height:1.2">{code}</pre>'
        html = console.export_html(code_format=form, inline_styles=True, clear=False)
        bundle = {"text/html": html, "text/plain": console.export_text()}
        if self._output is None:
            display: Any = importlib.import_module("IPython.display").display
            self._output = display(bundle, raw=True, display_id=True)
        else:
            self._output.update(bundle, raw=True)
