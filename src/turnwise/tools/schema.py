"""The arguments of a tool: a JSON schema from its signature, and validation against a schema.

pydantic is imported inside the functions: it costs more than the rest of the package's import.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, get_args
from weakref import WeakKeyDictionary

from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.context import ToolContext
from turnwise.tools.json_schema import object_fields, typed_dict

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

_SHOWN_PROBLEMS = 3
_SHOWN_CHARACTERS = 40
_SECTION = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?):\s*$", re.IGNORECASE
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


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
        given = dict(arguments)
        try:
            return self.adapter.validate_python(given)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        read = _read_json_texts(given, problems)
        if read is not None:
            try:
                return self.adapter.validate_python(read)
            except ValidationError:
                pass  # the error message is about what the model wrote
        raise ToolError(_explain_all(problems, list(self.schema.get("properties", {}))))


# By function, not by tool: every episode's environment binds the same method again.
_SPECS: WeakKeyDictionary[Callable[..., Any], ArgumentSpec] = WeakKeyDictionary()


def spec_from_signature(function: Callable[..., Any]) -> ArgumentSpec:
    """Reads type hints, defaults and the docstring's `Args:` section."""
    key = getattr(function, "__func__", function)
    spec = _SPECS.get(key)
    if spec is None:
        spec = _SPECS[key] = _read_signature(function)
    return spec


def spec_from_schema(
    schema: Mapping[str, Any], function: Callable[..., Any] | None = None
) -> ArgumentSpec:
    """Returns the validation of a given schema; `function` may have a context argument."""
    context_argument = _context_argument(function) if function is not None else None
    try:
        return _read_schema(json.dumps(schema), context_argument)
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
    context_argument: str | None = None
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
        if _is_context(hint):
            context_argument = parameter.name
            continue
        optional = parameter.default is not parameter.empty
        extra = _default_in_schema(parameter.default) if optional else {}
        field = Field(description=docs.get(parameter.name), json_schema_extra=extra)
        annotated: Any = Annotated[hint, field]
        fields[parameter.name] = NotRequired[annotated] if optional else annotated
    try:
        adapter = _adapter(fields, takes_any)
        return ArgumentSpec(_plain_schema(adapter), adapter, context_argument)
    except PydanticUserError as error:
        raise ToolError(
            f"{_name(function)} has an argument whose type has no JSON schema: "
            f"{str(error).splitlines()[0]} Use str, int, float, bool, list, dict, Literal, "
            "a dataclass or a pydantic model."
        ) from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = [
            parameter.replace(annotation=_evaluate(parameter.annotation, function))
            for parameter in inspect.signature(function).parameters.values()
        ]
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


def _evaluate(hint: Any, function: Callable[..., Any]) -> Any:
    """Evaluates a hint that is a string."""
    if not isinstance(hint, str):
        return hint
    written = inspect.unwrap(getattr(function, "__func__", function))
    return eval(hint, getattr(written, "__globals__", {}))


def _context_argument(function: Callable[..., Any]) -> str | None:
    found = (p.name for p in _parameters(function) if _is_context(p.annotation))
    return next(found, None)


def _is_context(hint: Any) -> bool:
    """Whether a hint is `ToolContext`, `ToolContext | None` or `Annotated[ToolContext, ...]`."""
    return any(
        isinstance(part, type) and issubclass(part, ToolContext) for part in (hint, *get_args(hint))
    )


def _default_in_schema(default: object) -> dict[str, Any]:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return {"default": to_jsonable_python(default)}
    except PydanticSerializationError:
        return {}  # a default without JSON works as well: the function has it


@lru_cache(maxsize=1024)
def _read_schema(text: str, context_argument: str | None) -> ArgumentSpec:
    schema: dict[str, Any] = json.loads(text)
    return ArgumentSpec(schema, _adapter(*object_fields(schema)), context_argument)


def _adapter(fields: dict[str, Any], takes_any: bool) -> TypeAdapter[dict[str, Any]]:
    from pydantic import TypeAdapter

    return TypeAdapter(typed_dict(fields, takes_any))


def _plain_schema(adapter: TypeAdapter[dict[str, Any]]) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        """Leaves out titles, which repeat the names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema = adapter.json_schema(schema_generator=WithoutTitles)
    schema.pop("title", None)
    return schema


def _read_json_texts(
    arguments: dict[str, Any], problems: list[ErrorDetails]
) -> dict[str, Any] | None:
    """Parses invalid strings as JSON: models write lists and objects as strings too."""
    read: dict[str, Any] = {}
    for name in {problem["loc"][0] for problem in problems if problem["loc"]}:
        if isinstance(name, str) and isinstance(text := arguments.get(name), str):
            try:
                read[name] = json.loads(text)
            except (ValueError, RecursionError):
                continue
    return {**arguments, **read} if read else None


def _explain_all(problems: list[ErrorDetails], names: list[str]) -> str:
    """Returns one sentence per invalid argument; a union has one problem for each member."""
    first: dict[Any, str] = {}
    for problem in problems:
        first.setdefault(problem["loc"][:1], _explain(problem, names))
    return " ".join(list(first.values())[:_SHOWN_PROBLEMS])


def _explain(problem: ErrorDetails, names: list[str]) -> str:
    where = ".".join(str(part) for part in problem["loc"])[:_SHOWN_CHARACTERS]
    if problem["type"] == "missing":
        return f"{where} is missing."
    if problem["type"] == "extra_forbidden":
        hint = f" {did_you_mean(where, names)}" if names and len(problem["loc"]) == 1 else ""
        return f"There is no argument {where!r}.{hint}"
    return f"{where} got {_shorten(problem['input'])}. {problem['msg'][:120]}."


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
