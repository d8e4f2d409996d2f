"""`ConfigStore`: every setting of a run, read from YAML files and overrides, and written."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from turnwise.config.environment import (
    EnvironmentConfig,
    EnvironmentItem,
    PolicyItem,
    RewardItem,
    check_metric_names,
    check_mix,
    part_names,
)
from turnwise.config.fields import Section, SettingTypes, describe_settings, setting
from turnwise.config.reading import apply_override, checked, full_section
from turnwise.config.sections import (
    CheckpointConfig,
    DatasetConfig,
    InferenceConfig,
    LimitsConfig,
    LoggingConfig,
    ModelConfig,
    RayConfig,
    TrainingConfig,
)
from turnwise.errors import ConfigError
from turnwise.whole_files import write_whole
from turnwise.yaml_files import dump, read_yaml

RUN = "<run>"
"""Stands for the run's own folder in its settings, as in `<run>/dataset.jsonl`."""
_OF_ONE_ENVIRONMENT = ("environment", "dataset", "eval_dataset")
"""Sections that a mix does not have: each of its environments has its own."""
_MOST_NAMES = 4


@dataclass
class ConfigStore(Section):
    """Every setting of a run. The defaults train the tiny model on a CPU, offline."""

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    environments: list[EnvironmentItem] | None = setting(
        None,
        "A mix, instead of `environment`: a list of {environment, weight, name, max_steps, params, "
        "dataset, eval_dataset, reward, tools, system_prompt}.",
    )
    policies: dict[str, PolicyItem] = setting(
        {}, "Models of players: {player: {model, trains}}; the run's own model plays the others."
    )
    agent: str | None = setting(
        None, "Instead of environment: file.py:function of (task, llm), or a command with {task}."
    )
    expert: str | None = setting(
        None, "An agent's expert for a warm start: file.py:function of (messages, tools) -> reply."
    )
    reward: str | list[RewardItem] | None = setting(
        None, "path.py:function, or a list of {function, weight}; null: sum of the step rewards."
    )
    tools: list[str | dict[str, Any]] = setting(
        [], "calculator, python, path.py:name, {mcp: command or URL}, {tool: name, option: value}."
    )
    parser: str = setting("auto", "The format of tool calls; auto: that of the chat template.")
    system_prompt: str | None = setting(None, "System prompt, before the environment's own.")
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    eval_dataset: DatasetConfig = field(default_factory=DatasetConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def validate(self) -> Self:
        """Check every value, convert it to its type (such as "3e-5"), and return self."""
        right = _read(dataclasses.asdict(self), source="config")
        for section in dataclasses.fields(right):
            setattr(self, section.name, getattr(right, section.name))
        return self

    @classmethod
    def of(cls, config: Any) -> ConfigStore:
        """Return checked settings from what a trainer is given.

        That is settings, nested dicts such as `{"training": {"batch_size": 8}}`, the path of a YAML
        file, or None.
        """
        if config is None:
            return cls()
        if isinstance(config, ConfigStore):
            return config.validate()
        if isinstance(config, Mapping):
            return _read(dict(config), source="config")
        if isinstance(config, str | Path):
            return cls.load(config)
        got: str = config.__name__ if isinstance(config, type) else type(config).__name__
        raise ConfigError(
            f"config got {got}, expected a ConfigStore, a dict of sections, or the path of a YAML "
            "file. Settings come first, then the environment: Trainer(config, MyEnvironment)."
        )

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> ConfigStore:
        """Read a YAML file (none: the defaults), then apply `section.name=value` overrides."""
        data = read_yaml(Path(path)) if path is not None else {}
        given = {apply_override(data, each, setting_types()): each for each in overrides}
        config = _read(data, str(path) if path is not None else "config", given)
        if path is not None:
            # `<run>` is the run's folder; the settings may be those of a checkpoint.
            folder = Path(path).absolute().parent
            run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
            for _, dataset in config.datasets():
                if any(file.startswith(RUN) for file in dataset.paths):
                    dataset.path = [file.replace(RUN, str(run), 1) for file in dataset.paths]
        return config

    @classmethod
    def from_args(cls, argv: Sequence[str] | None = None) -> ConfigStore:
        """Return the settings of a script's command line.

        `main.py --config-path=config --config-name=test training.batch_size=8`
        """
        parser = argparse.ArgumentParser(description="turnwise settings")
        parser.add_argument("--config-path", metavar="DIR", help="folder of the YAML file")
        parser.add_argument("--config-name", metavar="NAME", help="its name, with or without .yaml")
        parser.add_argument("overrides", nargs="*", metavar="section.name=value")
        args = parser.parse_args(argv)
        return cls.load(find_config(args.config_path, args.config_name), args.overrides)

    def save(self, path: str | Path) -> None:
        """Write a YAML file with each setting's help; the file is written whole or not at all."""
        content = self.to_yaml().encode()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(Path(path), content)

    def to_yaml(self) -> str:
        """Return the settings as YAML, each under its line of help."""
        self.validate()
        lines: list[str] = []
        for section in dataclasses.fields(self):
            if self.environments is not None and section.name in _OF_ONE_ENVIRONMENT:
                continue
            if self.agent is not None and section.name == "environment":
                continue
            values = getattr(self, section.name)
            if "help" in section.metadata:  # a single setting
                lines += [*_yaml_lines(section, values), ""]
                continue
            lines += [f"# {(type(values).__doc__ or '').splitlines()[0]}", f"{section.name}:"]
            for item in dataclasses.fields(values):
                shown = _yaml_lines(item, getattr(values, item.name))
                lines += [f"  {line}" if line else "" for line in shown]
            lines.append("")
        return "\n".join(lines)

    def parts(self) -> dict[str, ConfigStore]:
        """The settings of each environment of a mix, as if it were the only one, by its name.

        Without a mix they are the settings themselves, under the empty name.
        """
        if self.environments is None:
            return {"": self}
        parts = {}
        for name, item in zip(part_names(self.environments), self.environments, strict=True):
            shared = {key: getattr(item, key) for key in ("reward", "tools", "system_prompt")}
            parts[name] = dataclasses.replace(
                self,
                environments=None,
                environment=EnvironmentConfig(item.environment, item.max_steps, item.params),
                dataset=item.dataset,
                eval_dataset=item.eval_dataset,
                **{key: value for key, value in shared.items() if value is not None},
            )
        return parts

    def datasets(self) -> Iterator[tuple[str, DatasetConfig]]:
        """Yield each dataset of the run with a name: `eval_dataset`, or `dataset-maze` of a mix."""
        items = self.environments or []
        owners: list[ConfigStore | EnvironmentItem] = [self, *items]
        endings = ["", *(f"-{name}" for name in part_names(items))]
        for ending, owner in zip(endings, owners, strict=True):
            yield f"dataset{ending}", owner.dataset
            yield f"eval_dataset{ending}", owner.eval_dataset

    @property
    def environment_name(self) -> str:
        """The name of the run's environment or agent, or the joined names of a mix."""
        if self.environments is None:
            return self.environment.name if self.agent is None else self.agent
        names = part_names(self.environments)
        if len(names) > _MOST_NAMES:  # the run's folder is named after them
            names[_MOST_NAMES - 1 :] = [f"{len(names) - _MOST_NAMES + 1}-more"]
        return "+".join(names)

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Yield every setting by its dotted name, `training.gamma` or `parser`, with its value."""
        for name in setting_types():
            yield name, operator.attrgetter(name)(self)


@functools.cache  # used for each override; resolving the annotations takes milliseconds
def setting_types() -> SettingTypes:
    """Return every setting by its dotted name, with its line of help and its type."""
    return describe_settings(ConfigStore)


def find_config(folder: str | Path | None, name: str | None) -> Path | None:
    """Return the file that `--config-path` and `--config-name` name; None if neither is given."""
    if folder is None and name is None:
        return None
    path = Path(folder or ".") / (name or "config")
    return path if path.suffix in {".yaml", ".yml"} else path.with_name(path.name + ".yaml")


def _read(
    data: dict[str, Any], source: str, overrides: dict[str, str] | None = None
) -> ConfigStore:
    """Return settings from nested mappings as a YAML file has them, short forms included."""
    full = {}
    for name, given in data.items():
        is_empty_section = given is None and name not in setting_types()
        full[name] = {} if is_empty_section else full_section(name, given)
    store = checked(ConfigStore, full, source, overrides or {})
    if store.environments is not None:
        datasets = {"dataset": store.dataset, "eval_dataset": store.eval_dataset}
        check_mix(store.environments, datasets, full, source)
    check_metric_names(store.policies, f"{source}: policies")
    default = ConfigStore()
    for name in ("environment", "environments", "tools", "system_prompt"):
        if store.agent is not None and getattr(store, name) != getattr(default, name):
            raise ConfigError(
                f"{source}: agent and {name} are both given, and an agent has its own loop, tools "
                "and prompts. Keep one of them."
            )
    return store


def _yaml_lines(item: dataclasses.Field[Any], value: Any) -> list[str]:
    text = dump({item.name: _plain(value)})
    return [f"# {item.metadata['help']}", *text.rstrip("\n").split("\n")]


def _plain(value: Any) -> Any:
    """Return a value for YAML; of an inner mapping of settings, what is not the default."""
    if isinstance(value, Section):
        plain = {}
        for item in dataclasses.fields(value):  # type: ignore[arg-type]
            inner, make = getattr(value, item.name), item.default_factory
            if inner != (item.default if make is dataclasses.MISSING else make()):
                plain[item.name] = _plain(inner)
        return plain
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
