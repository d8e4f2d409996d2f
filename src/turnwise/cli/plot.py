"""`turnwise plot`: draws the curves of runs as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say
from turnwise.errors import ConfigError, import_extra

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

    The band is from the lowest to the highest run; a mean ends with its shortest run. Long curves
    are a moving average.

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
        shown = [
            {
                "label": group.label,
                "runs": [run.name for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "headlines": [run.headline and run.headline.to_dict() for run in group.runs],
                "metrics": {name: lines[number].to_dict() for name, lines in curves.items()},
            }
            for number, group in enumerate(groups)
        ]
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
