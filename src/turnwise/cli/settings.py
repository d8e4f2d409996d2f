"""Reads the settings that a command names, and finds the code and files that they name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.common import make_importable
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.runs.named_files import Named, rewrite_names
from turnwise.runs.places import find_folder
from turnwise.user_code import names_code

if TYPE_CHECKING:
    from turnwise.config import ConfigStore

_OVERRIDE = re.compile(r"\+?[\w.]+=")


def split_arguments(
    words: Sequence[str], config_path: str | None, config_name: str | None
) -> tuple[Path | None, list[str]]:
    """Return the configuration file, if one is named, and the overrides `section.name=value`.

    A word may also be an environment, which becomes the first override.
    """
    from turnwise.config import find_config

    overrides = [word for word in words if _OVERRIDE.match(word)]
    files = [word for word in words if not _OVERRIDE.match(word)]
    environments = [word for word in files if _names_environment(word)]
    if environments:
        files = [word for word in files if word not in environments]
        overrides.insert(0, f"environment.name={environments[-1]}")
    found = find_config(config_path, config_name)
    if len(files) + (found is not None) > 1:
        names = ", ".join([*files, *([str(found)] if found else [])])
        raise ConfigError(
            f"got more than one configuration file: {names}. Name one; a setting is written "
            "section.name=value, for example training.batch_size=8"
        )
    return (Path(files[0]) if files else found), overrides


def _names_environment(word: str) -> bool:
    """Return whether a word is an environment, as `turnwise play` takes it, and no file."""
    from turnwise.env.catalog import ADAPTERS, BUILT_IN

    if Path(word).exists():
        if word.endswith(".py"):
            raise ConfigError(
                f"{word} is Python code, expected a YAML file or an environment. Name the class in "
                f"it: {word}:ClassName"
            )
        return False
    if word.endswith((".yaml", ".yml")):
        return False
    is_misspelt = bool(difflib.get_close_matches(word, BUILT_IN, n=1, cutoff=0.8))
    return is_misspelt or word.partition(":")[0] in ADAPTERS or names_code(word)


def find_code(
    config: ConfigStore,
    folders: Sequence[Path],
    *,
    run: Path | None = None,
    typed: Sequence[str] = (),
) -> None:
    """Find the code and files that the settings name, and rewrite the names for this folder.

    A run recorded names relative to the folder in which it began, so `folders` are searched before
    the current one. Settings that are `typed` in this command are searched for here first.
    """
    rewrite_names(config, Finder(tuple(folders), run, tuple(typed)).find)


def name_code(target: str, folder: Path | None = None) -> None:
    """Allow code to be imported that the user or a trusted folder names, and make it importable.

    `folder` is searched first; None is the current folder.
    """
    from turnwise.env.catalog import ADAPTERS
    from turnwise.user_code import require_code

    prefix, _, rest = target.partition(":")
    is_adapted = prefix in ADAPTERS
    if (is_adapted and ":" in rest) or (not is_adapted and names_code(target)):
        require_code(rest if is_adapted else target, folder or Path.cwd())
        make_importable(target, folder)


def check_code(config: ConfigStore) -> None:
    """Import the user's code and make each environment once, since a failure would repeat.

    The errors are brief, without a traceback.
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
    from turnwise.env.checker.report import explain
    from turnwise.env.driver import close_environment
    from turnwise.reward.combine import reward_by_name
    from turnwise.tools.by_name import parser_by_name, tools_by_name

    target = config.environment_name
    try:
        if config.agent is None:
            made = environment_factory(target, config.environment)()
            # It was never reset, so its `close` may fail or hang.
            close_environment(made, config.limits.close_timeout)
        else:
            from turnwise.trainer.agents import agent_of, expert_of  # late: it imports torch

            expert_of(None, config, agent_of(None, config))
        target = "the reward"
        reward_by_name(config.reward)
        target = "a tool"
        tools_by_name([tool for tool in config.tools if "mcp" not in tool])
        target = "the parser"
        parser_by_name(config.parser)
    except TurnwiseError:
        raise
    except Exception as error:
        command = f"turnwise check-env {config.environment.name}"
        look = f". Look closer with: {command}" if config.agent is None else ""
        raise ConfigError(f"{target} cannot be used: {explain(error)}{look}") from error


_OPTIONS = {
    "environment": "--env",
    "agent": "--agent",
    "reward": "--reward",
    "tools": "--tool",
    "parser": "--parser",
    "dataset": "--dataset",
    "eval_dataset": "--dataset",
}
"""The options that override a setting in commands that take a run."""


@dataclass(frozen=True)
class Finder:
    """Finds the code and files that settings name; raises `ConfigError` for missing ones."""

    folders: tuple[Path, ...]
    """The folders of the settings; the current folder is searched after these."""
    run: Path | None = None
    """The run whose settings they are."""
    typed: tuple[str, ...] = ()
    """Settings typed in this command: searched for in the current folder first."""

    def find(self, name: Named) -> str:
        """Return the name that means the same in the current folder."""
        if name.text.startswith("<"):  # not importable: an error is raised where it is used
            return name.text
        if name.kind == "folder":
            return self._folder(name)
        if name.kind == "code":
            return self._code(name)
        folder = find_folder(name, self._places(name))
        if folder is None and name.kind == "rows":
            raise self._missing(name, name.text)
        return _from_here(name.text, folder)

    def _places(self, name: Named) -> list[Path]:
        is_typed = any(name.is_of(setting) for setting in self.typed)
        return [Path(), *self.folders] if is_typed else [*self.folders, Path()]

    def _code(self, name: Named) -> str:
        folder = find_folder(name, self._places(name))
        path, _, attribute = name.text.rpartition(":")
        target = name.text
        if path.endswith(".py"):
            if folder is None:
                raise self._missing(name, path)
            target = f"{_from_here(path, folder)}:{attribute}"
        name_code(target, None if folder == Path() else folder)
        return target

    def _folder(self, name: Named) -> str:
        """Return the folder in which a server is started: where the run was started."""
        if not self.folders:
            return name.text
        here = next((folder for folder in self.folders if folder.is_dir()), Path())
        return str(here / name.text)

    def _missing(self, name: Named, text: str) -> ConfigError:
        looked = dict.fromkeys(str(folder.resolve()) for folder in self._places(name)[:3])
        looked |= {str(Path.cwd()): None}
        problem = f"there is no file {text}, which the setting {name.setting} names"
        if self.run is not None:
            problem = f"{self.run} names the file {text} ({name.setting}), which is not there"
        kind = "FILE.PY:NAME" if name.kind == "code" else "FILE"
        supply = "" if self.run is None else f". {self._supply(name, kind)}"
        if "dataset" in name.setting and not Path(text).suffix:
            supply += (
                ". A dataset of the Hugging Face hub is first saved as a file: "
                "datasets.load_dataset(NAME, split='train').to_json('rows.jsonl')"
            )
        return ConfigError(f"{problem}: looked in {', '.join(looked)}{supply}")

    def _supply(self, name: Named, value: str) -> str:
        """Return the advice on how to supply what is missing."""
        words = [word for word in name.setting.split(".") if not word.isdigit()]
        options = [f"{_OPTIONS[word]} {value}" for word in reversed(words) if word in _OPTIONS]
        setting = f"with turnwise train: {name.setting.removesuffix('.0')}={value}"
        supply = f"{options[0]} ({setting})" if options else setting
        return f"Put the project back where the run finds it, or supply it: {supply}"


def _from_here(text: str, folder: Path | None) -> str:
    """Return a path in a folder relative to the current one; unchanged if it was not found."""
    path, here = Path(text).expanduser(), Path.cwd()
    if path.is_absolute():
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
    if folder is None or folder.resolve() == here.resolve():
        return text
    return str(folder / path)
