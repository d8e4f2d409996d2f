"""The arguments of a tool: a JSON schema from its signature, and validation against a schema.

pydantic is imported inside the functions: it costs more than the rest of the package's import.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Union, cast, get_args
from weakref import WeakKeyDictionary

from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.context import ToolContext

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_SHOWN_PROBLEMS = 3
_SHOWN_CHARACTERS = 40
_MAX_DEPTH = 16
_SECTION = re.compile(
    r"(?im)^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?):[ \t]*$"
)
# `name (type): what it is`, and the lines below it that are indented further.
_ENTRY = re.compile(r"(?m)^\*{0,2}(\w+)[ \t]*(?:\([^)]*\))?[ \t]*:(.*(?:\n(?:[ \t]+.*)?)*)")


@dataclass(frozen=True)
class ArgumentSpec:
    """The arguments of a tool: the schema for the model, and the validation of calls.

    >>> def add(a: int, b: int = 1) -> int: ...
    >>> spec_from_signature(add).check({"a": "2"})
    {'a': 2}
    """

    schema: dict[str, Any]
    """JSON schema of the arguments, an object."""
    adapter: TypeAdapter[dict[str, Any]]
    context_argument: str | None = None
    """The argument that takes the `ToolContext`; the model does not see it."""

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments with the right types; a `ToolError` lists the problems."""
        from pydantic import ValidationError

        if not isinstance(arguments, Mapping):
            raise ToolError(f"The arguments must be an object, got {_shorten(arguments)}.")
        try:
            return self.adapter.validate_python(dict(arguments))
        except ValidationError as error:
            problems = error.errors(include_url=False)
        # One sentence per argument; a union has one problem for each member.
        explained: dict[Any, str] = {}
        for problem in problems:
            where = ".".join(str(part) for part in problem["loc"])[:_SHOWN_CHARACTERS]
            text = f"{where} got {_shorten(problem['input'])}. {problem['msg'][:120]}."
            if problem["type"] == "missing":
                text = f"{where} is missing."
            elif problem["type"] == "extra_forbidden":
                names = self.schema.get("properties", {})
                text = f"There is no argument {where!r}. {did_you_mean(where, names)}"
            explained.setdefault(problem["loc"][:1], text)
        raise ToolError(" ".join(list(explained.values())[:_SHOWN_PROBLEMS]))


# By function, not by tool: every episode's environment binds the same method again.
_SPECS: WeakKeyDictionary[Callable[..., Any], ArgumentSpec] = WeakKeyDictionary()


def spec_from_signature(function: Callable[..., Any]) -> ArgumentSpec:
    """Reads type hints, defaults and the docstring's `Args:` section."""
    from pydantic import Field, PydanticUserError, TypeAdapter
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    key = getattr(function, "__func__", function)
    if key in _SPECS:
        return _SPECS[key]
    _, docs = split_docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    required: list[str] = []
    takes_any = False
    context_argument: str | None = None
    for parameter in _parameters(function):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            takes_any = takes_any or parameter.kind is parameter.VAR_KEYWORD
            continue
        hint: Any = Any if parameter.annotation is parameter.empty else parameter.annotation
        if _is_context(hint):
            context_argument = parameter.name
            continue
        extra: dict[str, Any] = {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            with suppress(PydanticSerializationError):  # without JSON: the function has it
                extra["default"] = to_jsonable_python(parameter.default)
        field = Field(description=docs.get(parameter.name), json_schema_extra=extra)
        fields[parameter.name] = Annotated[hint, field]
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(_typed_dict(fields, required, takes_any))
        spec = ArgumentSpec(_plain_schema(adapter), adapter, context_argument)
    except PydanticUserError as error:
        raise ToolError(
            f"{_name(function)} has an argument whose type has no JSON schema: "
            f"{str(error).splitlines()[0]} Use str, int, float, bool, list, dict, Literal, "
            "a dataclass or a pydantic model."
        ) from None
    _SPECS[key] = spec
    return spec


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters with evaluated hints; the hint of the result may stay unknown."""
    scope = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__globals__", {})
    try:
        parameters = list(inspect.signature(function).parameters.values())
        for number, parameter in enumerate(parameters):
            if isinstance(parameter.annotation, str):
                hint = eval(parameter.annotation, scope)
                parameters[number] = parameter.replace(annotation=hint)
    except (NameError, ValueError) as error:
        raise ToolError(
            f"cannot read the signature and type hints of {_name(function)}: {error}. Import its "
            "types at the top of its module; wrap what is not Python in a function with hints."
        ) from None
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
        raise ToolError(
            f"{_name(function)} has positional-only arguments, but tools are called by name. "
            "Remove the '/' from its signature."
        )
    if parameters and parameters[0].name == "self":
        raise ToolError(
            f"{_name(function)} is a method without its object. "
            "Register it from an object: registry.register(thing.method)."
        )
    return parameters


def _is_context(hint: Any) -> bool:
    """Whether a hint is `ToolContext`, `ToolContext | None` or `Annotated[ToolContext, ...]`."""
    return any(
        isinstance(part, type) and issubclass(part, ToolContext) for part in (hint, *get_args(hint))
    )


def _typed_dict(fields: Mapping[str, Any], required: Container[str], takes_any: bool) -> Any:
    """Returns a type for an object with these fields."""
    from pydantic import ValidationError, WrapValidator

    # A TypedDict, not a model: arguments may be called `copy`, `schema` or `_x`, and what comes
    # out is the dict to call with. pydantic needs this TypedDict before Python 3.12.
    from typing_extensions import TypedDict

    def read(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            # Models write lists and objects as strings too: an invalid string is parsed as JSON.
            with suppress(ValueError, TypeError, RecursionError):
                return validate(json.loads(value))
            raise  # the error message is about what the model wrote

    hints: dict[str, Any] = {}
    for name, hint in fields.items():
        lenient: Any = Annotated[hint, WrapValidator(read)]
        hints[name] = lenient if name in required else NotRequired[lenient]
    typed = cast(Any, TypedDict)("Arguments", hints)
    typed.__pydantic_config__ = {
        "extra": "allow" if takes_any else "forbid",
        "coerce_numbers_to_str": True,
        "allow_inf_nan": False,
    }
    return typed


def _plain_schema(adapter: TypeAdapter[dict[str, Any]]) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        """Leaves out titles, which repeat the names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = adapter.json_schema(schema_generator=WithoutTitles)
    schema.pop("title", None)
    return schema


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Returns the text before a docstring's sections, and the entries of `Args:`.

    >>> split_docstring('''Add.
    ...
    ...     Args:
    ...         a: The first.
    ... ''')
    ('Add.', {'a': 'The first.'})
    """
    summary, *sections = _SECTION.split(inspect.cleandoc(doc))
    arguments: dict[str, str] = {}
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        # A section ends where a line is not indented; such lines are about the whole tool.
        lines = body.splitlines()
        end = next((n for n, line in enumerate(lines) if line[:1].strip()), len(lines))
        summary += "\n" + "\n".join(lines[end:])
        if name.lower() in ("args", "arguments", "parameters"):
            for argument, text in _ENTRY.findall(textwrap.dedent("\n".join(lines[:end]) + "\n")):
                arguments[argument] = " ".join(text.split())
    return " ".join(summary.split()), arguments


def spec_from_schema(schema: Mapping[str, Any], function: Callable[..., Any]) -> ArgumentSpec:
    """Returns the validation of a given schema; `function` may have a context argument."""
    names = [p.name for p in _parameters(function) if _is_context(p.annotation)]
    try:
        return _read_schema(json.dumps(schema), names[0] if names else None)
    except (TypeError, ValueError, AttributeError) as error:
        raise ToolError(
            f"{str(schema)[:80]} is not a JSON schema of arguments: {error}. Write for example "
            "{'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}"
        ) from None


@lru_cache(maxsize=1024)
def _read_schema(text: str, context_argument: str | None) -> ArgumentSpec:
    from pydantic import TypeAdapter

    schema: dict[str, Any] = json.loads(text)
    shape = {"properties": {}, **schema, "type": "object"}
    definitions = schema.get("$defs") or schema.get("definitions") or {}
    python_type = _python_type(shape, definitions, 0)
    return ArgumentSpec(schema, TypeAdapter(python_type), context_argument)


_SCALARS: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": None,
    "object": dict[str, Any],
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


def _python_type(schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    """Returns the pydantic type of a JSON schema; Any for what has no counterpart."""
    from pydantic import Field

    if isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
        schema = definitions.get(reference.rpartition("/")[2])
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return Any
    options = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if options:
        simple = all(option is None or isinstance(option, str | int) for option in options)
        return Literal[tuple(options)] if simple else Any
    kind = schema.get("type")
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not alternatives and isinstance(kind, list):
        alternatives = [{**schema, "type": one} for one in kind]
    if alternatives:
        members = tuple(_python_type(inner, definitions, depth + 1) for inner in alternatives)
        return Union[members]  # noqa: UP007 - made at run time
    python_type = _SCALARS.get(kind, Any)
    if kind == "array":
        inner = _python_type(schema.get("items"), definitions, depth + 1)
        python_type = list[inner]  # type: ignore[valid-type]  # made at run time
    elif kind == "object" and "properties" in schema:
        fields = {
            name: _python_type(inner, definitions, depth + 1)
            for name, inner in schema["properties"].items()
        }
        takes_any = schema.get("additionalProperties", False) is not False
        python_type = _typed_dict(fields, schema.get("required", ()), takes_any)
    elif kind not in _SCALARS:
        return Any
    known = _BOUNDS.get(kind, {})
    bounds: Any = {ours: schema[theirs] for theirs, ours in known.items() if theirs in schema}
    return Annotated[python_type, Field(**bounds)] if bounds else python_type


def describe_type(schema: Any) -> str:
    """Returns a JSON schema in a word or two.

    >>> describe_type({"type": "array", "items": {"type": "string"}})
    'array of string'
    """
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return "|".join(json.dumps(option, ensure_ascii=False) for option in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return "|".join(describe_type(option) for option in alternatives)
    kind = schema.get("type", "object" if "$ref" in schema else "any")
    if kind == "array":
        return f"array of {describe_type(schema.get('items'))}"
    return "|".join(kind) if isinstance(kind, list) else str(kind)
