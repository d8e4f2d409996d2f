"""`ToolRegistry`: the tools of an episode by name, and the one place where they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self, TypeVar

from turnwise.deadlines import call_with_deadline, run_sync
from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.definition import Tool, ToolDefinition, as_tool, marked_tools

T = TypeVar("T", bound=Tool | Callable[..., Any])

_MAX_MESSAGE = 500


class ToolRegistry:
    """Tools by name.

    >>> def add(a: int, b: int) -> int:
    ...     return a + b
    >>> ToolRegistry([add]).execute_tool("add", a="1", b=2)
    (True, 3)

    What goes wrong in a call is not raised: the model gets it back as a short message.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for thing in tools:
            self.register(thing)

    @classmethod
    def from_object(cls, owner: object) -> Self:
        """The methods of `owner` that are marked `@tool`, bound to it."""
        tools = marked_tools(owner)
        if not tools:
            raise ToolError(
                f"{type(owner).__name__} has no tools. Mark its methods with @tool "
                "(from turnwise import tool)."
            )
        return cls(tools)

    def register(self, thing: T) -> T:
        """Add a tool or a function, and return it, so that this works as a decorator too."""
        found = as_tool(thing)
        name = found.definition.name
        if name in self._tools:
            raise ToolError(
                f"there is already a tool {name!r}. Unregister it first, or give the new one "
                "another name."
            )
        self._tools[name] = found
        return thing

    def unregister(self, name: str) -> None:
        """Take a tool away."""
        self._find(name)
        del self._tools[name]

    @property
    def names(self) -> list[str]:
        """In the order of registration."""
        return list(self._tools)

    @property
    def definitions(self) -> list[ToolDefinition]:
        """What a model is told, in the order of registration."""
        return [found.definition for found in self._tools.values()]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    # `/`: a tool may have arguments that are called `name` or `self`.
    def execute_tool(self, name: str, /, **params: Any) -> tuple[bool, Any]:
        """Call a tool: (True, what it returned) or (False, what to tell the model)."""
        try:
            found = self._find(name)
            result = found.function(**found.check(params))
            return True, run_sync(_wait(result)) if inspect.isawaitable(result) else result
        except (Exception, SystemExit) as error:  # a tool that fails is an answer, not a crash
            return False, _message(name, error)

    async def execute_tool_async(self, name: str, /, **params: Any) -> tuple[bool, Any]:
        """`execute_tool` without blocking the event loop: a sync tool runs in a thread."""
        try:
            found = self._find(name)
            call = functools.partial(found.function, **found.check(params))
            return True, await call_with_deadline(call, timeout=None, waiting_for=f"tool {name}")
        except (Exception, SystemExit) as error:  # the same boundary
            return False, _message(name, error)

    def _find(self, name: str) -> Tool:
        if name not in self._tools:
            raise ToolError(f"there is no tool {name!r}. {did_you_mean(name, self._tools)}")
        return self._tools[name]


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


def _message(name: str, error: BaseException) -> str:
    text = " ".join(str(error).split())
    if not isinstance(error, ToolError):
        text = f"{name} failed with {type(error).__name__}{f': {text}' if text else ''}"
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."
