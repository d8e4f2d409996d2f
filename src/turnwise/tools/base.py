"""`Tool` and `@tool`: two ways to write a tool, a subclass with `execute` or a function."""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from turnwise.errors import ToolError
from turnwise.tools import schema
from turnwise.tools.types import ToolContext, ToolDefinition

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TIMEOUT = 60.0
DEFAULT_MAX_OUTPUT = 16_000
"""Characters of a result that reach the model; about four thousand tokens."""

_MARK = "__turnwise_tool__"
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class ToolMark:
    """The options of `@tool`, attached to the function."""

    name: str | None = None
    description: str | None = None
    timeout: float | None = DEFAULT_TIMEOUT
    max_output: int = DEFAULT_MAX_OUTPUT
    inline: bool = False


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    max_output: int = DEFAULT_MAX_OUTPUT,
    inline: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    max_output: int = DEFAULT_MAX_OUTPUT,
    inline: bool = False,
) -> F | Callable[[F], F]:
    """Marks a function or a method as a tool; it can still be called directly.

    The schema comes from the type hints, the descriptions from the docstring. `timeout` is in
    seconds, None for no limit. `max_output` is the number of characters of a result that reach the
    model. `inline` is for synchronous functions that are quick and never wait: they run without a
    thread and without a timeout.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         b: What is added.
    ...     '''
    ...     return a + b

    `ToolRegistry.register(add)` takes a function, `ToolRegistry().bind(thing)` all such methods of
    an object.
    """
    options = ToolMark(name, description, timeout, max_output, inline)

    def mark(function: F) -> F:
        try:
            setattr(_unwrapped(function), _MARK, options)
        except AttributeError:  # a built-in one, or no function at all
            raise ToolError(
                f"@tool got {function!r:.80}, expected a function of yours, with def"
            ) from None
        return function

    return mark if function is None else mark(function)


def read_mark(attribute: Any) -> ToolMark | None:
    """Returns the options of `@tool` on this function or method, if it has any."""
    mark = getattr(_unwrapped(attribute), _MARK, None)
    return mark if isinstance(mark, ToolMark) else None


def _unwrapped(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute


class Tool(ABC):
    """A tool with a class of its own. Define `execute`; it may be `async def`.

    >>> class AddTool(Tool):
    ...     '''Add two numbers.'''
    ...     def execute(self, a: int, b: int) -> int:
    ...         return a + b
    >>> AddTool().definition.signature
    'add_tool(a: integer, b: integer)'
    """

    name: str = ""
    """Empty takes the class's name in snake_case."""
    description: str = ""
    """Empty takes the docstring of the class, or of `execute`."""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments. None reads it from the signature of `execute`."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds for a call; None for no limit."""
    max_output: int = DEFAULT_MAX_OUTPUT
    """Characters of a result that reach the model."""
    inline: bool = False
    """For a synchronous `execute` that is quick and never waits: no thread and no timeout."""

    @abstractmethod
    def execute(self, *args: Any, **params: Any) -> Any:
        """Runs the tool. The arguments are valid; the model gets the message of a `ToolError`."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called with the arguments."""
        return self.execute

    @property
    def definition(self) -> ToolDefinition:
        """The description of this tool for a model."""
        # Not inspect.getdoc of the class: that would find the docstring of Tool itself.
        doc = inspect.cleandoc(type(self).__doc__ or "") or inspect.getdoc(self.execute) or ""
        name = self.name or _CAMEL.sub("_", type(self).__name__).lower()
        return ToolDefinition(
            name, self.description or schema.split_docstring(doc)[0], self._spec.schema
        )

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validates and converts the arguments; a `ToolError` says how to call the tool."""
        try:
            return self._spec.check(arguments)
        except ToolError as error:
            raise ToolError(f"{error} Call it as {self.definition.signature}.") from None

    def with_context(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """Returns the arguments, with the context if the tool has an argument for it."""
        name = self._spec.context_argument
        return arguments if name is None else {**arguments, name: context}

    @property
    def _spec(self) -> schema.ArgumentSpec:
        if self.parameters is not None:
            return schema.spec_from_schema(self.parameters or {"type": "object"}, self.function)
        return schema.spec_from_signature(self.function)


class FunctionTool(Tool):
    """A function, or a method with its object, as a tool."""

    def __init__(self, function: Callable[..., Any], mark: ToolMark | None = None) -> None:
        mark = mark or read_mark(function) or ToolMark()
        self._function = function
        self.name = mark.name or function.__name__
        self.description = (
            mark.description or schema.split_docstring(inspect.getdoc(function) or "")[0]
        )
        self.timeout = mark.timeout
        self.max_output = mark.max_output
        self.inline = mark.inline

    @property
    def function(self) -> Callable[..., Any]:
        return self._function

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition(self.name, self.description, self._spec.schema)

    def execute(self, *args: Any, **params: Any) -> Any:
        return self._function(*args, **params)


def as_tool(thing: Tool | Callable[..., Any]) -> Tool:
    """Returns a tool as it is, and a function or bound method as a tool."""
    if isinstance(thing, Tool):
        return thing
    if inspect.isroutine(thing):
        return FunctionTool(thing)
    expected = "a tool: a function, or an object of a class derived from turnwise.Tool: MyTool()"
    raise ToolError(f"got {thing!r:.80} ({type(thing).__name__}), expected {expected}")


def marked_tools(owner: object) -> list[Tool]:
    """Returns the methods with `@tool` of an object, base classes first, in source order."""
    marks = tool_marks(type(owner))
    return [FunctionTool(getattr(owner, name), mark) for name, mark in marks.items()]


def tool_marks(cls: type) -> dict[str, ToolMark]:
    """Returns the methods with `@tool` of a class, by their names."""
    # An override without a mark of its own keeps the mark of the method it replaces.
    return {
        name: mark
        for base in reversed(cls.__mro__)
        for name, attribute in vars(base).items()
        if (mark := read_mark(attribute)) is not None
    }
