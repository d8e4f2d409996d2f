"""Renders a run for a terminal: curves, the main metrics, progress, messages."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import islice, zip_longest

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from turnwise.progress.curve import draw_curve
from turnwise.progress.run_state import RunState, brief, clock_time
from turnwise.runs.headline import policy_movement

# Metric, its label, and which direction is better: 1 up, -1 down, 0 neither.
METRICS = (
    ("reward", "reward", 1),
    ("success", "success", 1),
    ("entropy", "entropy", 0),
    ("kl_ref", "KL to reference", 0),
    ("kl", "KL", 0),
    ("grad_norm", "gradient norm", 0),
    ("time/episodes_per_second", "episodes/s", 0),
    ("turns", "turns", 0),
)
_MOVEMENT = ("kl_ref", "kl", "grad_norm")
NUM_METRICS = 5
MOST_COLUMNS = 120
MOST_ROWS = 34
LEAST_ROWS_WITH_CURVE = 17
NUM_ROWS_BELOW = 8
"""Rows left free after the end for the closing lines of the command."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class RunView:
    """Renders the current state to the size of the terminal."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Smaller than the terminal: a full last column or row would scroll it.
        width = max(min(options.max_width - 1, MOST_COLUMNS), 20)
        num_rows = max(min(console.height - 1, MOST_ROWS), 4)
        if self.state.outcome is not None:
            num_rows = min(num_rows, max(num_rows - NUM_ROWS_BELOW, LEAST_ROWS_WITH_CURVE))
        for line in self.lines(width, num_rows, options.ascii_only):
            line.truncate(width)
            line.no_wrap = True
            yield line

    def lines(self, width: int, num_rows: int, ascii_only: bool) -> list[Text]:
        """Return all lines; small terminals get fewer of them."""
        title = self._title(width, ascii_only)
        metrics = self._metrics(width, ascii_only)
        below = [self._bar(width, ascii_only), self._now(width, ascii_only)]
        num_messages = min(max((num_rows - 12) // 3, 0), 6)
        messages = self._messages(width, num_messages)
        if self.state.outcome is None:  # reserve their rows, so that the display does not jump
            messages += [Text()] * (num_messages - len(messages))
        num_for_chart = num_rows - len(metrics) - 7 - num_messages
        if num_for_chart < 6:
            return [*metrics, *below][:num_rows] if num_rows < 6 else [title, *metrics, *below]
        charts = self._charts(width, num_for_chart, ascii_only)
        blank = [Text()]
        whole = [title, *blank, *charts, *blank, *metrics, *blank, *below]
        return [*whole, *blank, *messages] if messages else whole

    def _title(self, width: int, ascii_only: bool) -> Text:
        between = " - " if ascii_only else " · "
        left = Text.assemble(
            (self.state.environment, "bold"), (between, "dim"), (self.state.model, "")
        )
        return _justified(left, Text(self.state.folder, "dim"), width)

    def _charts(self, width: int, height: int, ascii_only: bool) -> list[Text]:
        names = [("reward", "cyan")]
        if self.state.reports_success and width >= 60:
            names.append(("success", "green"))
        gap = 3
        room = (width - gap * (len(names) - 1)) // len(names)
        charts = [self._chart(name, style, room, height, ascii_only) for name, style in names]
        if len(charts) == 1:
            return charts[0]
        return [
            Text.assemble(left, " " * (room + gap - left.cell_len), right)
            for left, right in zip_longest(*charts, fillvalue=Text())
        ]

    def _chart(
        self, name: str, style: str, width: int, height: int, ascii_only: bool
    ) -> list[Text]:
        head = Text(name, f"bold {style}")
        points = self.state.points(name)
        if not points:
            room = [Text()] * ((height - 1) // 2)
            waiting = Text("waiting for the first step", "dim")
            waiting.pad_left(max((width - waiting.cell_len) // 2, 0))
            return [head, *room, waiting, *[Text()] * (height - 2 - len(room))]
        bounds = (0.0, 1.0) if name == "success" else None
        return [
            head,
            *draw_curve(points, width, height - 1, style, bounds=bounds, ascii_only=ascii_only),
        ]

    def _metrics(self, width: int, ascii_only: bool) -> list[Text]:
        """Return labels, and below them values with an arrow for the change over ten steps."""
        latest = self.state.history[-1] if self.state.history else {}
        shown = [
            row
            for row in METRICS
            if row[0] in latest
            and (row[0] != "success" or self.state.reports_success)
            and (row[0] not in _MOVEMENT or row[0] in policy_movement(latest)[:1])
        ]
        room = max(width // NUM_METRICS, 11)
        names, values = Text(), Text()
        for metric, name, better in islice(shown, min(NUM_METRICS, width // room)):
            value = Text().append(brief(latest[metric]), "bold")
            value.append(*self._arrow(metric, better, room >= 20, ascii_only))
            names.append(name.ljust(room), "dim")
            values.append_text(value)
            values.append(" " * (room - value.cell_len))
        return [names, values]

    def _arrow(
        self, metric: str, better: int, with_change: bool, ascii_only: bool
    ) -> tuple[str, str]:
        change = self.state.change(metric)
        if change is None:
            return "", ""
        if abs(change) <= 0.05 * abs(self.state.history[-1][metric]):
            return (" =" if ascii_only else " →"), "dim"
        up, down = (" +", " -") if ascii_only else (" ↗", " ↘")
        arrow = up if change > 0 else down
        if with_change:
            arrow += f" {brief(abs(change))}"
        colours = {0: "dim", 1: "green", -1: "red"}
        return arrow, colours[better if change > 0 else -better]

    def _bar(self, width: int, ascii_only: bool) -> Text:
        """Return the progress bar of the whole run."""
        state = self.state
        left = Text(f"step {state.step_number:,}/{state.num_steps:,} ", "bold")
        times = f" {clock_time(state.elapsed)} elapsed"
        if state.outcome is None and (remaining := state.seconds_left) is not None:
            times += f", {clock_time(remaining)} left"
        elif state.outcome is not None:
            times = f" {clock_time(state.elapsed)}"
        room = width - left.cell_len - len(times)
        share = state.step_number / max(state.num_steps, 1)
        return Text.assemble(left, *_bar_parts(share, room, ascii_only), (times, "dim"))

    def _now(self, width: int, ascii_only: bool) -> Text:
        """Return the current activity, and the last evaluation at the right."""
        state = self.state
        if state.outcome is not None:
            left = Text(state.outcome, "bold green" if state.outcome == "finished" else "bold")
        elif state.now is None:
            left = Text()
        else:
            what, done, total = state.now
            turn = "" if ascii_only else _SPINNER[int(state.elapsed * 4) % len(_SPINNER)] + " "
            is_learning = what == "episodes" and done >= total
            words = (
                f"learning from {total:,} episodes"
                if is_learning
                else f"{what} {done:,}/{total:,} "
            )
            left = Text.assemble((turn, "cyan"), words)
            if what == "warm start":
                left.append_text(Text.assemble(*_bar_parts(done / max(total, 1), 20, ascii_only)))
        return _justified(left, self._held_out(), width)

    def _held_out(self) -> Text:
        name = "success" if self.state.reports_success else "reward"
        parts = []
        for way in ("greedy", "sampled"):
            if found := self.state.latest(f"eval/{way}/{name}"):
                parts.append(f"{brief(found[1])} {way}")
        text = f"{name} on {self.state.evaluated_on} {', '.join(parts)}" if parts else ""
        return Text(text, "dim")

    def _messages(self, width: int, num_lines: int) -> list[Text]:
        """Return the latest messages that fit, in order; a message is cut only if none fits."""
        lines: list[Text] = []
        for when, text in reversed(self.state.messages):
            stamp = f"{clock_time(when):>7}  "
            wrapped = textwrap.wrap(text, width - len(stamp)) or [""]
            if len(lines) + len(wrapped) > num_lines:
                if lines or num_lines == 0:
                    break
                wrapped = [*wrapped[: num_lines - 1], f"{wrapped[num_lines - 1][:-1]}…"]
            parts = [Text(" " * len(stamp) + part) for part in wrapped]
            parts[0] = Text.assemble((stamp, "dim"), wrapped[0])
            parts[0].highlight_words(["doctor:"], "bold yellow")
            lines = [*parts, *lines]
        return lines


def _bar_parts(share: float, width: int, ascii_only: bool) -> Sequence[tuple[str, str]]:
    width = max(width, 0)
    num_full = round(min(share, 1.0) * width)
    full, rest = ("#", ".") if ascii_only else ("━", "─")
    return (full * num_full, "green"), (rest * (width - num_full), "dim")


def _justified(left: Text, right: Text, width: int) -> Text:
    """Return a line with one text at each end; where space lacks, the right one loses its start."""
    room = width - left.cell_len - 2
    if right.cell_len > room:
        right = Text(f"…{right.plain[-room + 1 :]}" if room > 8 else "", right.style)
    return Text.assemble(left, " " * max(width - left.cell_len - right.cell_len, 0), right)
