"""The settings that a command works with: of a file or a run, and what its options override.

A run folder records environment, reward, tools, parser, system prompt and dataset by name, relative
to the folder in which the run began. If one cannot be found or imported (a class of a notebook),
the error names the option that supplies it.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.common import parameter_overrides, say
from turnwise.cli.run_paths import run_containing
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.runs.places import Named, find_folder, find_models, places_of, rewrite_names
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
    from turnwise.env.catalog import ADAPTERS, BUILT_IN

    overrides, files, environments = [], [], []
    for word in words:
        is_near = bool(difflib.get_close_matches(word, BUILT_IN, n=1, cutoff=0.8))
        is_environment = is_near or word.partition(":")[0] in ADAPTERS or names_code(word)
        if _OVERRIDE.match(word):
            overrides.append(word)
        elif word.endswith(".py") and Path(word).exists():
            raise ConfigError(
                f"{word} is Python code, expected a YAML file or an environment. Name the class in "
                f"it: {word}:ClassName"
            )
        elif Path(word).exists() or word.endswith((".yaml", ".yml")) or not is_environment:
            files.append(word)
        else:
            environments.append(word)
    if environments:
        overrides.insert(0, f"environment.name={environments[-1]}")
    named_file = find_config(config_path, config_name)
    if named_file is not None:
        files.append(str(named_file))
    if len(files) > 1:
        raise ConfigError(
            f"got more than one configuration file: {', '.join(files)}. Name one; a setting is "
            "written section.name=value, for example training.batch_size=8"
        )
    return (Path(files[0]) if files else None), overrides


@dataclass(frozen=True)
class Overrides:
    """What the options of a command override in the settings of a run; None keeps the run's own."""

    env: str | None = None
    param: list[str] | None = None
    max_steps: int | None = None
    reward: str | None = None
    dataset: list[str] | None = None
    tool: list[str] | None = None
    parser: str | None = None
    system_prompt: str | None = None
    model: str | None = None
    part: str | None = None
    agent: str | None = None
    """An agent that calls the model over HTTP."""

    @classmethod
    def typed(cls, options: Mapping[str, Any], **more: Any) -> Overrides:
        """Return those that a command has among its options (`ctx.params`)."""
        given = {field.name: options.get(field.name) for field in dataclasses.fields(cls)} | more
        # An option that may be repeated has an empty list where it was not given.
        return cls(**{name: None if value in ([], ()) else value for name, value in given.items()})

    def allow_code(self, player: str | None = None) -> None:
        """Allow the code that the options and `player` name: the user typed the names."""
        if self.agent is not None:
            from turnwise.trainer.components import remember_agent  # late: it imports torch

            remember_agent(self.agent)
        for name in (self.env, self.agent, self.reward, self.parser, player, *(self.tool or ())):
            if name is not None:
                name_code(name)

    def put_into(self, config: ConfigStore) -> None:
        """Write the options into the settings.

        Another environment drops the run's dataset, reward and tools, which belong to the old one.
        They are kept if it replaces an environment that cannot be restored. Another agent keeps the
        dataset and the reward: it does the same tasks.
        """
        from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig

        parts = config.parts()
        if self.part is not None:
            if config.environments is None or self.part not in parts:
                known = did_you_mean(self.part, parts) if config.environments else "It has no mix."
                raise ConfigError(f"--part got {self.part!r}, which the run does not have. {known}")
            for field in dataclasses.fields(config):
                setattr(config, field.name, getattr(parts[self.part], field.name))
        elif config.environments is not None and self.env is None:
            options = {"dataset": self.dataset, "param": self.param, "max-steps": self.max_steps}
            for option in (name for name, value in options.items() if value):
                raise ConfigError(
                    f"--{option} is for one environment, and the run has a mix: "
                    f"{', '.join(parts)}. Name one of them: --part {next(iter(parts))}"
                )
        is_lost = config.environments is None and config.environment.name.startswith("<")
        if self.env is not None and is_lost:
            config.environment.name = self.env
        elif self.env is not None:
            config.environments = config.agent = config.expert = None
            config.environment = EnvironmentConfig(name=self.env)
            config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
            config.reward, config.tools = None, []
        if self.agent is not None:
            if not (config.agent or "").startswith("<"):  # the expert is the other agent's
                config.expert = config.training.warm_start = None
            config.agent = self.agent
        typed = ConfigStore.load(overrides=parameter_overrides(self.param))
        config.environment.params |= typed.environment.params
        if self.max_steps is not None:
            config.environment.max_steps = self.max_steps
        for item in config.environments or ():  # an override applies to all of them
            item.reward = None if self.reward is not None else item.reward
            item.tools = None if self.tool else item.tools
            item.system_prompt = None if self.system_prompt is not None else item.system_prompt
        if self.dataset:
            config.eval_dataset = DatasetConfig(path=self.dataset, columns=config.dataset.columns)
            config.dataset = DatasetConfig()
        config.tools = list(self.tool or config.tools)
        for name in ("reward", "parser", "system_prompt"):
            if (value := getattr(self, name)) is not None:
                setattr(config, name, value)
        if config.agent is not None:
            config.validate()  # an agent takes no tools and no parameters of an environment


def read_settings(source: Path) -> ConfigStore:
    """Return the settings of a run or of a checkpoint, without its model."""
    from turnwise.config import ConfigStore
    from turnwise.runs.run_folder import RunFolder

    file = source / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{source} has no config.yaml: the run ended before it wrote its settings"
        )
    config = ConfigStore.load(file)
    find_models(config, places_of(run_containing(source)))
    if RunFolder(run_containing(source)).evaluated_on == "training rows":
        config.training.eval_fraction = None  # it has trained on all rows
    return config


def open_settings(
    source: Path | None,
    overrides: Overrides,
    *,
    takes_mix: bool = False,
    is_checked: bool = True,
) -> ConfigStore:
    """Return the settings of a run or a checkpoint (None: the defaults) with the overrides.

    A mix of environments is refused unless the command `takes_mix`. The code that the settings name
    is found, and imported if `is_checked`; otherwise the command itself reports what fails. Which
    of the run's own components have changed since is printed to the standard error.
    """
    from turnwise.config import ConfigStore
    from turnwise.env.catalog import PROMPTS
    from turnwise.runs.run_folder import RunFolder

    config = ConfigStore() if source is None else read_settings(source)
    if source is not None and config.environments is None and config.agent is None:
        from turnwise.trainer.components import UserComponents, find_environment

        # The rows of a dataset without an environment are prompts. Named before the overrides:
        # other rows do not make it another environment.
        if find_environment(UserComponents(), config) == PROMPTS:
            config.environment.name = PROMPTS
    overrides.put_into(config)
    if config.environments is not None and not takes_mix:
        names = ", ".join(config.parts())
        raise ConfigError(
            f"{source} is a run with a mix of environments, and this command plays in one of them: "
            f"{names}. Name it: --part {next(iter(config.parts()))}"
        )
    run = None if source is None else run_containing(source)
    typed = [name for name, value in vars(overrides).items() if value]
    if overrides.dataset:
        typed.append("eval_dataset")
    find_code(config, [] if run is None else places_of(run), run=run, typed=typed)
    if not is_checked:
        return config
    check_code(config)
    before = {} if run is None else RunFolder(run).status.get("identity")
    if not isinstance(before, dict) or not before or overrides.env is not None:
        return config
    from turnwise.trainer.components import UserComponents
    from turnwise.trainer.recording import identity

    changed: dict[str, None] = {}
    for part, settings in config.parts().items():
        ending = f" of {overrides.part or part}" if overrides.part or part else ""
        for name, value in identity(UserComponents().filled_from(settings), settings).items():
            known = before.get(f"{name}{ending}", before.get(name, value))
            if known != value and not getattr(overrides, name, None):
                changed[f"the {name.replace('_', ' ')}{ending}"] = None
    if changed:
        say(
            f"{' and '.join(changed)} changed since the run in {run} began: this command uses the "
            "present version",
            err=True,
        )
    return config


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

    def find(name: Named) -> str:
        if name.text.startswith("<"):  # not importable: an error is raised where it is used
            return name.text
        if name.kind == "folder":  # in which a server is started: where the run was started
            start = next((folder for folder in folders if folder.is_dir()), Path())
            return str(start / name.text) if folders else name.text
        is_typed = any(name.is_of(setting) for setting in typed)
        searched = [Path(), *folders] if is_typed else [*folders, Path()]
        folder = find_folder(name, searched)
        if name.kind != "code":
            if folder is None and name.kind == "rows":
                raise _missing(name, name.text, searched, run)
            return _from_here(name.text, folder)
        target = name.text
        path, _, attribute = target.rpartition(":")
        if path.endswith(".py"):
            if folder is None:
                raise _missing(name, path, searched, run)
            target = f"{_from_here(path, folder)}:{attribute}"
        name_code(target, None if folder == Path() else folder)
        return target

    rewrite_names(config, find)


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
        # `package.module:Class` is found from the folder, and `file.py:Class` can import its
        # neighbours, as `python file.py` can.
        folders = ["" if folder is None else str(folder)]
        if (module := target.rpartition(":")[0]).endswith(".py"):
            folders.append(str(Path(module).resolve().parent))
        sys.path[:0] = [path for path in folders if path not in sys.path]


def _missing(name: Named, text: str, searched: Sequence[Path], run: Path | None) -> ConfigError:
    looked = ", ".join(dict.fromkeys(str(path.resolve()) for path in [*searched[:3], Path()]))
    problem = f"there is no file {text}, which the setting {name.setting} names: looked in {looked}"
    if run is not None:
        options = {"environment": "--env", "tools": "--tool", "eval_dataset": "--dataset"}
        options |= {word: f"--{word}" for word in ("agent", "reward", "parser", "dataset")}
        named = [options[word] for word in name.setting.split(".") if word in options]
        supply = " or ".join([*named[-1:], f"turnwise train: {name.setting}=..."])
        problem += (
            f". Put the project of {run} back where the run finds it, or supply it with {supply}"
        )
    if "dataset" in name.setting and not Path(text).suffix:
        problem += (
            ". A dataset of the Hugging Face hub is first saved as a file: "
            "datasets.load_dataset(NAME, split='train').to_json('rows.jsonl')"
        )
    return ConfigError(problem)


def _from_here(text: str, folder: Path | None) -> str:
    """Return a path in a folder relative to the current one; unchanged if it was not found."""
    path, here = Path(text).expanduser(), Path.cwd()
    if path.is_absolute():
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
    if folder is None or folder.resolve() == here.resolve():
        return text
    return str(folder / path)


def check_code(config: ConfigStore) -> None:
    """Import the user's code and make each environment once, since a failure would repeat.

    The errors are brief, without a traceback.
    """
    from turnwise.env.catalog import environment_factory
    from turnwise.env.checker.harness import explain
    from turnwise.env.driver import close_environment
    from turnwise.reward.combine import reward_by_name
    from turnwise.tools.by_name import parser_by_name, tools_by_name

    for part, settings in config.parts().items():
        where = f"the environment {part} of the mix: " if part else ""
        checked = settings.environment_name
        try:
            if settings.agent is None:
                environment = environment_factory(checked, settings.environment)()
                # It was never reset, so its `close` may fail or hang.
                close_environment(environment, settings.limits.close_timeout)
            else:
                from turnwise.trainer.components import (  # late: it imports torch
                    find_agent,
                    find_expert,
                )

                find_expert(None, settings, find_agent(None, settings))
            checked = "the reward"
            reward_by_name(settings.reward)
            checked = "a tool"
            tools_by_name([tool for tool in settings.tools if "mcp" not in tool])
            checked = "the parser"
            parser_by_name(settings.parser)
        except ConfigError as error:
            if not part:
                raise
            raise ConfigError(f"{where}{error}") from error
        except TurnwiseError:
            raise
        except Exception as error:
            command = f"turnwise check-env {settings.environment.name}"
            look = f". Look closer with: {command}" if settings.agent is None else ""
            raise ConfigError(f"{where}{checked} cannot be used: {explain(error)}{look}") from error
