"""What the commands of training and evaluation are told: a file, overrides, and code of a user."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
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


def find_code(config: ConfigStore, folders: Iterable[Path]) -> None:
    """Let a user's `path.py:Name` be found: from here, or else from one of these folders.

    Its folder becomes one that Python imports from, so it must be trusted before that.
    """
    environment = config.environment
    places = list(folders)
    environment.name = _found(environment.name, places)
    name_code(environment.name)
    if environment.reward is not None:
        environment.reward = _found(environment.reward, places)
        name_code(environment.reward)


def name_code(target: str) -> None:
    """Let a name of code be used that is in force from here on: the user's own, or a folder's."""
    from turnwise.env.catalog import ADAPTERS
    from turnwise.user_code import require_code

    prefix, _, rest = target.partition(":")
    is_adapted = prefix in ADAPTERS
    if (is_adapted and ":" in rest) or (not is_adapted and _CODE.fullmatch(target)):
        require_code(rest if is_adapted else target)
        make_importable(target)


def check_code(config: ConfigStore) -> None:
    """Import a user's code and make one environment: what fails here would fail in each episode.

    In brief, without a traceback: it is the user's own code.
    """
    from turnwise.env.catalog import environment_factory
    from turnwise.env.checker.rig import explain
    from turnwise.user_code import import_object

    target = config.environment.name
    try:
        made = environment_factory(target, config.environment)()
        with contextlib.suppress(Exception):  # it was never reset, which `close` may count on
            made.close()
        if config.environment.reward is not None:
            target = config.environment.reward
            import_object(target)
    except TurnwiseError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{target} cannot be used: {explain(error)}. Look closer with: "
            f"turnwise check-env {config.environment.name}"
        ) from error


def _found(target: str, folders: Sequence[Path]) -> str:
    place, _, name = target.rpartition(":")
    if not place.endswith(".py") or Path(place).is_file():
        return target
    for folder in folders:
        if (folder / place).is_file():
            return f"{folder / place}:{name}"
    looked = ", ".join(str(folder.resolve()) for folder in [Path(), *folders][:3])
    raise ConfigError(f"there is no file {place} for {target!r}: looked in {looked}")
