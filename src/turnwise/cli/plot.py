"""`turnwise plot`: draws the curves of runs as a figure."""

from __future__ import annotations

import io
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from turnwise.cli import options as opt
from turnwise.cli.common import say
from turnwise.cli.run_paths import metrics_file
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, did_you_mean, import_extra
from turnwise.runs.headline import Headline, headline
from turnwise.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import numpy as np

    Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

# Settings that do not make a run another experiment.
_NO_DIFFERENCE = {"training.seed", "training.num_epochs", "training.max_steps"}
_NO_DIFFERENCE_SECTIONS = {"checkpoint", "logging", "ray"}
_LONGEST_LABEL = 40
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


def plot(
    runs: Annotated[
        list[str],
        opt.argument("RUN...", "Folders of runs; runs that differ in seed are one curve."),
    ],
    output: Annotated[
        str, opt.option("Image file: .png, .svg or .pdf.", "FILE", "--output", "-o")
    ] = "curve.png",
    metric: Annotated[
        list[str] | None,
        opt.option("Metric; repeatable.", "NAME", "--metric", "-m", default="reward and success"),
    ] = None,
    label: Annotated[
        list[str] | None,
        opt.option("Label of each curve, in order.", "TEXT", default="the settings that differ"),
    ] = None,
) -> None:
    """Draw learning curves: the mean over seeds with a band, for one or several experiments.

    The band is from the lowest to the highest run; a mean ends with its shortest run. Long curves
    are a moving average.

    [bold]Examples[/bold]

    turnwise plot runs/mine -o curve.png
    turnwise plot runs/grpo-* runs/ppo-* -o compared.pdf --label GRPO --label PPO
    turnwise plot runs/mine --metric entropy --metric kl -o inside.svg
    """
    file = Path(output).expanduser()
    if file.suffix[1:] not in _METADATA:
        raise ConfigError(f"--output {output}: expected a name that ends in .png, .svg or .pdf")
    import_extra("matplotlib", "plot")
    files = dict.fromkeys(metrics_file(name).resolve() for name in runs)
    every = [_read_run(file) for file in files]
    groups = _group_runs(every, label or ())
    names = list(dict.fromkeys(metric or ()))
    names = names or [n for n in ("reward", "success") if all(n in run.metrics for run in every)]
    if not names:
        raise ConfigError("these runs share neither reward nor success. Name one with --metric.")
    curves = {
        title: {name: _mean_curve(group, name) for name in names} for title, group in groups.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_draw(groups, curves, file.suffix[1:]))
    for title, group in groups.items():
        lasts = [f"{name} {line.mean[-1]:.3g} at last" for name, line in curves[title].items()]
        headlines = [f"\n  {run.name}: {run.headline}" for run in group if run.headline]
        say(f"{title}: {', '.join(lasts)}{''.join(headlines)}")
    say(f"The figure is in {output}.")


@dataclass(frozen=True)
class _Run:
    """The metrics of a run, and the settings that identify its experiment."""

    name: str
    metrics: Mapping[str, Sequence[tuple[float, float]]]
    """The steps at which each metric has values, and the values."""
    settings: Mapping[str, Any]
    seed: int | None
    headline: Headline | None


@dataclass(frozen=True)
class _Curve:
    """A metric of a group, by step: a row of values for each run, and their mean."""

    x: Floats
    values: Floats
    mean: Floats
    raw: Floats | None
    """The values of a single run before smoothing."""
    window: int
    """The number of points of the moving average; 1: none."""


def _read_run(file: Path) -> _Run:
    folder, name = RunFolder(file.parent), os.path.relpath(file.parent)
    rows = folder.read_metrics()
    if not rows:
        raise ConfigError(f"{file} is empty: no step of this run was finished yet")
    metrics: dict[str, list[tuple[float, float]]] = {}
    for number, row in enumerate(rows, 1):
        for key in row.keys() - {"step", "epoch"}:
            metrics.setdefault(key, []).append((row.get("step", number), row[key]))
    settings: dict[str, Any] = {"run": name}
    seed = None
    if folder.config_file.is_file():  # else a copy of the metrics: an experiment by itself
        config = ConfigStore.load(folder.config_file)
        settings = {
            key: value
            for key, value in config.settings()
            if key.partition(".")[0] not in _NO_DIFFERENCE_SECTIONS and key not in _NO_DIFFERENCE
        }
        settings["environment"] = folder.status.get("environment", config.environment_name)
        seed = config.training.seed
    return _Run(name, metrics, settings, seed, headline(rows, folder.evaluated_on))


def _group_runs(runs: Sequence[_Run], labels: Sequence[str]) -> dict[str, list[_Run]]:
    """Return the runs of each experiment by the title of its curve, in order of appearance.

    Labels are the settings that differ if these are short, else the folder names.
    """
    by_settings: dict[str, list[_Run]] = {}
    for run in runs:
        key = json.dumps(run.settings, sort_keys=True, default=repr)
        by_settings.setdefault(key, []).append(run)
    groups = list(by_settings.values())
    firsts = [group[0].settings for group in groups]
    keys = dict.fromkeys(key for settings in firsts for key in settings)
    # The recorded name of the environment replaces the one in the catalogue.
    keys.pop("environment.name", None)
    differing = [key for key in keys if any(s.get(key) != firsts[0].get(key) for s in firsts)]
    names = list(labels) or [
        ", ".join(f"{key.rpartition('.')[2]} {settings.get(key)}" for key in differing)
        for settings in firsts
    ]
    if not labels and ("run" in differing or not 0 < max(map(len, names)) <= _LONGEST_LABEL):
        names = [os.path.basename(group[0].name) for group in groups]
        names = names if len(set(names)) == len(names) else [group[0].name for group in groups]
    if len(set(names)) != len(groups):
        listed = "; ".join(", ".join(run.name for run in group) for group in groups)
        raise ConfigError(
            f"--label was given {len(labels)} times, and there are {len(groups)} curves: {listed}. "
            "Runs that differ in nothing but their seed are one curve; each has its own label."
        )
    titles = {}
    for name, group in zip(names, groups, strict=True):
        unit = "seeds" if len({run.seed for run in group}) == len(group) else "runs"
        titles[f"{name} ({len(group)} {unit})" if len(group) > 1 else name] = group
    return titles


def _mean_curve(runs: Sequence[_Run], metric: str) -> _Curve:
    """Return the mean and band over a group's runs, where all of them have values."""
    import numpy as np

    series = []
    for run in runs:
        if metric not in run.metrics:
            near = did_you_mean(metric, run.metrics)
            raise ConfigError(f"{run.name} has no metric {metric!r}. {near}")
        series.append(np.array(run.metrics[metric], dtype=np.float64).T)
    shortest = min(len(x) for x, _ in series)
    window = shortest // 20 | 1 if shortest >= 40 else 1
    first, last = max(x[0] for x, _ in series), min(x[-1] for x, _ in series)
    if first > last:
        names = ", ".join(run.name for run in runs)
        raise ConfigError(f"these runs have no step in common, so there is no mean: {names}")
    x = np.unique(np.concatenate([x for x, _ in series]))
    x = x[(x >= first) & (x <= last)]
    kernel = np.ones(window)
    means = []
    for steps, y in series:  # the centred moving average, over fewer points at the ends
        smooth = np.convolve(y, kernel, "same") / np.convolve(np.ones(len(y)), kernel, "same")
        means.append(np.interp(x, steps, smooth))
    values = np.stack(means)
    raw = np.interp(x, *series[0]) if len(series) == 1 and window > 1 else None
    return _Curve(x, values, values.mean(axis=0), raw, window)


def _draw(
    groups: Mapping[str, Sequence[_Run]],
    curves: Mapping[str, Mapping[str, _Curve]],
    file_format: str,
) -> bytes:
    """Return the image file. `curves` has the curve of each metric of each group."""
    metrics = list(next(iter(curves.values())))
    notes = []  # how the values were averaged and smoothed, or the headline of a single run
    if any(len(runs) > 1 for runs in groups.values()):
        notes.append("mean over runs, band: min to max")
    elif len(groups) == 1:
        notes += [str(run.headline) for runs in groups.values() for run in runs if run.headline]
    windows = sorted({line.window for lines in curves.values() for line in lines.values()} - {1})
    if windows:
        notes.append(f"smoothed over {' or '.join(map(str, windows))} points")
    caption = "; ".join(notes)
    # Independent of the user's matplotlibrc, and in colours that colour-blind readers distinguish.
    styles = import_extra("matplotlib.style", "plot")
    figures = import_extra("matplotlib.figure", "plot")
    style = styles.context(["default", "tableau-colorblind10", dict(_STYLE)])
    with style, io.BytesIO() as file:
        num_columns = 2 if len(metrics) == 4 else min(len(metrics), 3)
        num_rows = -(-len(metrics) // num_columns)
        width = 3.4 * num_columns if len(metrics) > 1 else 4.4
        figure = figures.Figure(figsize=(width, 2.5 * num_rows + 0.5), layout="constrained")
        for number, metric in enumerate(metrics, 1):
            axes = figure.add_subplot(num_rows, num_columns, number)
            for title, lines in curves.items():
                line = lines[metric]
                marker = "o" if len(line.x) == 1 else None
                (drawn,) = axes.plot(line.x, line.mean, label=title, marker=marker)
                band = {"color": drawn.get_color(), "alpha": 0.2}
                if line.raw is not None:
                    axes.plot(line.x, line.raw, linewidth=0.8, **band)
                else:
                    low, high = line.values.min(axis=0), line.values.max(axis=0)
                    axes.fill_between(line.x, low, high, linewidth=0, **band)
            axes.set(xlabel="training step", ylabel=metric)
            axes.margins(x=0.02)
            if metric.rpartition("/")[2] == "success":  # show the whole scale
                axes.set_ylim(-0.03, 1.03)
        if len(groups) > 1:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", title=caption or None)
        else:
            wrapped = "\n".join(textwrap.wrap(caption, int(width * 15)))
            figure.supxlabel(wrapped, fontsize=8, color="#444444")
        figure.savefig(file, format=file_format, metadata=_METADATA[file_format])
        return file.getvalue()
