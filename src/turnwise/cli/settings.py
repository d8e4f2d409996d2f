"""What the commands of training and evaluation are told: a file, overrides, and code of a user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.common import make_importable
from turnwise.errors import ConfigError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.config import ConfigStore

_CODE = re.compile(r"(.+\.py|[^\W\d][\w.]*):[^\W\d][\w.]*")
_OVERRIDE = re.compile(r"\+?[\w.]+=")


def split_arguments(
    words: Sequence[str], config_path: str | None, config_name: str | None
) -> tuple[Path | None, list[str]]:
    """The configuration file, if one is named, and the settings that replace its values."""
    from turnwise.config import find_config

    overrides = [word for word in words if _OVERRIDE.match(word)]
    files = [word for word in words if not _OVERRIDE.match(word)]
    found = find_config(config_path, config_name)
    if len(files) + (found is not None) > 1:
        names = ", ".join([*files, *([str(found)] if found else [])])
        raise ConfigError(
            f"got more than one configuration file: {names}. Name one; a setting is written "
            "section.name=value, for example training.batch_size=8"
        )
    return (Path(files[0]) if files else found), overrides


def find_code(
    config: ConfigStore,
    folders: Sequence[Path],
    *,
    run: Path | None = None,
    typed: Sequence[str] = (),
) -> None:
    """Make the code and files that the settings name be found: from these folders, or from here.

    A run names files as they were named where it began, so that place comes before this one; what
    is `typed` in this command, such as `dataset.path`, is looked for here first.
    """
    from turnwise.cli.finding import Finder
    from turnwise.runs.named_files import rewrite_names

    rewrite_names(config, Finder(tuple(folders), run, tuple(typed)).find)


def run_folders(run: Path) -> list[Path]:
    """Where the code and data of a run may be: where it was started, or around its folder."""
    from turnwise.runs.places import places_of

    return places_of(run)


def name_code(target: str, folder: Path | None = None) -> None:
    """Let a name of code be used that is in force from here on: the user's own, or a folder's.

    `folder` is where the code is looked for first; None is the present folder.
    """
    from turnwise.env.catalog import ADAPTERS
    from turnwise.user_code import require_code

    prefix, _, rest = target.partition(":")
    is_adapted = prefix in ADAPTERS
    if (is_adapted and ":" in rest) or (not is_adapted and _CODE.fullmatch(target)):
        require_code(rest if is_adapted else target, folder or Path.cwd())
        make_importable(target, folder)


def check_code(config: ConfigStore) -> None:
    """Import a user's code and make one environment: what fails here would fail in each episode.

    Of a mix, one of each. In brief, without a traceback: it is the user's own code.
    """
    for name, part in config.parts().items():
        try:
            _check_part(part)
        except ConfigError as error:
            if not name:
                raise
            raise ConfigError(f"the environment {name} of the mix: {error}") from error


def _check_part(config: ConfigStore) -> None:
    from turnwise.env.catalog import environment_factory
    from turnwise.env.checker.rig import explain
    from turnwise.env.driver import close_environment
    from turnwise.reward.by_name import reward_by_name
    from turnwise.tools.by_name import parser_by_name, tools_by_name

    target = config.environment.name
    try:
        made = environment_factory(target, config.environment)()
        # It was never reset, which its `close` may count on.
        close_environment(made, config.limits.close_timeout)
        target = "the reward"
        reward_by_name(config.reward)
        reward_by_name(config.environment.reward)
        target = "a tool"
        tools_by_name([tool for tool in config.tools if "mcp" not in tool])
        target = "the parser"
        parser_by_name(config.parser)
    except TurnwiseError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{target} cannot be used: {explain(error)}. Look closer with: "
            f"turnwise check-env {config.environment.name}"
        ) from error
