"""The section `environment`, the settings `environments` and `reward`, and checks of a mix."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.config.fields import Positive, PositiveFloat, Section, setting
from turnwise.config.sections import DatasetConfig
from turnwise.errors import ConfigError, did_you_mean

_PART_NAME = re.compile(r"[\w.-]+")
_METRICS_OF_RUNS = frozenset(
    {"eval", "time", "greedy", "sampled", "reward", "truncated", "errors", "tool_calls"}
)
"""Prefixes that metrics have already."""


@dataclass
class EnvironmentConfig(Section):
    """The environment, and its settings.

    An environment may read its settings as attributes or as from a dict: `config.max_steps`,
    `config.get("size", 4)`, `config["size"]`. What is not a field is looked up in `params`.
    """

    name: str = setting("guess-number", "A name (see `turnwise envs`) or path.py:Class.")
    max_steps: Positive | None = setting(None, "Maximum actions; null: the environment's limit.")
    params: dict[str, Any] = setting({}, "The environment's own settings.")

    @classmethod
    def of(cls, config: EnvironmentConfig | Mapping[str, Any] | None) -> EnvironmentConfig:
        """Return a config from what an environment is given: a config, a plain dict, or None."""
        if config is None:
            return cls()
        if isinstance(config, EnvironmentConfig):
            return config
        if not isinstance(config, Mapping):
            raise ConfigError(
                "an environment takes an EnvironmentConfig, a dict or None, "
                f"got {type(config).__name__}"
            )
        names = {field.name for field in dataclasses.fields(cls)}
        fields = {key: value for key, value in config.items() if key in names}
        others = {key: value for key, value in config.items() if key not in names}
        return cls(**{**fields, "params": {**config.get("params", {}), **others}})

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting by name, as a dict does; a field that is None counts as missing."""
        if key in self.params:
            return self.params[key]
        value = getattr(self, key, None)
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        if key in self:
            return self.params[key] if key in self.params else getattr(self, key)
        raise KeyError(f"environment has no setting {key!r}. {did_you_mean(key, self.params)}")

    def __contains__(self, key: object) -> bool:
        return key in self.params or key in {f.name for f in dataclasses.fields(self)}


@dataclass
class RewardItem(Section):
    """One function of a weighted reward."""

    function: str | None = setting(None, "path.py:function; null: the sum of the step rewards.")
    weight: float = setting(1.0, "Its weight in the sum.")
    name: str | None = setting(None, "Its name in the metrics; null: the function's.")


@dataclass
class EnvironmentItem(Section):
    """One environment of a mix: its share of the groups, and its own settings."""

    environment: str = field(metadata={"help": "A name (see `turnwise envs`) or path.py:Class."})
    weight: PositiveFloat = setting(1.0, "Its share of the groups, relative to others.")
    name: str | None = setting(None, "Its name in the metrics; null: the environment's.")
    max_steps: Positive | None = setting(None, "Maximum actions; null: the environment's limit.")
    params: dict[str, Any] = setting({}, "The environment's own settings.")
    dataset: DatasetConfig = field(
        default_factory=DatasetConfig, metadata={"help": "The rows that are its tasks."}
    )
    eval_dataset: DatasetConfig = field(
        default_factory=DatasetConfig, metadata={"help": "The rows that it is evaluated on."}
    )
    reward: str | list[RewardItem] | None = setting(None, "Its reward; null: the run's.")
    tools: list[str | dict[str, Any]] | None = setting(None, "Its tools; null: the run's.")
    system_prompt: str | None = setting(None, "Its system prompt; null: the run's.")


@dataclass
class PolicyItem(Section):
    """The model of one player of an environment with several."""

    model: str | None = setting(None, "A name, folder or Hugging Face id; null: the run's model.")
    trains: bool = setting(True, "Whether it learns; otherwise it plays as it is.")


def part_names(items: Sequence[EnvironmentItem]) -> list[str]:
    """Return the name of each environment of a mix: `Maze` for `games.py:Maze`, then `Maze-2`.

    >>> part_names([EnvironmentItem("games.py:Maze"), EnvironmentItem("games.py:Maze")])
    ['Maze', 'Maze-2']
    """
    taken = [item.name for item in items if item.name is not None]
    names: list[str] = []
    for item in items:
        if item.name is not None:
            names.append(item.name)
            continue
        stem = re.sub(r"[^\w.-]+", "-", item.environment.rpartition(":")[2]).strip("-.") or "part"
        numbered = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names.append(next(name for name in numbered if name not in {*taken, *names}))
    return names


def check_mix(
    items: list[EnvironmentItem],
    datasets: Mapping[str, DatasetConfig],
    data: Mapping[str, Any],
    source: str,
) -> None:
    """Refuse an empty mix, names that metrics cannot have, and settings of a single environment."""
    problem = None
    if not items:
        problem = "environments got an empty list, expected at least one environment"
    if data.get("environment", {}) not in ({}, dataclasses.asdict(EnvironmentConfig())):
        problem = "environment and environments are both given. Keep one of them."
    for name, dataset in datasets.items():
        if dataset != DatasetConfig():
            problem = (
                f"{name} and environments are both given, and rows are tasks of one environment. "
                f"Write {name} into the part of the mix that plays them."
            )
    names = part_names(items)
    if twice := next((name for name in names if names.count(name) > 1), None):
        problem = f"environments: two parts have the name {twice!r}. Give each one of its own."
    if problem is not None:
        raise ConfigError(f"{source}: {problem}")
    check_metric_names(names, f"{source}: environments")
    for item, name in zip(items, names, strict=True):
        item.name = name


def check_metric_names(names: Iterable[str], source: str) -> None:
    """Refuse names of environments or players that metrics and files cannot have."""
    for name in names:
        if not _PART_NAME.fullmatch(name) or name in _METRICS_OF_RUNS:
            raise ConfigError(
                f"{source}: the name {name!r} cannot stand in the metrics, which have names such "
                "as 'maze/reward'. Choose another one of letters, digits, dots and dashes."
            )
