"""`turnwise config`: print every setting with its help, as a YAML file to start from."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from turnwise.cli import completion
from turnwise.cli.common import AsJson, print_file, print_json


def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [SECTION.NAME=VALUE]...",
            help="A YAML file, then settings that replace its values.",
            show_default=False,
            autocompletion=completion.settings,
        ),
    ] = None,
    config_path: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the YAML file.")
    ] = None,
    config_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name, with or without .yaml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration as YAML, each setting under its line of help.

    [bold]Examples[/bold]

    turnwise config > my.yaml
    turnwise config my.yaml training.learning_rate=3e-5
    turnwise config --config-path configs --config-name small
    turnwise config my.yaml --json | jq .training.batch_size
    """
    from turnwise.cli.settings import split_arguments
    from turnwise.config import ConfigStore

    file, overrides = split_arguments(arguments or [], config_path, config_name)
    found = ConfigStore.load(file, overrides)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print_file(found.to_yaml())
