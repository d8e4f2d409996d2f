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
from turnwise.tools.types import ToolContext, argument_schemas

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_HEADINGS = "Args|Returns|Yields|Raises|Examples?|Notes?"
# A heading and the indented lines below it, or entries that are not indented; what follows is about
# the tool again.
_SECTION = re.compile(
    rf"(?m)^({_HEADINGS}):[ \t]*(?:\n|\Z)"
    rf"((?:(?!{_HEADINGS})\w+[ \t]*(?:\([^)]*\))?:.*(?:\n|\Z))+"
    r"|(?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*)"
)
# `name (type): what it is`, and the lines below it that are indented further.
_ENTRY = re.compile(r"(?m)^(\w+)[ \t]*(?:\([^)]*\))?[ \t]*:(.*(?:\n(?:[ \t]+.*)?)*)")


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
            raise ToolError(f"The arguments must be an object, got {arguments!r:.40}.")
        try:
            return self.adapter.validate_python(dict(arguments))
        except ValidationError as error:
            problems = error.errors(include_url=False)
        # One sentence per argument; a union has one problem for each member.
        explained: dict[Any, str] = {}
        for problem in problems:
            where = ".".join(str(part) for part in problem["loc"])
            text = f"{where} got {problem['input']!r:.40}. {problem['msg']}."
            if problem["type"] == "missing":
                text = f"{where} is missing."
            elif problem["type"] == "extra_forbidden":
                names = self.schema.get("properties", {})
                text = f"There is no argument {where!r}. {did_you_mean(where, names)}"
            explained.setdefault(problem["loc"][:1], text)
        raise ToolError(" ".join(explained.values()))


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
            takes_any |= parameter.kind is parameter.VAR_KEYWORD
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            fix = "Remove the / from its parameters: tools are called with names."
            raise ToolError(f"{_name(function)} takes {parameter.name!r} by position. {fix}")
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
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, ValueError) as error:
        raise ToolError(
            f"cannot read the signature and type hints of {_name(function)}: {error}. Import its "
            "types at the top of its module; wrap what is not Python in a function with hints."
        ) from None
    if parameters and parameters[0].name == "self":
        fix = "Register it from an object: registry.register(thing.method)."
        raise ToolError(f"{_name(function)} is a method without its object. {fix}")
    return parameters


def _is_context(hint: Any) -> bool:
    """Whether a hint is `ToolContext`, `ToolContext | None` or `Annotated[ToolContext, ...]`."""
    parts = (hint, *get_args(hint))
    return any(isinstance(part, type) and issubclass(part, ToolContext) for part in parts)


def _typed_dict(fields: Mapping[str, Any], required: Container[str], takes_any: bool) -> Any:
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


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Returns the text around a docstring's sections, and the entries of `Args:`.

    >>> split_docstring('''Add.
    ...
    ...     Args:
    ...         a: The first.
    ...
    ...     Both are whole numbers.
    ... ''')
    ('Add. Both are whole numbers.', {'a': 'The first.'})
    """
    doc = inspect.cleandoc(doc)
    summary = " ".join(_SECTION.sub("", doc).split())
    entries = _ENTRY.findall(textwrap.dedent(dict(_SECTION.findall(doc)).get("Args", "")))
    return summary, {name: " ".join(text.split()) for name, text in entries}


def spec_from_schema(schema: Mapping[str, Any], function: Callable[..., Any]) -> ArgumentSpec:
    """Returns the validation of a given schema; `function` may have a context argument."""
    names = [p.name for p in _parameters(function) if _is_context(p.annotation)]
    return _read_schema(json.dumps(schema), names[0] if names else None)


@lru_cache(maxsize=1024)
def _read_schema(text: str, context_argument: str | None) -> ArgumentSpec:
    from pydantic import TypeAdapter

    schema: dict[str, Any] = json.loads(text)
    fields = {name: _python_type(inner) for name, inner in argument_schemas(schema).items()}
    takes_any = schema.get("additionalProperties", False) is not False
    arguments = _typed_dict(fields, schema.get("required", ()), takes_any)
    return ArgumentSpec(schema, TypeAdapter(arguments), context_argument)


_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": None,
    "array": list[Any],
    "object": dict[str, Any],
}


def _python_type(schema: Mapping[str, Any]) -> Any:
    """Returns the type of one argument; what it has inside is checked by the tool itself."""
    options = schema.get("enum", ())
    if options and all(isinstance(option, str | int) for option in options):
        return Literal[tuple(options)]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives and "type" not in schema:
        types = tuple(_python_type(alternative) for alternative in alternatives)
    else:
        kinds = schema.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        types = tuple(_TYPES.get(kind, Any) for kind in kinds)
    return Union[types] if types else Any  # noqa: UP007 - made at run time
