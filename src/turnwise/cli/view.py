"""`turnwise view`: a page in the browser that shows runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli import completion
from turnwise.cli.run_place import run_of


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders of runs, or folders with runs in them.",
            autocompletion=completion.runs,
            show_default="runs",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Where to serve it.", show_default="8765 or the next"),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Save no tags and notes on runs.")
    ] = False,
) -> None:
    """Show runs in the browser: curves, conversations, every token that was trained on, time.

    Live while a run is in progress. Only this machine can open the page, and nothing is changed by
    it but your own notes on a run.

    [bold]Examples[/bold]

    turnwise view
    turnwise view runs/guess-number runs/guess-number-2
    turnwise view /data/experiments --port 9000 --no-open
    """
    from turnwise.cli.common import say
    from turnwise.config import ConfigStore
    from turnwise.errors import import_extra

    for package in ("starlette", "uvicorn"):
        import_extra(package, "view")
    from turnwise.view.server import serve

    places = runs or [Path(ConfigStore().checkpoint.output_dir)]
    serve([run_of(place.expanduser()) for place in places], port, not no_open, say, read_only)
