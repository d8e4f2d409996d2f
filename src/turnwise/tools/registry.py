"""`ToolRegistry`: the tools of an episode by name. It calls them, and catches their failures.

What a tool returned becomes the text of a `ToolResult`; so does the reason why it failed.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from turnwise.deadlines import call_inline, call_with_deadline, is_async, run_sync
from turnwise.errors import (
    DeadlineExceeded,
    EnvironmentFault,
    ToolError,
    describe_error,
    did_you_mean,
)
from turnwise.tools.base import DEFAULT_MAX_OUTPUT, Tool, as_tool, marked_tools
from turnwise.tools.types import ToolCall, ToolContext, ToolDefinition, ToolFailure, ToolResult
from turnwise.types import StepResult

T = TypeVar("T", bound=Tool | Callable[..., Any])

_MAX_MESSAGE = 800


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
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ToolError(
                f"tools got {given!r:.80}, expected a list of functions or objects of "
                "turnwise.Tool; by name they are the setting tools: [calculator, path.py:function]."
            )
        self.register_all(given)

    def bind(self, environment: Any) -> Self:
        """Returns these tools and the environment's own, for one episode."""
        find_tools = getattr(environment, "get_tools", None)  # any object may have marked methods
        own = marked_tools(environment) if find_tools is None else find_tools()
        bound = type(self)([*self, *own])
        bound._environment = environment
        return bound

    def register(self, thing: T) -> T:
        """Adds a tool or a function and returns it, so that this works as a decorator too."""
        made = as_tool(thing)
        name = made.definition.name
        if name in self._tools:
            raise ToolError(f"there is already a tool {name!r}. Give the new one another name.")
        self._tools[name] = made
        return thing

    def register_all(self, things: Iterable[Tool | Callable[..., Any]]) -> None:
        for thing in things:
            self.register(thing)

    @property
    def names(self) -> list[str]:
        """The names in the order of registration."""
        return list(self._tools)

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The definitions for the model, in the order of registration."""
        return [tool.definition for tool in self._tools.values()]

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
        return run_sync(self.execute_async(call, context))

    async def execute_async(self, call: ToolCall, context: ToolContext | None = None) -> ToolResult:
        """`execute` without blocking the event loop: a synchronous tool runs in a thread."""
        if context is None:
            self._context = context = self._context or self.open_context()
        started = time.perf_counter()
        try:
            result = await self._call(call, context)
        except (Exception, SystemExit) as error:  # the boundary where a failure becomes a result
            result = _failed(call.name, error)
        if result.step is not None:
            context.steps.append(result.step)
        return dataclasses.replace(result, seconds=time.perf_counter() - started)

    async def _call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if call.name not in self._tools:
            name = str(call.name)[:64]
            reason = f"there is no tool {name!r}. {did_you_mean(name, self._tools)}"
            return _refusal(call.name, ToolFailure.UNKNOWN_TOOL, reason)
        tool = self._tools[call.name]
        try:
            arguments = tool.with_context(tool.check(call.arguments), context)
        except ToolError as error:
            return _refusal(call.name, ToolFailure.BAD_ARGUMENTS, str(error))
        function = tool.function
        # Not as arguments of `call_with_deadline`: a tool may have one called `timeout`.
        work = functools.partial(function, **arguments)
        waiting_for = f"tool {call.name}"
        if tool.inline and not is_async(function):
            value = call_inline(work, waiting_for)
        else:
            value = await call_with_deadline(work, timeout=tool.timeout, waiting_for=waiting_for)
        return read_output(value, tool.max_output, call.name)

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


def _failed(name: str, error: BaseException) -> ToolResult:
    match error:
        case ToolError():  # its text keeps its lines, such as the last ones of a traceback
            text = read_output(str(error), DEFAULT_MAX_OUTPUT).text
            return ToolResult(name, False, text, value=text, failure=ToolFailure.REFUSED)
        case EnvironmentFault():
            return _refusal(name, ToolFailure.ENVIRONMENT, str(error))
        case DeadlineExceeded():
            text = f"{name} took too long and was stopped. Ask for less at once."
            return _refusal(name, ToolFailure.TIMED_OUT, text)
    return _refusal(name, ToolFailure.RAISED, f"{name} failed with {describe_error(error)}")


def _refusal(name: str, failure: ToolFailure, reason: str) -> ToolResult:
    text = short_line(reason)
    return ToolResult(name, False, text, value=text, failure=failure)


def read_output(value: Any, limit: int, name: str = "") -> ToolResult:
    """Turns the value of a tool into a result whose text has at most `limit` characters and a note.

    >>> read_output({"price": 3}, 100).text
    '{"price": 3}'
    >>> read_output("abcdef", 3).text
    'abc\\n[The answer was cut after 3 characters. Ask for less at once.]'
    """
    step = value if isinstance(value, StepResult) else None
    if step is not None:
        value = step.observation
    if value is None:
        return ToolResult(name, success=True, text="Done.", step=step)
    try:
        text = value if isinstance(value, str) else _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"returned {type(value).__name__}, which is neither text nor JSON ({error})"
        return _refusal(name, ToolFailure.BAD_RESULT, f"{name} failed: it {problem}.")
    was_cut = len(text) > limit
    text = _printable(text[:limit])
    if was_cut:
        text += f"\n[The answer was cut after {limit} characters. Ask for less at once.]"
    if was_cut or isinstance(value, str):
        value = text
    return ToolResult(name, success=True, text=text, value=value, was_cut=was_cut, step=step)


def _as_json(value: Any) -> Any:
    """Converts dataclasses, pydantic models, dates, paths, sets, enums and arrays."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, Iterator | bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} has no JSON")  # it may be endless, or no text
    to_list = getattr(value, "tolist", None)  # numpy and torch
    return to_list() if to_list is not None else to_jsonable_python(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_as_json)


def short_line(text: str) -> str:
    """Returns a message, shortened and on one line."""
    line = " ".join(text.split())
    return _printable(line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}...")


def _printable(text: str) -> str:
    """Escapes lone surrogates, which no tokenizer and no file takes."""
    return text.encode("utf-8", "backslashreplace").decode()
