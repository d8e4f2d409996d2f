"""Reads the curves of runs, groups runs by their settings, and averages them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from turnwise.cli.run_paths import metrics_file
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, did_you_mean
from turnwise.runs.headline import Headline, headline
from turnwise.runs.metrics_log import MetricsLog, numbers_of
from turnwise.runs.run_folder import RunFolder

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

# Settings that do not make a run another experiment.
_NO_DIFFERENCE = {"training.seed", "training.num_epochs", "training.max_steps"}
_NO_DIFFERENCE_SECTIONS = {"checkpoint", "logging", "ray"}
_MOST_POINTS = 1000
_MOST_NAMED = 3


@dataclass(frozen=True)
class Run:
    """The metrics of a run, and the settings that identify its experiment."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    """Runs with the same settings are one experiment."""
    seed: int | None
    evaluated_on: str | None = None

    @property
    def headline(self) -> Headline | None:
        """The one metric that sums up the run, as every other command prints it."""
        return headline(self.rows, self.evaluated_on)

    def series(self, metric: str) -> tuple[Floats, Floats]:
        """Return the steps at which the metric has values, and the values."""
        found = [
            (row.get("step", number), row[metric])
            for number, row in enumerate(self.rows, 1)
            if metric in row
        ]
        if not found:
            near = did_you_mean(metric, metric_names([self]))
            raise ConfigError(f"{self.name} has no metric {metric!r}. {near}")
        points = np.array(found, dtype=np.float64)
        return points[:, 0], points[:, 1]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: one curve."""

    label: str
    runs: Sequence[Run]

    @property
    def how_many(self) -> str:
        """
        >>> Group("", [Run("a", [], {}, 0), Run("b", [], {}, 1)]).how_many
        '2 seeds'
        """
        differ = len({run.seed for run in self.runs}) == len(self.runs)
        return f"{len(self.runs)} {'seeds' if differ else 'runs'}"


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
    is_cut: bool
    """Whether longer runs were cut at the end of the shortest: their mean would jump there."""


def read_runs(places: Iterable[str]) -> list[Run]:
    """Return each run once, in the given order."""
    files = dict.fromkeys(metrics_file(place).resolve() for place in places)
    return [_read_run(file) for file in files]


def _read_run(file: Path) -> Run:
    name = os.path.relpath(file.parent)
    rows = [numbers_of(line) for line in MetricsLog(file).read()]
    if not rows:
        raise ConfigError(f"{file} is empty: no step of this run was finished yet")
    folder = RunFolder(file.parent)
    if not folder.config_file.is_file():  # only a copy of the metrics: an experiment of its own
        return Run(name, rows, {"run": name}, None, folder.evaluated_on)
    config = ConfigStore.load(folder.config_file)
    settings = {
        name: value
        for name, value in config.settings()
        if name.partition(".")[0] not in _NO_DIFFERENCE_SECTIONS and name not in _NO_DIFFERENCE
    }
    settings["environment"] = folder.status.get("environment", config.environment_name)
    return Run(name, rows, settings, config.training.seed, folder.evaluated_on)


def group_runs(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[Group]:
    """Return one group per experiment, in the order in which they appear."""
    together: list[list[Run]] = []
    for run in runs:
        for group in together:
            if group[0].settings == run.settings:
                group.append(run)
                break
        else:
            together.append([run])
    names = list(labels) or _names(together)
    if len(names) != len(together):
        found = "; ".join(", ".join(run.name for run in group) for group in together)
        raise ConfigError(
            f"--label was given {len(names)} times, and there are {len(together)} curves: {found}. "
            "Runs that differ in nothing but their seed are one curve."
        )
    return [Group(name, group) for name, group in zip(names, together, strict=True)]


def _names(together: Sequence[Sequence[Run]]) -> list[str]:
    """Return the settings that differ as labels if they are short, else the folder names."""
    settings = [group[0].settings for group in together]
    keys = dict.fromkeys(key for each in settings for key in each)
    differing = [key for key in keys if any(s.get(key) != settings[0].get(key) for s in settings)]
    # The recorded name of the environment replaces the one in the catalogue.
    if "environment" in differing:
        differing = [key for key in differing if key != "environment.name"]
    if 0 < len(differing) <= _MOST_NAMED and "run" not in differing:
        named = [
            ", ".join(f"{key.rpartition('.')[2]} {_brief(each.get(key))}" for key in differing)
            for each in settings
        ]
        if all(len(name) <= 40 for name in named):
            return named
    return [_common_name([run.name for run in group]) for group in together]


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _common_name(names: Sequence[str]) -> str:
    """Return the common start of the folder names of a group.

    >>> _common_name(["runs/grpo-0", "runs/grpo-1"]), _common_name(["runs/a", "runs/b"])
    ('grpo', 'a')
    """
    folders = [os.path.basename(name) for name in names]
    shared = os.path.commonprefix(folders)  # noqa: RUF071 - of names, not of paths
    return shared.rstrip("-_. ") or folders[0]


def metric_names(runs: Iterable[Run]) -> list[str]:
    """Return the names of all numeric metrics."""
    return sorted(
        {
            name
            for run in runs
            for row in run.rows
            for name, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        - {"step", "epoch"}
    )


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """Return reward and success; only success if both are the same."""
    shared = set.intersection(*(set(metric_names([run])) for run in runs))
    found: list[str] = [name for name in ("reward", "success") if name in shared]
    if not found:
        raise ConfigError(
            "these runs have no reward and no success in common. Name what to draw with --metric; "
            f"there are: {', '.join(metric_names(runs)[:12])} ..."
        )
    rows = [row for run in runs for row in run.rows]
    if len(found) == 2 and all(row.get("reward") == row.get("success") for row in rows):
        found.remove("reward")
    return found


def check_metrics(names: Iterable[str], runs: Sequence[Run]) -> None:
    """Raise `ConfigError` for a metric that no run has."""
    known = metric_names(runs)
    for name in names:
        if name not in known:
            raise ConfigError(f"no run has a metric {name!r}. {did_you_mean(name, known)}")


def curve_of(group: Group, metric: str) -> Curve:
    """Return the mean and band over a group's runs, where all of them have values."""
    series = [run.series(metric) for run in group.runs]
    window = min(_window(len(x)) for x, _ in series)
    smoothed = [(x, _moving_mean(y, window)) for x, y in series]
    first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    if first > last:
        names = ", ".join(run.name for run in group.runs)
        raise ConfigError(f"these runs have no step in common, so there is no mean: {names}")
    x = _shared_places([x for x, _ in series], first, last)
    values = np.stack([np.interp(x, *each) for each in smoothed])
    mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    raw = np.interp(x, *series[0]) if len(series) == 1 and window > 1 else None
    return Curve(x, mean, low, high, raw, window, is_cut=any(s[-1] > last for s, _ in series))


def _shared_places(places: Sequence[Floats], first: float, last: float) -> Floats:
    """Return the positions at which any run has a value, thinned to at most 1,000."""
    every = np.unique(np.concatenate(places))
    within = every[(every >= first) & (every <= last)]
    if len(within) <= _MOST_POINTS:
        return within
    thinned: Floats = within[np.linspace(0, len(within) - 1, _MOST_POINTS).round().astype(int)]
    return thinned


def _window(num_points: int) -> int:
    """Return the number of points of the moving average: a twentieth of a long curve."""
    return num_points // 20 | 1 if num_points >= 40 else 1


def _moving_mean(values: Floats, window: int) -> Floats:
    """Return the centred moving average; over fewer points at the ends."""
    before, after = (window - 1) // 2, window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - before, 0), np.minimum(at + after + 1, len(values))
    mean: Floats = (sums[high] - sums[low]) / (high - low)
    return mean


def windows(curves: Iterable[Curve]) -> Iterator[int]:
    """Yield the window sizes of smoothed curves, each once."""
    yield from sorted({curve.window for curve in curves if curve.window > 1})
