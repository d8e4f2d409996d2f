"""The curves of `turnwise plot`: reads runs, groups and averages them, draws with matplotlib."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from turnwise.cli.run_paths import metrics_file
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, did_you_mean, import_extra
from turnwise.runs.headline import Headline, headline
from turnwise.runs.metrics_log import MetricsLog, numbers_of
from turnwise.runs.run_folder import RunFolder

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

# Settings that do not make a run another experiment.
_NO_DIFFERENCE = {"training.seed", "training.num_epochs", "training.max_steps"}
_NO_DIFFERENCE_SECTIONS = {"checkpoint", "logging", "ray"}
_MOST_POINTS = 1000
_MOST_NAMED = 3
_STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "savefig.dpi": 220,
    "svg.fonttype": "none",  # text stays editable
    "svg.hashsalt": "turnwise",
    "pdf.fonttype": 42,  # journals refuse Type 3
}
# Without the date, the same runs give the same bytes.
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@dataclass(frozen=True)
class Run:
    """The metrics of a run, and the settings that identify its experiment."""

    name: str
    rows: Sequence[Mapping[str, float]]
    settings: Mapping[str, Any]
    """Runs with the same settings are one experiment."""
    seed: int | None
    headline: Headline | None
    """The one metric that sums up the run, as every other command prints it."""

    def series(self, metric: str) -> tuple[Floats, Floats]:
        """Return the steps at which the metric has values, and the values."""
        points = [
            (row.get("step", number), row[metric])
            for number, row in enumerate(self.rows, 1)
            if metric in row
        ]
        if not points:
            near = did_you_mean(metric, metric_names([self]))
            raise ConfigError(f"{self.name} has no metric {metric!r}. {near}")
        steps, values = np.array(points, dtype=np.float64).T
        return steps, values


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: one curve."""

    label: str
    runs: Sequence[Run]

    @property
    def title(self) -> str:
        """The label, with the number of runs if there are several."""
        if len(self.runs) == 1:
            return self.label
        differ = len({run.seed for run in self.runs}) == len(self.runs)
        return f"{self.label} ({len(self.runs)} {'seeds' if differ else 'runs'})"


@dataclass(frozen=True)
class Curve:
    """The mean of a metric over a group, by step, and its lowest and highest run."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    raw: Floats | None
    """The values of a single run before smoothing."""
    window: int
    """The number of points of the moving average; 1: none."""

    def to_dict(self) -> dict[str, float]:
        """Return the last values, and how many there are."""
        return {
            "num_points": len(self.x),
            "smoothed_over": self.window,
            "last_x": float(self.x[-1]),
            "last": float(self.mean[-1]),
            "low": float(self.low[-1]),
            "high": float(self.high[-1]),
        }


def read_runs(names: Iterable[str]) -> list[Run]:
    """Return each run once, in the given order."""
    runs = []
    for file in dict.fromkeys(metrics_file(name).resolve() for name in names):
        name = os.path.relpath(file.parent)
        rows = [numbers_of(line) for line in MetricsLog(file).read()]
        if not rows:
            raise ConfigError(f"{file} is empty: no step of this run was finished yet")
        folder = RunFolder(file.parent)
        settings: dict[str, Any] = {"run": name}
        seed = None
        if folder.config_file.is_file():  # else a copy of the metrics: an experiment by itself
            config = ConfigStore.load(folder.config_file)
            settings = {
                key: value
                for key, value in config.settings()
                if key.partition(".")[0] not in _NO_DIFFERENCE_SECTIONS
                and key not in _NO_DIFFERENCE
            }
            settings["environment"] = folder.status.get("environment", config.environment_name)
            seed = config.training.seed
        runs.append(Run(name, rows, settings, seed, headline(rows, folder.evaluated_on)))
    return runs


def group_runs(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[Group]:
    """Return one group per experiment, in the order in which they appear."""
    groups: list[list[Run]] = []
    for run in runs:
        same = next((group for group in groups if group[0].settings == run.settings), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    names = list(labels) or _labels(groups)
    if len(names) != len(groups):
        listed = "; ".join(", ".join(run.name for run in group) for group in groups)
        raise ConfigError(
            f"--label was given {len(names)} times, and there are {len(groups)} curves: {listed}. "
            "Runs that differ in nothing but their seed are one curve."
        )
    return [Group(name, group) for name, group in zip(names, groups, strict=True)]


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return the settings that differ as labels if they are short, else the folder names."""
    settings = [group[0].settings for group in groups]
    keys = dict.fromkeys(key for each in settings for key in each)
    differing = [key for key in keys if any(s.get(key) != settings[0].get(key) for s in settings)]
    # The recorded name of the environment replaces the one in the catalogue.
    if "environment" in differing:
        differing = [key for key in differing if key != "environment.name"]
    if 0 < len(differing) <= _MOST_NAMED and "run" not in differing:
        labels = [
            ", ".join(f"{key.rpartition('.')[2]} {each.get(key)}" for key in differing)
            for each in settings
        ]
        if all(len(label) <= 40 for label in labels):
            return labels
    return [os.path.basename(group[0].name) for group in groups]


def metric_names(runs: Iterable[Run]) -> list[str]:
    """Return the names of all metrics."""
    return sorted({name for run in runs for row in run.rows for name in row} - {"step", "epoch"})


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """Return reward and success, as far as all runs have them."""
    shared = set.intersection(*(set(metric_names([run])) for run in runs))
    names: list[str] = [name for name in ("reward", "success") if name in shared]
    if not names:
        raise ConfigError(
            "these runs have no reward and no success in common. Name what to draw with --metric; "
            f"there are: {', '.join(metric_names(runs)[:12])} ..."
        )
    return names


def mean_curve(group: Group, metric: str) -> Curve:
    """Return the mean and band over a group's runs, where all of them have values."""
    series = [run.series(metric) for run in group.runs]
    shortest = min(len(x) for x, _ in series)
    window = shortest // 20 | 1 if shortest >= 40 else 1
    first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    if first > last:
        names = ", ".join(run.name for run in group.runs)
        raise ConfigError(f"these runs have no step in common, so there is no mean: {names}")
    x = np.unique(np.concatenate([x for x, _ in series]))
    x = x[(x >= first) & (x <= last)]
    if len(x) > _MOST_POINTS:
        x = x[np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int)]
    kernel = np.ones(window)
    smooth = [
        # The centred moving average; over fewer points at the ends.
        np.convolve(y, kernel, "same") / np.convolve(np.ones(len(y)), kernel, "same")
        for _, y in series
    ]
    values = np.stack([np.interp(x, series[i][0], y) for i, y in enumerate(smooth)])
    return Curve(
        x,
        mean=values.mean(axis=0),
        low=values.min(axis=0),
        high=values.max(axis=0),
        raw=np.interp(x, *series[0]) if len(series) == 1 and window > 1 else None,
        window=window,
    )


def draw(
    groups: Sequence[Group], curves: Mapping[str, Sequence[Curve]], *, file_format: str
) -> bytes:
    """Return the image file. `curves` has one curve per group for each metric."""
    styles = import_extra("matplotlib.style", "plot")
    figures = import_extra("matplotlib.figure", "plot")
    notes = []  # the headline of a single run, and how the values were averaged and smoothed
    if any(len(group.runs) > 1 for group in groups):
        notes.append("mean over runs, band: min to max")
    elif len(groups) == 1 and groups[0].runs[0].headline is not None:
        notes.append(str(groups[0].runs[0].headline))
    windows = sorted({line.window for lines in curves.values() for line in lines} - {1})
    if windows:
        notes.append(f"smoothed over {' or '.join(map(str, windows))} points")
    caption = "; ".join(notes)
    # Independent of the user's matplotlibrc, and in colours that colour-blind readers distinguish.
    style = styles.context(["default", "tableau-colorblind10", dict(_STYLE)])
    with style, io.BytesIO() as file:
        num_columns = 2 if len(curves) == 4 else min(len(curves), 3)
        num_rows = -(-len(curves) // num_columns)
        width = 3.4 * num_columns if len(curves) > 1 else 4.4
        figure = figures.Figure(figsize=(width, 2.5 * num_rows + 0.5), layout="constrained")
        for number, (metric, lines) in enumerate(curves.items(), 1):
            axes = figure.add_subplot(num_rows, num_columns, number)
            for group, line in zip(groups, lines, strict=True):
                marker = "o" if len(line.x) == 1 else None
                (drawn,) = axes.plot(line.x, line.mean, label=group.title, marker=marker)
                colour = drawn.get_color()
                if line.raw is not None:
                    axes.plot(line.x, line.raw, color=colour, alpha=0.25, linewidth=0.8)
                else:
                    band = {"color": colour, "alpha": 0.2, "linewidth": 0}
                    axes.fill_between(line.x, line.low, line.high, **band)
            axes.set(xlabel="training step", ylabel=metric)
            axes.margins(x=0.02)
            if metric == "success" or metric.endswith("/success"):  # show the whole scale
                axes.set_ylim(-0.03, 1.03)
        if len(groups) > 1:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", title=caption or None)
        else:
            wrapped = "\n".join(textwrap.wrap(caption, int(width * 15)))
            figure.supxlabel(wrapped, fontsize=8, color="#444444")
        figure.savefig(file, format=file_format, metadata=_METADATA[file_format])
        return file.getvalue()
