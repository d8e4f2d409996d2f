"""`turnwise plot`: draws the curves of runs as a figure."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say
from turnwise.cli.run_paths import metrics_file
from turnwise.errors import ConfigError, did_you_mean, import_extra

if TYPE_CHECKING:
    import numpy as np

    from turnwise.runs.headline import Headline

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


def plot(
    runs: Annotated[
        list[str],
        opt.argument("RUN...", "Folders of runs; runs that differ in seed are one curve."),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Image file: .png, .svg or .pdf."),
    ] = "curve.png",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="Metric to draw, one panel each; repeatable.",
            show_default="reward and success",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Label of a curve; given once per curve, in order.",
            show_default="the settings that differ",
        ),
    ] = None,
    as_json: opt.AsJson = False,
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
        raise ConfigError(
            f"--output got {output!r}, expected a name that ends in .png, .svg or .pdf"
        )
    import_extra("matplotlib", "plot")
    read = _read_runs(runs)
    names = list(dict.fromkeys(metric or ()))
    if not names:
        names = [name for name in ("reward", "success") if all(name in run.metrics for run in read)]
    if not names:
        known = sorted({name for run in read for name in run.metrics})
        raise ConfigError(
            "these runs have no reward and no success in common. Name what to draw with --metric; "
            f"there are: {', '.join(known[:12])} ..."
        )
    groups = _group_runs(read, label or ())
    curves = {name: [_mean_curve(group, name) for group in groups] for name in names}
    picture = _draw(groups, curves, file_format=file.suffix[1:])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror or error}. Name another place with --output."
        ) from error
    if as_json:
        shown = []
        for number, group in enumerate(groups):
            last = {
                name: {
                    "num_points": len(lines[number].x),
                    "smoothed_over": lines[number].window,
                    "last_x": float(lines[number].x[-1]),
                    "last": float(lines[number].mean[-1]),
                    "low": float(lines[number].low[-1]),
                    "high": float(lines[number].high[-1]),
                }
                for name, lines in curves.items()
            }
            shown.append(
                {
                    "label": group.label,
                    "runs": [run.name for run in group.runs],
                    "seeds": [run.seed for run in group.runs],
                    "headlines": [run.headline and run.headline.to_dict() for run in group.runs],
                    "metrics": last,
                }
            )
        print_json({"file": output, "x": "step", "curves": shown})
        return
    for number, group in enumerate(groups):
        ends = [f"{name} {lines[number].mean[-1]:.3g} at last" for name, lines in curves.items()]
        say(f"{group.title}: {', '.join(ends)}")
        for run in group.runs:
            if run.headline is not None:
                name = f"{run.name}: " if len(group.runs) > 1 else ""
                say(f"  {name}{run.headline}")
    say(f"The figure is in {output}.")


@dataclass(frozen=True)
class _Run:
    """The metrics of a run, and the settings that identify its experiment."""

    name: str
    metrics: Mapping[str, Sequence[tuple[float, float]]]
    """The steps at which each metric has values, and the values."""
    settings: Mapping[str, Any]
    """Runs with the same settings are one experiment."""
    seed: int | None
    headline: Headline | None
    """The one metric that sums up the run, as every other command prints it."""


@dataclass(frozen=True)
class _Group:
    """Runs that differ in their seed alone: one curve."""

    label: str
    runs: Sequence[_Run]

    @property
    def title(self) -> str:
        """The label, with the number of runs if there are several."""
        if len(self.runs) == 1:
            return self.label
        differ = len({run.seed for run in self.runs}) == len(self.runs)
        return f"{self.label} ({len(self.runs)} {'seeds' if differ else 'runs'})"


@dataclass(frozen=True)
class _Curve:
    """The mean of a metric over a group, by step, and its lowest and highest run."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    raw: Floats | None
    """The values of a single run before smoothing."""
    window: int
    """The number of points of the moving average; 1: none."""


def _read_runs(names: Iterable[str]) -> list[_Run]:
    """Return each run once, in the given order."""
    from turnwise.config import ConfigStore
    from turnwise.runs.headline import headline
    from turnwise.runs.metrics_log import MetricsLog, numbers_of
    from turnwise.runs.run_folder import RunFolder

    runs = []
    for file in dict.fromkeys(metrics_file(name).resolve() for name in names):
        name = os.path.relpath(file.parent)
        rows = [numbers_of(line) for line in MetricsLog(file).read()]
        if not rows:
            raise ConfigError(f"{file} is empty: no step of this run was finished yet")
        metrics: dict[str, list[tuple[float, float]]] = {}
        for number, row in enumerate(rows, 1):
            for key in row.keys() - {"step", "epoch"}:
                metrics.setdefault(key, []).append((row.get("step", number), row[key]))
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
        runs.append(_Run(name, metrics, settings, seed, headline(rows, folder.evaluated_on)))
    return runs


def _group_runs(runs: Sequence[_Run], labels: Sequence[str]) -> list[_Group]:
    """Return one group per experiment, in the order in which they appear.

    Their labels are the settings that differ if these are short, else the folder names.
    """
    groups: list[list[_Run]] = []
    for run in runs:
        same = next((group for group in groups if group[0].settings == run.settings), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    names = list(labels)
    settings = [group[0].settings for group in groups]
    keys = dict.fromkeys(key for each in settings for key in each)
    differing = [key for key in keys if any(s.get(key) != settings[0].get(key) for s in settings)]
    # The recorded name of the environment replaces the one in the catalogue.
    if "environment" in differing:
        differing = [key for key in differing if key != "environment.name"]
    if not names and 0 < len(differing) <= _MOST_NAMED and "run" not in differing:
        names = [
            ", ".join(f"{key.rpartition('.')[2]} {each.get(key)}" for key in differing)
            for each in settings
        ]
    if not labels and (not names or max(map(len, names)) > 40):
        names = [os.path.basename(group[0].name) for group in groups]
    if len(names) != len(groups):
        listed = "; ".join(", ".join(run.name for run in group) for group in groups)
        raise ConfigError(
            f"--label was given {len(names)} times, and there are {len(groups)} curves: {listed}. "
            "Runs that differ in nothing but their seed are one curve."
        )
    return [_Group(name, group) for name, group in zip(names, groups, strict=True)]


def _mean_curve(group: _Group, metric: str) -> _Curve:
    """Return the mean and band over a group's runs, where all of them have values."""
    import numpy as np

    series = []
    for run in group.runs:
        if metric not in run.metrics:
            near = did_you_mean(metric, run.metrics)
            raise ConfigError(f"{run.name} has no metric {metric!r}. {near}")
        series.append(np.array(run.metrics[metric], dtype=np.float64).T)
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
    return _Curve(
        x,
        mean=values.mean(axis=0),
        low=values.min(axis=0),
        high=values.max(axis=0),
        raw=np.interp(x, *series[0]) if len(series) == 1 and window > 1 else None,
        window=window,
    )


def _draw(
    groups: Sequence[_Group], curves: Mapping[str, Sequence[_Curve]], *, file_format: str
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
