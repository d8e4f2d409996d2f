"""Turns nested mappings into settings, or raises one error that names every problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from turnwise.config.environment import EnvironmentItem
from turnwise.config.fields import Section, SettingTypes, setting_types_of
from turnwise.config.reading import SHORT_SECTIONS
from turnwise.errors import ConfigError, did_you_mean
from turnwise.yaml_files import line_of

Store = TypeVar("Store", bound=Section)


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

    try:
        settings: Store = _adapter(store).validate_python(data)  # type: ignore[arg-type]
    except ValidationError as error:
        known = setting_types_of(store)
        problems = [
            f"{_place(problem['loc'], source, overrides)}: {_explain(problem, data, known)}"
            for problem in error.errors()
        ]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None
    return settings


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
        inside = [full for full in known if full.endswith(f".{name}")]
        near = f"Did you mean {inside[0]!r}?" if inside else _near(where, known)
        return f"there is no {kind} {name!r}. {near}"
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
    if rest and setting_name in SHORT_SECTIONS:
        return f"{where}.{rest[0]} got {problem['input']!r:.200}. {problem['msg']}."
    if rest:  # pydantic reports each type of a union: the help is clearer
        return f"{where} got a value of another kind. Expected: {known[setting_name]}"
    return f"{where} got {problem['input']!r:.200}. {problem['msg']}."
