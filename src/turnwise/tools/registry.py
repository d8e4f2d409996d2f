"""`ToolRegistry`: the tools of an episode by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from turnwise.errors import ToolError, did_you_mean
from turnwise.tools.base import Tool, as_tool, marked_tools
from turnwise.tools.calling import CallRefused, call_async, call_sync
from turnwise.tools.context import ToolContext
from turnwise.tools.types import ToolCall, ToolDefinition, ToolFailure, ToolResult

T = TypeVar("T", bound=Tool | Callable[..., Any])


class ToolRegistry:
    """Tools by name.

    >>> def add(a: int, b: int) -> int:
    ...     return a + b
    >>> ToolRegistry([add]).execute_tool("add", a="1", b=2)
    (True, 3)

    A failing call raises nothing: the model gets a short message instead.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._context: ToolContext | None = None
        self._environment: Any = None
        given: Any = tools
        if isinstance(given, str):
            given = [given]  # refused as a whole, not letter by letter
        if not isinstance(given, Iterable) and not callable(given) and not isinstance(given, Tool):
            raise ToolError(
                f"tools got {given!r:.80}, expected a list of tools: functions, or objects of "
                "turnwise.Tool"
            )
        if not isinstance(given, Iterable):
            name = getattr(given, "__name__", type(given).__name__)
            raise ToolError(f"tools got {name}, expected a list of tools: tools=[{name}]")
        self.register_all(given)

    @classmethod
    def from_object(cls, owner: object) -> Self:
        """Returns the tools of an object: its methods with `@tool`."""
        tools = marked_tools(owner)
        if not tools:
            raise ToolError(
                f"{type(owner).__name__} has no tools. Mark its methods with @tool "
                "(from turnwise import tool)."
            )
        return cls(tools)

    @classmethod
    def from_environment(
        cls, environment: Any, tools: Iterable[Tool | Callable[..., Any]] = ()
    ) -> Self:
        """Returns `tools` and the environment's own: its methods with `@tool`."""
        return cls(tools).bind(environment)

    def bind(self, environment: Any) -> Self:
        """Returns these tools and the environment's own, for one episode."""
        bound = type(self)([*self, *marked_tools(environment)])
        bound._environment = environment
        return bound

    def register(self, thing: T) -> T:
        """Adds a tool or a function and returns it, so that this works as a decorator too."""
        found = as_tool(thing)
        name = found.definition.name
        if name in self._tools:
            raise ToolError(
                f"there is already a tool {name!r}. Unregister it first, or give the new one "
                "another name."
            )
        self._tools[name] = found
        return thing

    def register_all(self, things: Iterable[Tool | Callable[..., Any]]) -> None:
        for thing in things:
            self.register(thing)

    def unregister(self, name: str) -> None:
        if name not in self._tools:
            raise ToolError(_no_such_tool(name, self._tools))
        del self._tools[name]

    @property
    def names(self) -> list[str]:
        """The names in the order of registration."""
        return list(self._tools)

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions for the model, in the order of registration."""
        return [found.definition for found in self._tools.values()]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def open_context(self, environment: Any = None) -> ToolContext:
        """Returns a context for the tools of one episode; the caller closes it."""
        return ToolContext(environment if environment is not None else self._environment)

    def execute(self, call: ToolCall, context: ToolContext | None = None) -> ToolResult:
        """Executes a call and returns its result, also if the tool fails.

        Without a context the registry's own is used, which is open until `close`.
        """
        return call_sync(self._find, call.name, call.arguments, context or self._own_context())

    async def execute_async(self, call: ToolCall, context: ToolContext | None = None) -> ToolResult:
        """`execute` without blocking the event loop: a synchronous tool runs in a thread."""
        context = context or self._own_context()
        return await call_async(self._find, call.name, call.arguments, context)

    # `/`: a tool may have arguments that are called `name` or `self`.
    def execute_tool(self, name: str, /, **params: Any) -> tuple[bool, Any]:
        """Calls a tool; returns (True, its value) or (False, the message for the model)."""
        result = self.execute(ToolCall(name, params))
        return result.success, result.value

    async def execute_tool_async(self, name: str, /, **params: Any) -> tuple[bool, Any]:
        """`execute_tool` without blocking the event loop."""
        result = await self.execute_async(ToolCall(name, params))
        return result.success, result.value

    def close(self) -> None:
        """Closes the registry's own context. May be called twice."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def _own_context(self) -> ToolContext:
        if self._context is None:
            self._context = self.open_context()
        return self._context

    def _find(self, name: str) -> Tool:
        found = self._tools.get(name)
        if found is None:
            raise CallRefused(ToolFailure.UNKNOWN_TOOL, _no_such_tool(name, self._tools))
        return found


def _no_such_tool(name: object, known: Iterable[str]) -> str:
    shown = str(name)[:64]
    return f"there is no tool {shown!r}. {did_you_mean(shown, known)}"
