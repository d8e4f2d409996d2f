"""`turnwise plot`: draws the curves of runs as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say
from turnwise.errors import ConfigError, import_extra

if TYPE_CHECKING:
    from turnwise.cli.plot_curves import Curve, Group

FORMATS = ("png", "svg", "pdf")


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

    The band is from the lowest to the highest run. Long curves are a moving average.

    [bold]Examples[/bold]

    turnwise plot runs/mine -o curve.png
    turnwise plot runs/grpo-* runs/ppo-* -o compared.pdf --label GRPO --label PPO
    turnwise plot runs/mine --metric entropy --metric kl -o inside.svg
    """
    file = Path(output).expanduser()
    if file.suffix[1:] not in FORMATS:
        raise ConfigError(
            f"--output got {output!r}, expected a name that ends in .png, .svg or .pdf"
        )
    import_extra("matplotlib", "plot")
    from turnwise.cli import plot_curves

    read = plot_curves.read_runs(runs)
    names = list(dict.fromkeys(metric)) if metric else plot_curves.default_metrics(read)
    groups = plot_curves.group_runs(read, label or ())
    curves = {name: [plot_curves.mean_curve(group, name) for group in groups] for name in names}
    picture = plot_curves.draw(groups, curves, file_format=file.suffix[1:])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    except OSError as error:
        raise ConfigError(
            f"cannot write {file}: {error.strerror or error}. Name another place with --output."
        ) from error
    if as_json:
        print_json(_as_json(output, groups, curves))
        return
    for number, group in enumerate(groups):
        ends = [f"{name} {lines[number].mean[-1]:.3g} at last" for name, lines in curves.items()]
        say(f"{group.title}: {', '.join(ends)}")
        for run in group.runs:
            if run.headline is not None:
                name = f"{run.name}: " if len(group.runs) > 1 else ""
                say(f"  {name}{run.headline}")
    if any(line.is_cut for lines in curves.values() for line in lines):
        say("A mean ends where its shortest run ends; the longer ones continue.", err=True)
    say(f"The figure is in {output}.")


def _as_json(
    output: str, groups: Sequence[Group], curves: Mapping[str, Sequence[Curve]]
) -> Mapping[str, Any]:
    return {
        "file": output,
        "x": "step",
        "curves": [
            {
                "label": group.label,
                "runs": [run.name for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "headlines": [
                    None if run.headline is None else run.headline.to_dict() for run in group.runs
                ],
                "metrics": {
                    name: {
                        "num_points": len(lines[number].x),
                        "smoothed_over": lines[number].window,
                        "last_x": float(lines[number].x[-1]),
                        "last": float(lines[number].mean[-1]),
                        "low": float(lines[number].low[-1]),
                        "high": float(lines[number].high[-1]),
                    }
                    for name, lines in curves.items()
                },
            }
            for number, group in enumerate(groups)
        ],
    }
