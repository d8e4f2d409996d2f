"""Tools: what a model may call besides speaking. Subclass `Tool`, or mark a function `@tool`."""

from __future__ import annotations

import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from turnwise.errors import ToolError
from turnwise.tools.schema import (
    ArgumentSpec,
    spec_from_schema,
    spec_from_signature,
    split_docstring,
)

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_MARK = "__turnwise_tool__"


@dataclass(frozen=True)
class ToolDefinition:
    """What a model is told about a tool.

    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    >>> ToolDefinition("weather", "Tell the weather.", schema).signature
    'weather(city: string = ...)'
    """

    name: str
    """What the model writes to call it."""
    description: str = ""
    """What it does, in a sentence or two."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of its arguments, an object; empty: it takes none."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolError(
                f"{self.name!r} cannot be the name of a tool. Use up to 64 letters, digits and "
                "_ . / -, for example with @tool(name='my_tool')."
            )
        if not self.parameters:
            object.__setattr__(self, "parameters", {"type": "object", "properties": {}})
        if self.parameters.get("type") != "object":
            raise ToolError(
                f"the parameters of tool {self.name!r} must be a JSON schema of an object, such "
                "as {'type': 'object', 'properties': {'city': {'type': 'string'}}}, "
                f"got {str(self.parameters)[:80]}"
            )

    def to_openai(self) -> dict[str, Any]:
        """The form that OpenAI-style APIs and chat templates take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    @property
    def signature(self) -> str:
        """How it is called, in one line."""
        required = self.parameters.get("required", ())
        arguments = [
            f"{name}: {_kind(schema)}{'' if name in required else f' = {_default(schema)}'}"
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({', '.join(arguments)})"


class Tool(ABC):
    """A tool with a class of its own. Write `execute`; it may be `async def`.

    >>> class AddTool(Tool):
    ...     '''Add two numbers.'''
    ...     def execute(self, a: int, b: int) -> int:
    ...         return a + b
    >>> AddTool().definition.signature
    'add_tool(a: integer, b: integer)'
    """

    name: str = ""
    """Empty: the class's name in snake_case."""
    description: str = ""
    """Empty: the docstring of the class, or of `execute`."""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments. None: read from the signature of `execute`."""

    @abstractmethod
    def execute(self, *args: Any, **params: Any) -> Any:
        """Do the work. The arguments have been checked; a `ToolError` is told to the model."""

    @property
    def function(self) -> Callable[..., Any]:
        """What is called with the arguments."""
        return self.execute

    @property
    def definition(self) -> ToolDefinition:
        """What a model is told about this tool."""
        doc = _own_doc(type(self)) or inspect.getdoc(self.execute) or ""
        name = self.name or _snake_case(type(self).__name__)
        return ToolDefinition(name, self.description or split_docstring(doc)[0], self._spec.schema)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, checked and coerced, or a `ToolError` that says how to call it right."""
        try:
            return self._spec.check(arguments)
        except ToolError as error:
            raise ToolError(f"{error} Call it as {self.definition.signature}.") from None

    @property
    def _spec(self) -> ArgumentSpec:
        if self.parameters is not None:
            return spec_from_schema(self.parameters or {"type": "object"})
        return spec_from_signature(self.function)


@dataclass(frozen=True)
class ToolMark:
    """What `@tool` writes on a function."""

    name: str | None = None
    description: str | None = None


class FunctionTool(Tool):
    """A function, or a method with its object, as a tool."""

    def __init__(self, function: Callable[..., Any], mark: ToolMark | None = None) -> None:
        found = mark if mark is not None else getattr(function, _MARK, ToolMark())
        self._function = function
        self.name = found.name or function.__name__
        self.description = found.description or split_docstring(inspect.getdoc(function) or "")[0]

    @property
    def function(self) -> Callable[..., Any]:
        return self._function

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description, self._spec.schema)

    def execute(self, *args: Any, **params: Any) -> Any:
        return self._function(*args, **params)


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def tool(
    function: F | None = None, *, name: str | None = None, description: str | None = None
) -> F | Callable[[F], F]:
    """Mark a function or a method as a tool; it stays what it was and is called as before.

    The schema comes from the type hints, the description and the arguments' from the docstring.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         b: What is added.
    ...     '''
    ...     return a + b

    `ToolRegistry.register(add)` takes a function, `ToolRegistry.from_object(thing)` all marked
    methods of an object.
    """

    def mark(function: F) -> F:
        setattr(_raw(function), _MARK, ToolMark(name, description))
        return function

    return mark if function is None else mark(function)


def as_tool(thing: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is; a function or bound method made into one."""
    if isinstance(thing, Tool):
        return thing
    if inspect.isroutine(thing):
        return FunctionTool(thing)
    if isinstance(thing, type) and issubclass(thing, Tool):
        raise ToolError(
            f"{thing.__name__} is a class, expected a tool. Make one: {thing.__name__}()"
        )
    raise ToolError(
        f"a tool is a Tool object or a function, got {type(thing).__name__}. "
        "Derive its class from turnwise.Tool, or wrap it in a function."
    )


def marked_tools(owner: object) -> list[Tool]:
    """The methods of an object that are marked `@tool`, base classes first, in written order."""
    marks: dict[str, ToolMark] = {}
    for cls in reversed(type(owner).__mro__):
        for name, attribute in vars(cls).items():
            mark = getattr(_raw(attribute), _MARK, None)
            # An override without a mark of its own keeps the mark of the method it replaces.
            if isinstance(mark, ToolMark):
                marks[name] = mark
    return [FunctionTool(getattr(owner, name), mark) for name, mark in marks.items()]


def _raw(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute


def _own_doc(cls: type) -> str:
    doc = cls.__doc__  # not inspect.getdoc: that would find the docstring of Tool itself
    return inspect.cleandoc(doc) if doc else ""


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _kind(schema: Any) -> str:
    """A JSON schema in a word or two."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return "|".join(json.dumps(option, ensure_ascii=False) for option in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "anyOf" in schema:
        return "|".join(_kind(option) for option in schema["anyOf"])
    kind = schema.get("type", "object" if "$ref" in schema else "any")
    if kind == "array":
        return f"array of {_kind(schema.get('items'))}"
    return "|".join(kind) if isinstance(kind, list) else str(kind)


def _default(schema: Any) -> str:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return "..."
    return json.dumps(schema["default"], ensure_ascii=False)
