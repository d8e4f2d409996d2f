"""Short forms in YAML files, and overrides `section.name=value`."""

from __future__ import annotations

import types
import typing
from typing import Any

from turnwise.config.fields import SettingTypes
from turnwise.errors import ConfigError
from turnwise.yaml_files import parse_value

SHORT_SECTIONS = ("dataset", "eval_dataset")
"""Sections that may be written as their path alone."""


def full_section(name: str, value: Any, is_single: bool = False) -> Any:
    """Return a section of a YAML file in full; it may be empty or in a short form."""
    if name in SHORT_SECTIONS and isinstance(value, str | list):
        return {"path": value}
    if name == "environments" and isinstance(value, list):
        return [full_item(item) for item in value]
    return {} if value is None and not is_single else value


def full_item(item: Any) -> Any:
    """Return an environment of a mix in full; it may be its name alone, its dataset a path."""
    if isinstance(item, str):
        return {"environment": item}
    if not isinstance(item, dict):
        return item
    rows = {name: full_section(name, item[name]) for name in SHORT_SECTIONS if name in item}
    return {**item, **rows}


def apply_override(data: dict[str, Any], override: str, known: SettingTypes) -> str:
    """Put one `section.name=value` into the nested mapping, and return the name that it sets."""
    key, equals, raw = override.partition("=")
    path = key.strip().lstrip("+").split(".")
    may_be_alone = path[0] in known or path[0] in SHORT_SECTIONS
    if not equals or not all(path) or (len(path) == 1 and not may_be_alone):
        inside = [full for full in known if full.endswith(f".{key.strip()}")]
        example = f"{inside[0]}={raw}" if inside else "training.learning_rate=3e-5"
        raise ConfigError(
            f"cannot read the override {override!r}. Write section.name=value, "
            f"for example {example}"
        )
    value = parse_value(raw)
    kind = known.get(".".join(path), ("", None))[1]
    if value is not None and not isinstance(value, str) and _takes_text_for(value, kind):
        value = raw  # model.model_name=123 names a model
    place = data
    if path[0] == "environments" and len(path) > 1:
        place, path = _item_of(data, path, override)
    for part in path[:-1]:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot apply {override!r}: {part!r} is a value, not a section")
        place = inner
    place[path[-1]] = value
    return key.strip().lstrip("+")


def _item_of(
    data: dict[str, Any], path: list[str], override: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the environment that `environments.0.weight` means, and the path inside it."""
    items = data.get("environments")
    number = len(items) if isinstance(items, list) else 0
    if len(path) < 3 or not path[1].isdecimal() or int(path[1]) >= number:
        raise ConfigError(
            f"cannot apply {override!r}: the file has {number} environments. Write the number of "
            "one, counted from 0, and its setting: environments.0.weight=2"
        )
    assert isinstance(items, list)
    found = items[int(path[1])] = full_item(items[int(path[1])])
    return found, path[2:]


def _takes_text_for(value: Any, kind: Any) -> bool:
    """Return whether a type takes text but not the number or list that the text looks like."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    kinds = typing.get_args(kind) if is_union else (kind,)
    takes_lists = any(typing.get_origin(one) is list for one in kinds)
    return str in kinds and not (takes_lists and isinstance(value, list))
