"""Reads settings from nested mappings: short forms, overrides, errors that name each problem."""

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from turnwise.config.environment import EnvironmentItem
from turnwise.config.fields import Section, SettingTypes, describe_settings, elsewhere, other_name
from turnwise.errors import ConfigError
from turnwise.yaml_files import find_line, parse_value

_DATASETS = ("dataset", "eval_dataset")
SHORT_SECTIONS = {"model": "model_name", "environment": "name", **dict.fromkeys(_DATASETS, "path")}
"""Sections that may be written as one setting alone, such as `model: tiny`."""

Store = TypeVar("Store", bound=Section)


def full_section(name: str, value: Any) -> Any:
    """Return a section of a YAML file in full; it may be in a short form."""
    if name == "environments" and isinstance(value, list):
        return [_full_item(item) for item in value]
    is_short = isinstance(value, str) or (name in _DATASETS and isinstance(value, list))
    return {SHORT_SECTIONS[name]: value} if name in SHORT_SECTIONS and is_short else value


def _full_item(item: Any) -> Any:
    """Return an environment of a mix in full; it may be its name alone, its dataset a path."""
    if isinstance(item, str):
        return {"environment": item}
    if not isinstance(item, dict):
        return item
    rows = {name: full_section(name, item[name]) or {} for name in _DATASETS if name in item}
    return {**item, **rows}


def apply_override(data: dict[str, Any], override: str, known: SettingTypes) -> str:
    """Put one `section.name=value` into the nested mapping, and return the name that it sets."""
    key, equals, raw = override.partition("=")
    name = key.strip().lstrip("+")
    path = name.split(".")
    is_whole = len(path) == 1
    if not equals or (is_whole and name not in known and name not in SHORT_SECTIONS):
        names = {full.rpartition(".")[2]: full for full in reversed(list(known))}
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        example = f"{names[near[0]]}={raw}" if near else "training.learning_rate=3e-5"
        hint = None if near else elsewhere(name)
        hint = hint or f"Write section.name=value, for example {example}"
        raise ConfigError(f"cannot read the override {override!r}. {hint}")
    value = parse_value(raw)
    takes = _alternatives(known[name][1]) if name in known else ()
    takes_list = any(typing.get_origin(kind) is list for kind in takes)
    if isinstance(value, str):
        value = [value] if takes_list and str not in takes else value  # logging.sinks=wandb
    elif str in takes and value is not None and not (takes_list and type(value) is list):
        value = raw  # model.model_name=123 names a model
    if is_whole and name in ("model", "environment"):  # its other settings stay
        path.append(SHORT_SECTIONS[name])
    section = data
    if path[0] == "environments" and len(path) > 1:
        items = data["environments"] = full_section("environments", data.get("environments") or [])
        if len(path) < 3 or not path[1].isdecimal() or int(path[1]) >= len(items):
            raise ConfigError(
                f"cannot apply {override!r}: the file has {len(items)} environments, counted from "
                "0. Write the number of one and its setting: environments.0.weight=2"
            )
        section, path = items[int(path[1])], path[2:]
    for part in path[:-1]:
        inner = full_section(part, section.get(part))
        section[part] = inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot apply {override!r}: {part!r} is a value, not a section")
        section = inner
    section[path[-1]] = value
    return name


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only type."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)


@cache
def _adapter(store: type[Any]) -> Any:
    # Imported here: pydantic takes long to import, and only checks need it.
    from pydantic import TypeAdapter

    return TypeAdapter(store)


def checked(
    store: type[Store], data: dict[str, Any], source: str, overrides: dict[str, str]
) -> Store:
    """Return the settings of nested mappings without short forms.

    The error names every problem and its place: an override, or a line of the file.
    """
    from pydantic import ValidationError

    known = describe_settings(store)
    problems: list[tuple[Sequence[Any], str]] = []
    for name, (_, kind) in known.items():  # pydantic takes true for 1
        section, _, key = name.rpartition(".")
        values = data.get(section)
        is_bool = isinstance(values, Mapping) and isinstance(values.get(key), bool)
        if is_bool and bool not in _alternatives(kind):
            problems.append(((section, key), "a number or text, not true or false"))
    if not problems:
        try:
            settings: Store = _adapter(store).validate_python(data)  # type: ignore[arg-type]
            return settings
        except ValidationError as error:
            problems = [(problem["loc"], problem["msg"]) for problem in error.errors()]
    texts: dict[str, list[str]] = {}
    for where, problem in problems:
        what, expected = _explain(where, problem, data, known)
        texts.setdefault(f"{_locate(where, source, overrides)}: {what}", []).append(expected)
    # pydantic reports each type of a union.
    lines = [what + " or ".join(dict.fromkeys(expected)) for what, expected in texts.items()]
    raise ConfigError("\n".join(lines))


def _locate(where: Sequence[Any], source: str, overrides: dict[str, str]) -> str:
    """Return the override or the line of the file that set a value."""
    wrong = ".".join([*map(str, where), ""])
    for name, text in reversed(overrides.items()):
        if wrong.startswith(f"{name}.") or f"{name}.".startswith(wrong):
            return f"override {text}"
    line = None if source == "config" else find_line(Path(source), [str(part) for part in where])
    return source if line is None else f"{source}, line {line}"


def _explain(where: Sequence[Any], problem: str, data: Any, known: SettingTypes) -> tuple[str, str]:
    """Return what is wrong with a value, and what it should be."""
    settings, depth = known, 1 if where[0] in known else 2
    if where[0] == "environments" and len(where) > 2:
        known = describe_settings(EnvironmentItem)
        prefix, depth = f"environments.{where[1]}", 3
        settings = {f"{prefix}.{name}": kind for name, kind in known.items()}
    name = ".".join(map(str, where[:depth]))
    if problem == "Field required":
        return f"{name} is missing. ", settings[name][0]
    if name in settings or not problem.startswith("Unexpected keyword"):
        value = data
        for part in where[:depth]:
            value = value.get(part) if isinstance(value, Mapping) else value[part]
        expected = problem.removeprefix("Input should be ").partition(", unable")[0]
        if problem.startswith("Unexpected keyword"):
            expected = f"no {where[-1]!r}"
        elif expected.startswith(("greater", "less")):
            expected = f"a value {expected}"
        return f"{name} got {value!r:.200}, expected ", expected
    same = [full for full in settings if full.endswith(f".{where[-1]}")]
    section = name.rpartition(".")[0]
    near = {full.rpartition(".")[2] for full in settings if full.rpartition(".")[0] == section}
    if not section:
        near = {full.partition(".")[0] for full in settings}
    hint = f"Did you mean {same[0]!r}?" if same else other_name(name, near)
    return f"there is no {'section' if len(where) == 1 else 'setting'} {name!r}. ", hint
