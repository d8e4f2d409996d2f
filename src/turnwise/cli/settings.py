"""What the commands of training and evaluation are told: a file, overrides, and code of a user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.common import make_importable
from turnwise.errors import ConfigError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.config import ConfigStore, EnvironmentItem

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
    """Make the files that the settings name be found: from these folders, or else from here.

    A run names files as they were named where it began, so that place comes before this one.
    """
    places = list(folders)
    environment = config.environment
    environment.name = _importable(environment.name, places)
    if environment.reward is not None:
        environment.reward = _importable(environment.reward, places)
    config.parser = _importable(config.parser, places)
    _find_parts(config, places)
    for item in config.environments or ():
        item.environment = _importable(item.environment, places)
        _find_parts(item, places)


def _find_parts(owner: ConfigStore | EnvironmentItem, places: Sequence[Path]) -> None:
    """Find the reward, tools and rows that a run, or an environment of a mix, has of its own."""
    if isinstance(owner.reward, str):
        owner.reward = _importable(owner.reward, places)
    for item in owner.reward or [] if not isinstance(owner.reward, str) else []:
        if item.function is not None:
            item.function = _importable(item.function, places)
    if owner.tools is not None:
        owner.tools = [_found_tool(tool, places) for tool in owner.tools]
    for dataset in (owner.dataset, owner.eval_dataset):
        if dataset.path is not None:
            paths = [dataset.path] if isinstance(dataset.path, str) else dataset.path
            dataset.path = [_found_file(path, places) for path in paths]


def run_folders(run: Path) -> list[Path]:
    """Where the code and data of a run may be: where it was started, or around its folder."""
    from turnwise.runs.places import places_of

    return places_of(run)


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


def _importable(target: str, folders: Sequence[Path]) -> str:
    """A target that can be imported from here."""
    place, colon, name = target.rpartition(":")
    if colon and place.endswith(".py"):
        target = f"{_found_file(place, folders)}:{name}"
    name_code(target)
    return target


def _found_tool(tool: str | dict[str, Any], folders: Sequence[Path]) -> str | dict[str, Any]:
    if isinstance(tool, str):
        return _importable(tool, folders)
    if "mcp" in tool and folders:  # a server is started where the run started it
        here = next((folder for folder in folders if folder.is_dir()), Path())
        return {**tool, "cwd": str(here / tool.get("cwd", "."))}
    target = tool.get("tool")
    return {**tool, "tool": _importable(target, folders)} if isinstance(target, str) else tool


def _found_file(place: str, folders: Sequence[Path]) -> str:
    path = Path(place).expanduser()
    if place.startswith("<"):
        return place
    if path.is_absolute() and path.exists():
        here = Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
    places = [*folders, Path()]
    for folder in places:
        if (folder / path).exists():
            return place if folder.resolve() == Path.cwd() else str(folder / path)
    looked = ", ".join(dict.fromkeys(str(folder.resolve()) for folder in places[:3]))
    raise ConfigError(f"there is no file {place}: looked in {looked}")
