"""Reads settings from nested mappings: short forms, overrides, errors that name each problem."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from turnwise.config.environment import EnvironmentItem
from turnwise.config.fields import Section, SettingTypes, setting_types_of
from turnwise.config.other_libraries import answer_setting
from turnwise.errors import ConfigError, did_you_mean
from turnwise.yaml_files import line_of, parse_value

SHORT_SECTIONS = {
    "model": "model_name",
    "environment": "name",
    "dataset": "path",
    "eval_dataset": "path",
}
"""Sections that may be written as one setting alone, such as `model: tiny`."""
_DATASETS = ("dataset", "eval_dataset")

Store = TypeVar("Store", bound=Section)


def full_section(name: str, value: Any, is_single: bool = False) -> Any:
    """Return a section of a YAML file in full; it may be empty or in a short form."""
    is_short = isinstance(value, str) or (name in _DATASETS and isinstance(value, list))
    if name in SHORT_SECTIONS and is_short:
        return {SHORT_SECTIONS[name]: value}
    if name == "environments" and isinstance(value, list):
        return [full_item(item) for item in value]
    return {} if value is None and not is_single else value


def full_item(item: Any) -> Any:
    """Return an environment of a mix in full; it may be its name alone, its dataset a path."""
    if isinstance(item, str):
        return {"environment": item}
    if not isinstance(item, dict):
        return item
    rows = {name: full_section(name, item[name]) for name in _DATASETS if name in item}
    return {**item, **rows}


def apply_override(data: dict[str, Any], override: str, known: SettingTypes) -> str:
    """Put one `section.name=value` into the nested mapping, and return the name that it sets."""
    key, equals, raw = override.partition("=")
    path = key.strip().lstrip("+").split(".")
    may_be_alone = path[0] in known or path[0] in SHORT_SECTIONS
    if not equals or not all(path) or (len(path) == 1 and not may_be_alone):
        names = {full.rpartition(".")[2]: full for full in reversed(list(known))}
        near = difflib.get_close_matches(key.strip(), names, n=1, cutoff=0.8)
        example = f"{names[near[0]]}={raw}" if near else "training.learning_rate=3e-5"
        elsewhere = None if near else answer_setting(key.strip())
        raise ConfigError(
            f"cannot read the override {override!r}. "
            + (elsewhere or f"Write section.name=value, for example {example}")
        )
    value = parse_value(raw)
    kind = known.get(".".join(path), ("", None))[1]
    if value is not None and not isinstance(value, str) and _takes_text_for(value, kind):
        value = raw  # model.model_name=123 names a model
    place = data
    if path[0] == "environments" and len(path) > 1:
        place, path = _item_of(data, path, override)
    if place is data and path in (["model"], ["environment"]):  # its other settings stay
        path = [*path, SHORT_SECTIONS[path[0]]]
    for part in path[:-1]:
        inner = place.get(part)
        if inner is None or (place is data and part in SHORT_SECTIONS):
            inner = place[part] = full_section(part, inner)
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


@cache
def _adapter(store: type[Any]) -> Any:
    # Imported here: pydantic takes long to import, and only checks need it.
    from pydantic import TypeAdapter

    return TypeAdapter(store)


def checked(
    store: type[Store], data: dict[str, Any], source: str, overrides: Mapping[str, str]
) -> Store:
    """Return the settings of nested mappings without short forms.

    The error names every problem and its place: an override, or a line of the file.
    """
    from pydantic import ValidationError

    known = setting_types_of(store)
    for name, value in _booleans(data):
        if name in known and not _takes_bool(known[name][1]):
            place = _place(name.split("."), source, overrides)
            raise ConfigError(f"{place}: {name} got {value}. Expected: {known[name][0]}")
    try:
        settings: Store = _adapter(store).validate_python(data)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = [
            f"{_place(problem['loc'], source, overrides)}: {_explain(problem, data, known)}"
            for problem in error.errors()
        ]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None
    return settings


def _booleans(data: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each boolean in the sections with its dotted name; pydantic takes true for 1."""
    for section, values in data.items():
        if isinstance(values, Mapping):
            yield from (
                (f"{section}.{name}", value)
                for name, value in values.items()
                if isinstance(value, bool)
            )


def _takes_bool(kind: Any) -> bool:
    return kind in (bool, Any) or any(_takes_bool(one) for one in typing.get_args(kind))


def _place(where: Sequence[Any], source: str, overrides: Mapping[str, str]) -> str:
    """Return where a bad value was given: in an override, or in a line of a file."""
    for depth in (2, 1):
        name = ".".join(map(str, where[:depth]))
        if name in overrides:
            return f"override {overrides[name]}"
    line = None if source == "config" else line_of(Path(source), [str(part) for part in where])
    return source if line is None else f"{source}, line {line}"


def _explain(problem: Any, data: Mapping[str, Any], known: SettingTypes) -> str:
    """Return one line about a bad value: the field, what it got, what it takes."""
    where = [str(part) for part in problem["loc"]]
    name = ".".join(where[:2])
    if where[0] == "environments" and len(where) > 2:
        return _explain_item(problem)
    if where[0] in known:  # pydantic reports each type of a union: the help is clearer
        return f"{where[0]} got {data[where[0]]!r}. Expected: {known[where[0]][0]}"
    if problem["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        kind = "section" if len(where) == 1 else "setting"
        inside = [full for full in known if full.endswith(f".{where[-1]}")]
        near = f"Did you mean {inside[0]!r}?" if inside else answer_setting(name)
        return f"there is no {kind} {name!r}. {near or _near(where, known)}"
    return f"{name} got {problem['input']!r:.200}. {problem['msg']}."


def _near(where: Sequence[str], known: SettingTypes) -> str:
    """Return a hint at the nearest section, or the nearest setting of a section."""
    names = [full.split(".") for full in known]
    if len(where) == 1:
        return did_you_mean(where[0], {name[0]: None for name in names})
    return did_you_mean(where[1], [name[-1] for name in names if name[0] == where[0]])


def _explain_item(problem: Any) -> str:
    """Return one line about a bad value in an environment of a mix."""
    _, index, setting_name, *rest = (str(part) for part in problem["loc"])
    where = f"environments[{index}].{setting_name}"
    known = {f.name: f.metadata["help"] for f in dataclasses.fields(EnvironmentItem)}
    if setting_name not in known:
        return f"there is no setting {where!r}. {did_you_mean(setting_name, known)}"
    if problem["type"] in {"missing", "missing_argument"}:
        return f"{where} is missing. Expected: {known[setting_name]}"
    if rest and setting_name in _DATASETS:
        return f"{where}.{rest[0]} got {problem['input']!r:.200}. {problem['msg']}."
    if rest:  # pydantic reports each type of a union: the help is clearer
        return f"{where} got a value of another kind. Expected: {known[setting_name]}"
    return f"{where} got {problem['input']!r:.200}. {problem['msg']}."
