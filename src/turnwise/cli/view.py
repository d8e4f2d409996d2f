"""`turnwise view`: shows runs in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli.options import argument
from turnwise.cli.run_paths import not_a_run, run_containing


def view(
    runs: Annotated[
        list[Path] | None,
        argument("[RUN]...", "Runs, or folders that contain runs.", "runs"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port.", show_default="the first free one from 8765"),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Do not save tags and notes.")
    ] = False,
) -> None:
    """Show runs in the browser: curves, conversations, every token that was trained on, timing.

    The page updates while a run is training. It is served on this machine only, and changes nothing
    but your own notes on runs.

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

    folders = [folder.expanduser() for folder in runs or ()]
    for folder in folders:
        if not folder.exists():
            raise not_a_run(folder)
    folders = folders or [Path(ConfigStore().checkpoint.output_dir)]
    folders = [run_containing(folder) for folder in folders]
    serve(folders, port, not no_open, say, read_only)
