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
from typing import Any

from turnwise.cli.common import parameter_overrides, say
from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig, find_config
from turnwise.env.catalog import ADAPTERS, BUILT_IN, adapter_code, environment_factory
from turnwise.env.checker.harness import explain
from turnwise.env.driver import close_environment
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.reward.function import reward_by_name
from turnwise.runs.places import base_folders, find_folder, find_models, names_in, servers_in
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.user_code import names_code, remember_agent, require_code

_OVERRIDE = re.compile(r"\+?[\w.]+=")
_OPTIONS = {
    "environment": "--env",
    "tools": "--tool",
    "eval_dataset": "--dataset",
    **{name: f"--{name}" for name in ("agent", "reward", "parser", "dataset")},
}
"""The option that supplies what a setting names."""


def split_arguments(
    words: Sequence[str], config_path: str | None, config_name: str | None
) -> tuple[Path | None, list[str]]:
    """Return the configuration file, if one is named, and the overrides `section.name=value`.

    A word may also be an environment, which becomes the first override.
    """
    overrides, files, environments = [], [], []
    for word in words:
        is_near = bool(difflib.get_close_matches(word, BUILT_IN, n=1, cutoff=0.8))
        is_environment = is_near or word.partition(":")[0] in ADAPTERS or names_code(word)
        if _OVERRIDE.match(word):
            overrides.append(word)
        elif word.endswith(".py") and Path(word).exists():
            raise ConfigError(
                f"{word} is Python code, expected a YAML file or an environment: {word}:ClassName"
            )
        elif Path(word).exists() or word.endswith((".yaml", ".yml")) or not is_environment:
            files.append(word)
        else:
            environments.append(word)
    if environments:
        overrides.insert(0, f"environment.name={environments[-1]}")
    if (named_file := find_config(config_path, config_name)) is not None:
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
        remember_agent(self.agent)
        for name in (self.env, self.agent, self.reward, self.parser, player, *(self.tool or ())):
            if name is not None:
                name_code(name)

    def put_into(self, config: ConfigStore) -> None:
        """Write the options into the settings.

        Another environment drops the run's dataset, reward and tools, unless it replaces one that
        cannot be restored. Another agent keeps the dataset and the reward: it does the same tasks.
        """
        parts = config.parts()
        if self.part is not None:
            if config.environments is None or self.part not in parts:
                known = did_you_mean(self.part, parts) if config.environments else "It has no mix."
                raise ConfigError(f"--part got {self.part!r}, which the run does not have. {known}")
            for field in dataclasses.fields(config):
                setattr(config, field.name, getattr(parts[self.part], field.name))
        is_for_one = bool(self.dataset or self.param or self.max_steps)
        if config.environments and not self.env and is_for_one:
            raise ConfigError(
                "--dataset, --param and --max-steps are for one environment, and the run has a "
                f"mix. Name one of them with --part: {', '.join(parts)}"
            )
        if self.env is not None:
            if config.environments is not None or not config.environment.name.startswith("<"):
                _drop_task(config)
                config.tools = []
            config.environment.name = self.env
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
    file = source / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{source} has no config.yaml: the run ended before it wrote one")
    config = ConfigStore.load(file)
    find_models(config, base_folders(run_containing(source)))
    if RunFolder(run_containing(source)).evaluated_on == "training rows":
        config.training.eval_fraction = None  # it has trained on all rows
    return config


def _drop_task(config: ConfigStore) -> None:
    """Put the defaults in place of what a run plays: its environments, agent, dataset, reward."""
    config.environments = config.agent = config.expert = config.reward = None
    config.environment = EnvironmentConfig()
    config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()


def open_settings(
    source: Path | None,
    overrides: Overrides,
    *,
    takes_mix: bool = False,
    is_checked: bool = True,
    plays: bool = True,
    has_tools: bool = True,
) -> ConfigStore:
    """Return the settings of a run or a checkpoint (None: the defaults) with the overrides.

    A mix of environments is refused unless the command `takes_mix`. The code that the settings name
    is found; if `is_checked`, it is also imported, and what of it changed since the run is printed.
    A command that does not play leaves out what is played; without `has_tools`, the tools too.
    """
    config = ConfigStore() if source is None else read_settings(source)
    if not plays:
        _drop_task(config)
    if not has_tools:
        config.tools = []
    overrides.put_into(config)
    if config.environments is not None and not takes_mix:
        raise ConfigError(
            f"{source} has a mix of environments, and this command plays in one of them. "
            f"Name it with --part: {', '.join(config.parts())}"
        )
    run = None if source is None else run_containing(source)
    typed = [
        name for name, option in _OPTIONS.items() if getattr(overrides, option.removeprefix("--"))
    ]
    find_code(config, [] if run is None else base_folders(run), run=run, typed=typed)
    if not is_checked or not plays:
        return config
    check_code(config)
    before = None if run is None else RunFolder(run).status.get("identity")
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
        what = f"{' and '.join(changed)} changed since the run in {run} began"
        say(f"{what}: this command uses the present version", err=True)
    return config


def find_code(
    config: ConfigStore,
    folders: Sequence[Path],
    *,
    run: Path | None = None,
    typed: Sequence[str] = (),
) -> None:
    """Find the code and files that the settings name, and rewrite the names for this folder.

    `folders`, in which a run began, are searched before the current one, but for what is `typed`.
    """
    if folders:
        for server in servers_in(config):
            server.setdefault("cwd", ".")  # where the run was started
    for name in names_in(config):
        if name.text.startswith("<"):  # not importable: an error is raised where it is used
            continue
        is_typed = any(f"{name.setting}.".startswith(f"{setting}.") for setting in typed)
        searched = [Path(), *folders] if is_typed else [*folders, Path()]
        folder = find_folder(name, searched)
        file, _, attribute = name.text.rpartition(":")
        is_file = name.kind == "rows" or (name.kind == "code" and file.endswith(".py"))
        if folder is None and is_file:
            looked = ", ".join(dict.fromkeys(str(folder.resolve()) for folder in searched))
            missing = file if name.kind == "code" else name.text
            problem = f"there is no file {missing} ({name.setting}): looked in {looked}"
            if run is not None:
                named = [_OPTIONS[word] for word in name.setting.split(".") if word in _OPTIONS]
                supply = " or ".join([*named[-1:], f"turnwise train: {name.setting}=..."])
                problem += f". Put the project of {run} back there, or supply it with {supply}"
            elif name.kind == "rows" and not Path(name.text).suffix:
                save = "datasets.load_dataset(NAME, split='train').to_json('rows.jsonl')"
                problem += f". A dataset of the Hugging Face hub is first saved as a file: {save}"
            raise ConfigError(problem)
        text = name.text
        if name.module is None and folder is not None and folder.resolve() != Path.cwd():
            path, ending = (file, f":{attribute}") if name.kind == "code" else (text, "")
            text = f"{folder / Path(path).expanduser()}{ending}"
            name.replace(text)
        if name.kind == "code":
            name_code(text, None if folder == Path() else folder)


def name_code(target: str, folder: Path | None = None) -> None:
    """Allow code to be imported that the user or a trusted folder names, and make it importable:
    from `folder` first; None is the current one."""
    is_adapted = target.partition(":")[0] in ADAPTERS
    code = adapter_code(target) if is_adapted else target
    if code is not None and (is_adapted or names_code(code)):
        require_code(code, folder or Path.cwd())
        # `package.module:Class` is found from the folder, and `file.py:Class` can import its
        # neighbours, as `python file.py` can.
        folders = ["" if folder is None else str(folder)]
        if (module := target.rpartition(":")[0]).endswith(".py"):
            folders.append(str(Path(module).resolve().parent))
        sys.path[:0] = [path for path in folders if path not in sys.path]


def check_code(config: ConfigStore) -> None:
    """Import the user's code and make each environment once; the errors have no traceback."""
    for part, settings in config.parts().items():
        where = f"the environment {part} of the mix: " if part else ""
        checked = settings.environment_name
        try:
            if settings.agent is None:
                environment = environment_factory(checked, settings.environment)()
                # It was never reset, so its `close` may fail or hang.
                close_environment(environment, settings.limits.close_timeout)
            else:
                from turnwise.trainer import components  # late: it imports torch

                components.find_expert(None, settings, components.find_agent(None, settings))
            checked = "the reward"
            reward_by_name(settings.reward)
            checked = "a tool"
            tools_by_name([tool for tool in settings.tools if "mcp" not in tool])
            checked = "the parser"
            parser_by_name(settings.parser)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from error
        except TurnwiseError:
            raise
        except Exception as error:
            command = f"turnwise check-env {settings.environment.name}"
            look = f". Look closer with: {command}" if settings.agent is None else ""
            raise ConfigError(f"{where}{checked} cannot be used: {explain(error)}{look}") from error
