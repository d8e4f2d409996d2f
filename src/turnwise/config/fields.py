"""`Section` and `setting`: settings with a default, a type and one line of help."""

import dataclasses
import typing
from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from annotated_types import Ge, Gt, Le

from turnwise.errors import ConfigError, did_you_mean

Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Seconds = PositiveFloat
Episodes = Annotated[int, Ge(1), Le(1_000_000)]
"""What a step plays is planned at once: a thousand times too many would take all memory."""
Probability = Annotated[float, Gt(0), Le(1)]

SettingTypes = Mapping[str, tuple[str, Any]]
"""Every setting by its dotted name: its line of help, and its type."""


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field with its default and its line of help."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


class Section:
    """Base of the sections: setting an unknown name is an error that suggests the nearest one."""

    # For pydantic, which checks the types: no unknown names, no infinite numbers.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    def __setattr__(self, name: str, value: Any) -> None:
        known = {f.name for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in known:
            raise ConfigError(
                f"{type(self).__name__} has no setting {name!r}. {other_name(name, known)}"
            )
        object.__setattr__(self, name, value)


def describe_settings(store: type[Section]) -> SettingTypes:
    """Return every setting of a class whose fields are sections and single settings."""
    settings: dict[str, tuple[str, Any]] = {}
    kinds = typing.get_type_hints(store, include_extras=True)
    for item in dataclasses.fields(store):  # type: ignore[arg-type]
        kind = kinds[item.name]
        if "help" in item.metadata:
            settings[item.name] = (item.metadata["help"], kind)
            continue
        hints = typing.get_type_hints(kind, include_extras=True)
        for inner in dataclasses.fields(kind):
            settings[f"{item.name}.{inner.name}"] = (inner.metadata["help"], hints[inner.name])
    return settings


def other_name(name: str, known: Collection[str]) -> str:
    """Return the end of an error: the setting that an unknown name is meant for, or near ones."""
    hint = elsewhere(name) or did_you_mean(name.rpartition(".")[2], known)
    if hint.startswith(("Did", "Here")):
        return hint
    return f"{hint} `turnwise config` prints all settings."


def elsewhere(name: str) -> str | None:
    """Return our setting for one that has this name in other libraries; None for other names.

    >>> elsewhere("num_generations")
    'Here it is training.group_size.'
    """
    word = name.rpartition(".")[2].lower().replace("-", "_")
    ours = _other_libraries()["settings"].get(word)
    return None if ours is None else f"Here it is {ours}."


def answer_algorithm(name: str) -> str | None:
    """Return our settings of an algorithm that has this name elsewhere; None for other names."""
    return _other_libraries()["algorithms"].get(name.lower())


@cache
def _other_libraries() -> dict[str, dict[str, str]]:
    """Return the words of TRL, verl, verifiers, OpenRLHF and peft, answered with ours.

    A user who brings a config from there gets the right name instead of one that is spelt alike.
    """
    file = Path(__file__).with_name("other_libraries.yaml")
    words: dict[str, dict[str, str]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return words
