"""`turnwise config`: print every setting with its help, as a YAML file to start from."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from turnwise.errors import ConfigError

_OVERRIDE = re.compile(r"\+?[\w.]+=")


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
    from turnwise.config import ConfigStore, find_config

    words = arguments or []
    overrides = [word for word in words if _OVERRIDE.match(word)]
    files = [word for word in words if not _OVERRIDE.match(word)]
    found = find_config(config_path, config_name)
    if len(files) + (found is not None) > 1:
        names = ", ".join([*files, *([str(found)] if found else [])])
        raise ConfigError(
            f"got more than one configuration file: {names}. Name one; a setting is written "
            "section.name=value, for example training.batch_size=8"
        )
    store = ConfigStore.load(files[0] if files else found, overrides)
    typer.echo(store.to_yaml(), nl=False)
