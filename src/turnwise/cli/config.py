"""`turnwise config`: print every setting with its help, as a YAML file to start from."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from turnwise.cli.common import print_file, print_json
from turnwise.cli.options import AsJson, ConfigName, ConfigPath, argument


def config(
    arguments: Annotated[
        list[str] | None,
        argument(
            "[CONFIG] [SECTION.NAME=VALUE]...",
            "A YAML file, and settings that override its values.",
        ),
    ] = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    as_json: AsJson = False,
) -> None:
    """Print the whole configuration as YAML, with a comment that explains each setting.

    [bold]Examples[/bold]

    turnwise config > my.yaml
    turnwise config my.yaml training.learning_rate=3e-5
    turnwise config --config-path configs --config-name small
    turnwise config my.yaml --json | jq .training.batch_size
    """
    from turnwise.cli.settings import split_arguments
    from turnwise.config import ConfigStore

    file, overrides = split_arguments(arguments or [], config_path, config_name)
    settings = ConfigStore.load(file, overrides)
    if as_json:
        print_json(dataclasses.asdict(settings))
    else:
        print_file(settings.to_yaml())
