"""Draws a curve in a terminal: every step as a dim dot, the moving mean as a bold line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from rich.text import Text

# The bits of a braille character, which has two columns of four dots, row by row.
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

Point = tuple[float, float]


def draw_curve(
    points: Sequence[Point],
    width: int,
    height: int,
    style: str,
    *,
    bounds: tuple[float, float] | None = None,
    ascii_only: bool = False,
) -> list[Text]:
    """Return lines of exactly this width and height: curve, y-axis, and the steps below.

    `points` are (step, value), in order; `bounds` are values that the y-axis must include.
    """
    num_rows = height - 1
    values = [value for _, value in points] + list(bounds or ())
    ticks = _ticks_on_rows(min(values), max(values), num_rows)
    names = [_name(tick, ticks) for tick in ticks]
    margin = max(len(name) for name in names) + 2
    canvas_size = (width - margin, num_rows, ascii_only)
    faint, bold = _Canvas(*canvas_size), _Canvas(*canvas_size)
    steps = (points[0][0], points[-1][0])
    smooth = moving_mean([value for _, value in points])
    means = [(step, value) for (step, _), value in zip(points, smooth, strict=True)]
    faint.scatter(points, steps, (ticks[0], ticks[-1]))
    bold.line(means, steps, (ticks[0], ticks[-1]))

    rows_per_value = (num_rows - 1) / (ticks[-1] - ticks[0])
    labels = {
        num_rows - 1 - round((tick - ticks[0]) * rows_per_value): name
        for tick, name in zip(ticks, names, strict=True)
    }
    lines = []
    for row in range(num_rows):
        corner = "|" if ascii_only else "┤" if row in labels else "│"
        line = Text().append(f"{labels.get(row, ''):>{margin - 2}} {corner}", "dim")
        for strong, weak in zip(bold.row(row), faint.row(row), strict=True):
            line.append(*((strong, f"bold {style}") if strong != " " else (weak, f"dim {style}")))
        lines.append(line)
    first, last = (f"{step:,.0f}" for step in steps)
    between = max(width - margin - len(first) - len(last), 1)
    below = " " * margin + (first if first == last else first + " " * between + last)
    return [*lines, Text(below.ljust(width)[:width], "dim")]


def moving_mean(values: Sequence[float]) -> list[float]:
    """Return the centred mean over a tenth of all values; over fewer at the ends."""
    reach = len(values) // 20 + (len(values) >= 5)
    sums = [0.0, *accumulate(values)]
    return [
        (sums[min(i + reach + 1, len(values))] - sums[max(i - reach, 0)])
        / (min(i + reach + 1, len(values)) - max(i - reach, 0))
        for i in range(len(values))
    ]


def nice_ticks(low: float, high: float, num_most: int) -> list[float]:
    """Return evenly spaced round numbers that enclose `low` and `high`, at most `num_most`."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        room = max(abs(low) * 0.1, 0.01)
        low, high = low - room, high + room
    rough = (high - low) / max(num_most - 1, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 2.5, 5, 10, 20, 25, 50):
        step = factor * size
        first = math.floor(low / step + 1e-9)
        last = math.ceil(high / step - 1e-9)
        if last - first + 1 <= num_most:
            break
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _ticks_on_rows(low: float, high: float, num_rows: int) -> list[float]:
    """Return ticks a whole number of rows apart, unless that makes the axis much longer."""
    most = max(2, (num_rows + 1) // 2)
    choices = [nice_ticks(low, high, num_most) for num_most in range(most, 1, -1)]
    narrowest = min(ticks[-1] - ticks[0] for ticks in choices)
    for ticks in choices:
        is_even = (num_rows - 1) % (len(ticks) - 1) == 0
        if is_even and ticks[-1] - ticks[0] <= 1.2 * narrowest:
            return ticks
    return choices[0]


def _name(tick: float, ticks: Sequence[float]) -> str:
    """Return a tick's label; all ticks have the same number of decimal places."""
    step = ticks[1] - ticks[0]
    if not 1e-4 <= step < 1e6:
        return f"{tick:.1e}"
    for num_places in range(6):
        if abs(round(step, num_places) - step) < step * 1e-6:
            break
    return f"{tick + 0.0:,.{num_places}f}"


class _Canvas:
    """A grid of dots: eight per braille character, or one per ASCII character."""

    def __init__(self, num_columns: int, num_rows: int, ascii_only: bool) -> None:
        self.per_column, self.per_row = (1, 1) if ascii_only else (2, 4)
        self.ascii_only = ascii_only
        self.bits = [[0] * num_columns for _ in range(num_rows)]
        self.mark = "."
        self.last_x = num_columns * self.per_column - 1
        self.last_y = num_rows * self.per_row - 1

    def row(self, row: int) -> Iterable[str]:
        if self.ascii_only:
            return (self.mark if bits else " " for bits in self.bits[row])
        return (chr(0x2800 + bits) if bits else " " for bits in self.bits[row])

    def scatter(self, points: Sequence[Point], steps: Point, values: Point) -> None:
        for point in points:
            self._dot(*self._place(point, steps, values))

    def line(self, points: Sequence[Point], steps: Point, values: Point) -> None:
        self.mark = "*"
        places = [self._place(point, steps, values) for point in points]
        self._dot(*places[0])
        for (x0, y0), (x1, y1) in pairwise(places):
            num_dots = max(abs(x1 - x0), abs(y1 - y0), 1)
            for dot in range(1, num_dots + 1):
                share = dot / num_dots
                self._dot(round(x0 + (x1 - x0) * share), round(y0 + (y1 - y0) * share))

    def _place(self, point: Point, steps: Point, values: Point) -> tuple[int, int]:
        # The lowest and highest tick are at the middle of the rows that have their labels.
        edge = (self.per_row - 1) / 2
        across = (point[0] - steps[0]) / max(steps[1] - steps[0], 1)
        up = (point[1] - values[0]) / (values[1] - values[0])
        y = self.last_y - edge - up * (self.last_y - 2 * edge)
        return round(across * self.last_x), round(y)

    def _dot(self, x: int, y: int) -> None:
        column, row = x // self.per_column, y // self.per_row
        self.bits[row][column] |= (
            1 if self.ascii_only else _BRAILLE[y % self.per_row][x % self.per_column]
        )
