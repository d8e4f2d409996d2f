"""`@tool`: the mark that makes a function or a method a tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from turnwise.tools.results import DEFAULT_MAX_OUTPUT

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TIMEOUT = 60.0

_MARK = "__turnwise_tool__"


@dataclass(frozen=True)
class ToolMark:
    """What `@tool` writes on a function."""

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
    """Mark a function or a method as a tool; it stays what it was and is called as before.

    The schema comes from the type hints, the description and the arguments' from the docstring.
    `timeout` is the seconds that a call may take, None: as long as it likes. `max_output` is how
    many characters of an answer the model is given. `inline` is for plain functions that are quick
    and never wait: they run where they are called, without a thread and without a time limit.

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
    written = ToolMark(name, description, timeout, max_output, inline)

    def mark(function: F) -> F:
        setattr(_raw(function), _MARK, written)
        return function

    return mark if function is None else mark(function)


def mark_of(attribute: Any) -> ToolMark | None:
    """What `@tool` wrote on this function or method, if anything."""
    found = getattr(_raw(attribute), _MARK, None)
    return found if isinstance(found, ToolMark) else None


def _raw(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
