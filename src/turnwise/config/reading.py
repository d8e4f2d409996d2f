"""Reads settings from nested mappings: short forms, overrides, errors that name each problem."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

from annotated_types import Ge, Gt, Le, Lt

from turnwise.config.environment import EnvironmentItem
from turnwise.config.fields import Section, SettingTypes, other_name, setting_types_of
from turnwise.errors import ConfigError
from turnwise.yaml_files import line_of, parse_value

SHORT_SECTIONS = {
    "model": "model_name",
    "environment": "name",
    "dataset": "path",
    "eval_dataset": "path",
}
"""Sections that may be written as one setting alone, such as `model: tiny`."""
_DATASETS = ("dataset", "eval_dataset")
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}
_BOUNDS = {Gt: ("gt", ">"), Ge: ("ge", ">="), Lt: ("lt", "<"), Le: ("le", "<=")}

Store = TypeVar("Store", bound=Section)


def full_section(name: str, value: Any) -> Any:
    """Return a section of a YAML file in full; it may be in a short form."""
    if name == "environments" and isinstance(value, list):
        return [full_item(item) for item in value]
    is_short = isinstance(value, str) or (name in _DATASETS and isinstance(value, list))
    return {SHORT_SECTIONS[name]: value} if name in SHORT_SECTIONS and is_short else value


def full_item(item: Any) -> Any:
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
    may_be_alone = path[0] in known or path[0] in SHORT_SECTIONS
    if not equals or not all(path) or (len(path) == 1 and not may_be_alone):
        names = {full.rpartition(".")[2]: full for full in reversed(list(known))}
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        example = f"{names[near[0]]}={raw}" if near else "training.learning_rate=3e-5"
        hint = f"Write section.name=value, for example {example}"
        elsewhere = other_name(name, [])
        if elsewhere.startswith("Here") and not near:
            hint = elsewhere
        raise ConfigError(f"cannot read the override {override!r}. {hint}")
    value = parse_value(raw)
    takes = describe_type(known[name][1]) if name in known else ""
    if isinstance(value, str):
        if takes.startswith("a list"):
            value = [value]  # logging.sinks=wandb
    elif "text" in takes and value is not None and not ("list" in takes and type(value) is list):
        value = raw  # model.model_name=123 names a model
    section: Any = data
    if path[0] == "environments" and len(path) > 1:
        items = data.get("environments")
        number = len(items) if isinstance(items, list) else 0
        if len(path) < 3 or not path[1].isdecimal() or int(path[1]) >= number:
            raise ConfigError(
                f"cannot apply {override!r}: the file has {number} environments. Write the number "
                "of one, counted from 0, and its setting: environments.0.weight=2"
            )
        section = data["environments"][int(path[1])] = full_item(data["environments"][int(path[1])])
        path = path[2:]
    elif path in (["model"], ["environment"]):  # its other settings stay
        path = [*path, SHORT_SECTIONS[path[0]]]
    for part in path[:-1]:
        inner = full_section(part, section.get(part)) if section is data else section.get(part)
        section[part] = inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot apply {override!r}: {part!r} is a value, not a section")
        section = inner
    section[path[-1]] = value
    return name


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
    wrong: list[tuple[Sequence[Any], str]] = []
    for name, (_, kind) in known.items():
        section, _, key = name.rpartition(".")
        values = data.get(section)
        is_bool = isinstance(values, Mapping) and isinstance(values.get(key), bool)
        if is_bool and _WORDS[bool] not in describe_type(kind):  # pydantic takes true for 1
            wrong.append(((section, key), "bool_type"))
    if not wrong:
        try:
            settings: Store = _adapter(store).validate_python(data)  # type: ignore[arg-type]
        except ValidationError as error:
            wrong = [(problem["loc"], problem["type"]) for problem in error.errors()]
        else:
            return settings
    problems = []
    for where, problem in wrong:
        names = {".".join(map(str, where[:depth])) for depth in (1, 2)}
        given = [
            text
            for name, text in overrides.items()
            if name in names or (len(where) == 1 and name.partition(".")[0] in names)
        ]
        place = f"override {given[-1]}" if given else source
        if place == source != "config":
            line = line_of(Path(source), [str(part) for part in where])
            place = source if line is None else f"{source}, line {line}"
        problems.append(f"{place}: {_explain(where, problem, data, known)}")
    # pydantic reports each type of a union.
    raise ConfigError("\n".join(dict.fromkeys(problems)))


def _explain(where: Sequence[Any], problem: str, data: Any, known: SettingTypes) -> str:
    """Return one line about a bad value: the setting, what it got, what it takes."""
    settings, depth = known, 1 if where[0] in known else 2
    if where[0] == "environments" and len(where) > 2:
        known = setting_types_of(EnvironmentItem)
        prefix, depth = f"environments.{where[1]}", 3
        settings = {f"{prefix}.{name}": kind for name, kind in known.items()}
    name = ".".join(map(str, where[:depth]))
    value = data
    for part in where[:depth]:
        value = value.get(part) if isinstance(value, Mapping) else value[part]
    if name in settings:
        help, kind = settings[name]
        expected = describe_type(kind)
        expected += f". {help}" if "a list" in expected or "mapping" in expected else ""
        what = "is missing" if "missing" in problem else f"got {value!r:.200}"
        return f"{name} {what}, expected {expected}"
    if problem not in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{name} got {value!r:.200}, expected its settings, each with a name"
    same = [full for full in settings if full.endswith(f".{where[-1]}")]
    section = name.rpartition(".")[0]
    near = {full.rpartition(".")[2] for full in settings if full.rpartition(".")[0] == section}
    if not section:
        near = {full.partition(".")[0] for full in settings}
    hint = f"Did you mean {same[0]!r}?" if same else other_name(name, near)
    return f"there is no {'section' if len(where) == 1 else 'setting'} {name!r}. {hint}"


def describe_type(kind: Any) -> str:
    """Return what a setting takes.

    >>> describe_type(Annotated[float, Gt(0), Le(1)] | None)
    'a number > 0 and <= 1 or null'
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = []
        for bound in arguments[1:]:
            attribute, sign = _BOUNDS[type(bound)]
            bounds.append(f"{sign} {getattr(bound, attribute):,}")
        return f"{describe_type(arguments[0])} {' and '.join(bounds)}"
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (types.UnionType, Union):
        return " or ".join(describe_type(one) for one in arguments)
    if dataclasses.is_dataclass(kind):
        return f"a mapping with {', '.join(field.name for field in dataclasses.fields(kind))}"
    return _WORDS[origin or kind]
