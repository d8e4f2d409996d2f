"""`Section` and `setting`: settings with a default, a type and one line of help."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from turnwise.config.other_libraries import answer_setting
from turnwise.errors import ConfigError, did_you_mean

Positive = Annotated[int, Ge(1)]
Episodes = Annotated[int, Ge(1), Le(1_000_000)]
"""What a step plays is planned at once: a thousand times too many would take all memory."""
Probability = Annotated[float, Gt(0), Le(1)]
Seconds = Annotated[float, Gt(0)]

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
                f"{type(self).__name__} has no setting {name!r}. "
                f"{answer_setting(name) or did_you_mean(name, known)}"
            )
        object.__setattr__(self, name, value)


def setting_types_of(store: type[Section]) -> SettingTypes:
    """Return every setting of a class whose fields are sections and single settings."""
    found: dict[str, tuple[str, Any]] = {}
    kinds = typing.get_type_hints(store)
    for item in dataclasses.fields(store):  # type: ignore[arg-type]
        kind = kinds[item.name]
        if "help" in item.metadata:
            found[item.name] = (item.metadata["help"], kind)
            continue
        hints = typing.get_type_hints(kind)
        for inner in dataclasses.fields(kind):
            found[f"{item.name}.{inner.name}"] = (inner.metadata["help"], hints[inner.name])
    return found
