"""`turnwise config`: print every setting with its help, as a YAML file to start from."""

from __future__ import annotations

from typing import Annotated

import typer


def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [SECTION.NAME=VALUE]...",
            help="A YAML file, then settings that replace its values.",
            show_default=False,
        ),
    ] = None,
    config_path: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the YAML file.")
    ] = None,
    config_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name, with or without .yaml.")
    ] = None,
) -> None:
    """Print the resolved configuration as YAML, each setting under its line of help.

    [bold]Examples[/bold]

    turnwise config > my.yaml
    turnwise config my.yaml training.learning_rate=3e-5
    turnwise config --config-path configs --config-name small
    """
    from turnwise.cli.settings import split_arguments
    from turnwise.config import ConfigStore

    file, overrides = split_arguments(arguments or [], config_path, config_name)
    typer.echo(ConfigStore.load(file, overrides).to_yaml(), nl=False)
