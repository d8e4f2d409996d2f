"""Draws curves with matplotlib: one panel per metric, one colour per experiment."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.cli.plot_data import Curve, Group, windows
from turnwise.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; without the pale yellow.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PALE = "#444444"
_DASHES = ("-", "--", ":", "-.")
_STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 220,
    "svg.fonttype": "none",  # text stays editable
    "svg.hashsalt": "turnwise",
    "pdf.fonttype": 42,  # journals refuse Type 3
}
# Without the date, the same runs give the same bytes.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
_PANEL = (3.4, 2.5)
_MOST_COLUMNS = 3
_LETTERS_PER_INCH = 13
_CAPTION_LETTERS_PER_INCH = 15


def draw(
    groups: Sequence[Group], curves: Mapping[str, Sequence[Curve]], *, file_format: str
) -> bytes:
    """Return the image file. `curves` has one curve per group for each metric."""
    matplotlib = import_extra("matplotlib", "plot")
    figures = import_extra("matplotlib.figure", "plot")
    with matplotlib.rc_context(), io.BytesIO() as file:
        matplotlib.rcdefaults()  # independent of the user's matplotlibrc
        matplotlib.rcParams.update(_STYLE)
        num_columns = 2 if len(curves) == 4 else min(len(curves), _MOST_COLUMNS)
        num_rows = -(-len(curves) // num_columns)
        width = _PANEL[0] * num_columns if len(curves) > 1 else 4.4
        figure = figures.Figure(figsize=(width, _PANEL[1] * num_rows + 0.5), layout="constrained")
        for place, (metric, lines) in enumerate(curves.items(), 1):
            axes = figure.add_subplot(num_rows, num_columns, place)
            _draw_panel(axes, metric, lines)
            axes.set_xlabel("training step")
        _explain(figure, groups, [line for lines in curves.values() for line in lines])
        figure.savefig(file, format=file_format, metadata=_METADATA[file_format])
        return file.getvalue()


def _draw_panel(axes: Axes, metric: str, curves: Sequence[Curve]) -> None:
    for number, curve in enumerate(curves):
        colour, dashes = _line_style(number)
        marker = "o" if len(curve.x) == 1 else None
        if curve.raw is not None:
            axes.plot(curve.x, curve.raw, color=colour, alpha=0.25, linewidth=0.8)
        else:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(curve.x, curve.mean, color=colour, linestyle=dashes, marker=marker)
    axes.set_ylabel(metric)
    axes.margins(x=0.02)
    if metric == "success" or metric.endswith("/success"):  # a fraction: show the whole scale
        axes.set_ylim(-0.03, 1.03)


def _line_style(number: int) -> tuple[str, str]:
    """Return colour and dashes: all colours first, then the same with other dashes."""
    return _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]


def _explain(figure: Figure, groups: Sequence[Group], curves: Sequence[Curve]) -> None:
    """Add the legend, with a note on averaging and smoothing."""
    note = _note(groups, curves)
    if len(groups) == 1:
        figure.supxlabel(_caption(figure, groups[0], note), fontsize=8, color=_PALE)
        return
    lines = import_extra("matplotlib.lines", "plot")
    entries = []
    for number, group in enumerate(groups):
        colour, dashes = _line_style(number)
        many = f" ({group.how_many})" if len(group.runs) > 1 else ""
        line = lines.Line2D([], [], color=colour, linestyle=dashes, label=group.label + many)
        entries.append(line)
    legend = figure.legend(
        handles=entries,
        loc="outside lower center",
        ncols=_num_columns(figure, entries),
        title=note or None,
        title_fontsize=8,
    )
    legend.get_title().set_color(_PALE)


def _caption(figure: Figure, group: Group, note: str) -> str:
    """Return the headline of a single run and the note, wrapped to the width."""
    found = group.runs[0].headline if len(group.runs) == 1 else None
    lines = [*([] if found is None else [str(found)]), note]
    width = int(figure.get_figwidth() * _CAPTION_LETTERS_PER_INCH)
    return "\n".join(row for line in lines for row in textwrap.wrap(line, width))


def _note(groups: Sequence[Group], curves: Sequence[Curve]) -> str:
    """Return how the values were averaged and smoothed, in a line."""
    parts = []
    if any(len(group.runs) > 1 for group in groups):
        over = f" of {groups[0].how_many}" if len(groups) == 1 else " over runs"
        parts.append(f"mean{over}, band: min to max")
    smoothed = " or ".join(str(window) for window in windows(curves))
    if smoothed:
        parts.append(f"smoothed over {smoothed} points")
    return "; ".join(parts)


def _num_columns(figure: Figure, entries: Sequence[Any]) -> int:
    """Return the number of legend columns that fit; the line sample takes five letters."""
    longest = max(len(entry.get_label()) for entry in entries) + 5
    return max(1, min(len(entries), int(figure.get_figwidth() * _LETTERS_PER_INCH / longest)))
