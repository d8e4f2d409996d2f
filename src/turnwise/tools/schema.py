"""The arguments of a tool: a JSON schema from a signature, and a check against either.

pydantic is imported inside the functions: it costs more than the rest of the package's import.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Union, cast
from weakref import WeakKeyDictionary

from turnwise.errors import ToolError, did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

_SHOWN_PROBLEMS = 3
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class ArgumentSpec:
    """What a tool takes: the schema that the model is shown, and the check that calls go through.

    >>> def add(a: int, b: int = 1) -> int: ...
    >>> spec_from_signature(add).check({"a": "2"})
    {'a': 2}
    """

    schema: dict[str, Any]
    """JSON schema of the arguments, an object."""
    adapter: TypeAdapter[dict[str, Any]]
    """Checks and coerces."""

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the types that were asked for, or a `ToolError` with each problem."""
        from pydantic import ValidationError

        try:
            return self.adapter.validate_python(dict(arguments))
        except ValidationError as error:
            names = list(self.schema.get("properties", {}))
            problems = [_explain(problem, names) for problem in error.errors(include_url=False)]
            raise ToolError(" ".join(problems[:_SHOWN_PROBLEMS])) from None


# By function, not by tool: the same method is bound anew in every episode's environment.
_SPECS: WeakKeyDictionary[Callable[..., Any], ArgumentSpec] = WeakKeyDictionary()


def spec_from_signature(function: Callable[..., Any]) -> ArgumentSpec:
    """Read type hints, defaults and the docstring's `Args:` section."""
    key = getattr(function, "__func__", function)
    spec = _SPECS.get(key)
    if spec is None:
        spec = _SPECS[key] = _read_signature(function)
    return spec


def spec_from_schema(schema: Mapping[str, Any]) -> ArgumentSpec:
    """A check for a schema that was written by hand or came from elsewhere."""
    try:
        return _read_schema(json.dumps(schema))
    except (TypeError, ValueError, AttributeError) as error:
        raise ToolError(
            f"{str(schema)[:80]} is not a JSON schema of arguments: {error}. Write for example "
            "{'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}"
        ) from None


def _read_signature(function: Callable[..., Any]) -> ArgumentSpec:
    from pydantic import Field, PydanticUserError

    _, docs = split_docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    takes_any = False
    for parameter in _parameters(function):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolError(
                f"{_name(function)} has the positional-only argument {parameter.name!r}, "
                "but tools are called by name. Remove the '/' from its signature."
            )
        hint: Any = Any if parameter.annotation is parameter.empty else parameter.annotation
        optional = parameter.default is not parameter.empty
        extra = _default_in_schema(parameter.default) if optional else {}
        field = Field(description=docs.get(parameter.name), json_schema_extra=extra)
        annotated: Any = Annotated[hint, field]
        fields[parameter.name] = NotRequired[annotated] if optional else annotated
    try:
        adapter = _adapter(fields, takes_any)
        return ArgumentSpec(_plain_schema(adapter), adapter)
    except PydanticUserError as error:
        raise ToolError(
            f"{_name(function)} has an argument whose type has no JSON schema: "
            f"{str(error).splitlines()[0]} Use str, int, float, bool, list, dict, Literal, "
            "a dataclass or a pydantic model."
        ) from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except NameError as error:
        raise ToolError(
            f"cannot read the type hints of {_name(function)}: {error}. "
            "Define or import that type at the top of its module."
        ) from None
    except ValueError as error:
        raise ToolError(
            f"cannot read the signature of {_name(function)}: {error}. "
            "Wrap it in a Python function with type hints."
        ) from None
    if parameters and parameters[0].name == "self":
        raise ToolError(
            f"{_name(function)} is a method without its object. "
            "Register it from an object: registry.register(thing.method)."
        )
    return parameters


def _default_in_schema(default: object) -> dict[str, Any]:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return {"default": to_jsonable_python(default)}
    except PydanticSerializationError:
        return {}  # a default that JSON cannot show still works: the function fills it in


@lru_cache(maxsize=1024)
def _read_schema(text: str) -> ArgumentSpec:
    schema: dict[str, Any] = json.loads(text)
    return ArgumentSpec(schema, _adapter(*_object_fields(schema)))


def _adapter(fields: dict[str, Any], takes_any: bool) -> TypeAdapter[dict[str, Any]]:
    from pydantic import TypeAdapter

    return TypeAdapter(_typed_dict(fields, takes_any))


def _typed_dict(fields: dict[str, Any], takes_any: bool) -> Any:
    # A TypedDict, not a model: arguments may be called `copy`, `schema` or `_x`, and what comes
    # out is the dict to call with. pydantic needs this TypedDict before Python 3.12.
    from typing_extensions import TypedDict

    typed = cast(Any, TypedDict)("Arguments", fields)
    typed.__pydantic_config__ = {
        "extra": "allow" if takes_any else "forbid",
        "coerce_numbers_to_str": True,
        "allow_inf_nan": False,
    }
    return typed


def _plain_schema(adapter: TypeAdapter[dict[str, Any]]) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        """A title repeats the name; the model would read it twice."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = adapter.json_schema(schema_generator=WithoutTitles)
    schema.pop("title", None)
    return schema


def _object_fields(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    fields = {
        name: _python_type(inner) if name in required else NotRequired[_python_type(inner)]
        for name, inner in properties.items()
    }
    return fields, bool(schema.get("additionalProperties", False))


_SCALARS: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
}
_NUMBER_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
}
_BOUNDS: dict[Any, dict[str, str]] = {
    "integer": _NUMBER_BOUNDS,
    "number": _NUMBER_BOUNDS,
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}


def _python_type(schema: Any) -> Any:
    """The type that pydantic checks for a JSON schema; what has no counterpart is left open."""
    from pydantic import Field

    if not isinstance(schema, Mapping):
        return Any
    options = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if options:
        simple = all(option is None or isinstance(option, str | int) for option in options)
        return Literal[tuple(options)] if simple else Any
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return Union[tuple(_python_type(inner) for inner in schema[union])]  # noqa: UP007
    kind = schema.get("type")
    if isinstance(kind, list):
        return Union[tuple(_python_type({**schema, "type": one}) for one in kind)]  # noqa: UP007
    if kind == "array":
        found: Any = list[_python_type(schema.get("items"))]  # type: ignore[misc]  # made at run time
    elif kind == "object":
        found = _typed_dict(*_object_fields(schema)) if "properties" in schema else dict[str, Any]
    else:
        found = _SCALARS.get(kind, Any)
    known = _BOUNDS.get(kind, {})
    bounds = {ours: schema[theirs] for theirs, ours in known.items() if theirs in schema}
    return Annotated[found, Field(**bounds)] if bounds else found


_SECTION = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?):\s*$", re.IGNORECASE
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its sections, and what `Args:` says of each argument."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, indent, current = "", 0, ""
    for line in inspect.cleandoc(doc).splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        header = _SECTION.match(line)
        if header:
            section, indent, current = header.group(1).lower(), 0, ""
        elif not section or (text and depth == 0):
            section = ""
            summary.append(text)
        elif section in ("args", "arguments", "parameters") and text:
            indent = indent or depth
            entry = _ENTRY.match(text) if depth <= indent else None
            if entry:
                current = entry.group(1)
                arguments[current] = entry.group(2)
            elif current:
                arguments[current] = f"{arguments[current]} {text}".strip()
    return " ".join(line for line in summary if line), arguments


def _explain(problem: ErrorDetails, names: list[str]) -> str:
    """One short sentence about one bad argument."""
    where = ".".join(str(part) for part in problem["loc"])[:_SHOWN_CHARACTERS]
    if problem["type"] == "missing":
        return f"{where} is missing."
    if problem["type"] == "extra_forbidden":
        hint = f" {did_you_mean(where, names)}" if names and len(problem["loc"]) == 1 else ""
        return f"There is no argument {where!r}.{hint}"
    got = repr(problem["input"])
    got = got if len(got) <= _SHOWN_CHARACTERS else f"{got[:_SHOWN_CHARACTERS]}..."
    return f"{where} got {got}. {problem['msg'][:120]}."


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
