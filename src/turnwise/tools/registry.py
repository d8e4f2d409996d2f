"""`ToolRegistry`: the tools of an episode by name. It calls them, and catches their failures.

What a tool returned becomes the text of a `ToolResult`; so does the reason why it failed.
"""

import dataclasses
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from turnwise.deadlines import (
    call_with_deadline,
    ending_forked_copies,
    is_async,
    is_interrupt,
    run_sync,
)
from turnwise.errors import (
    DeadlineExceeded,
    EnvironmentFault,
    ToolError,
    describe_error,
    did_you_mean,
    error_message,
)
from turnwise.tools.base import DEFAULT_MAX_OUTPUT, Tool, as_tool, marked_tools
from turnwise.tools.context import ToolContext
from turnwise.tools.types import ToolCall, ToolDefinition, ToolFailure, ToolResult
from turnwise.types import StepResult

T = TypeVar("T", bound=Tool | Callable[..., Any])

_MAX_MESSAGE = 800


class CallRefused(Exception):
    """A call that is refused before the tool runs."""

    def __init__(self, failure: ToolFailure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


class NotTextError(TypeError):
    """A tool returned what is neither text nor JSON."""


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
                f"tools got {getattr(given, '__name__', repr(given)):.80}, expected a list of "
                "functions or objects of turnwise.Tool, such as tools=[it]. Tools that are named "
                "by text are the setting tools: [calculator, path.py:function]."
            )
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
        made = as_tool(thing)
        name = made.definition.name
        if name in self._tools:
            raise ToolError(
                f"there is already a tool {name!r}. Unregister it first, or give the new one "
                "another name."
            )
        self._tools[name] = made
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
        context = context or self._default_context()
        started = time.perf_counter()
        try:
            result = self._begin(call, context)
            if inspect.iscoroutine(result):
                result = run_sync(result)
        except BaseException as error:
            return _failed(call.name, error, started)
        return _finished(result, context, started)

    async def execute_async(self, call: ToolCall, context: ToolContext | None = None) -> ToolResult:
        """`execute` without blocking the event loop: a synchronous tool runs in a thread."""
        context = context or self._default_context()
        started = time.perf_counter()
        try:
            result = self._begin(call, context)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            return _failed(call.name, error, started)
        return _finished(result, context, started)

    def _begin(self, call: ToolCall, context: ToolContext) -> Any:
        """Returns the `ToolResult` of an inline tool, or an awaitable of it."""
        if call.name not in self._tools:
            raise CallRefused(ToolFailure.UNKNOWN_TOOL, _no_such_tool(call.name, self._tools))
        tool = self._tools[call.name]
        try:
            arguments = tool.with_context(tool.check(call.arguments), context)
        except ToolError as error:
            raise CallRefused(ToolFailure.BAD_ARGUMENTS, str(error)) from None
        function = tool.function

        # The value becomes text where the tool runs, not on the event loop: it may be 100 MB.
        def run() -> ToolResult | Awaitable[ToolResult]:
            with ending_forked_copies():
                value = function(**arguments)
            return finish(value) if inspect.isawaitable(value) else read(value)

        async def run_async() -> ToolResult:
            return await finish(function(**arguments))

        async def finish(value: Awaitable[Any]) -> ToolResult:
            with ending_forked_copies():
                return read(await value)

        def read(value: Any) -> ToolResult:
            return read_output(value, tool.max_output, call.name)

        if tool.inline and not is_async(function):
            return run()
        work = run_async if is_async(function) else run
        return call_with_deadline(work, timeout=tool.timeout, waiting_for=f"tool {call.name}")

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

    def _default_context(self) -> ToolContext:
        if self._context is None:
            self._context = self.open_context()
        return self._context


def _finished(result: ToolResult, context: ToolContext, started: float) -> ToolResult:
    if result.step is not None:
        context.steps.append(result.step)
    return dataclasses.replace(result, seconds=time.perf_counter() - started)


def _no_such_tool(name: object, known: Iterable[str]) -> str:
    shown = str(name)[:64]
    return f"there is no tool {shown!r}. {did_you_mean(shown, known)}"


def _failed(name: str, error: BaseException, started: float) -> ToolResult:
    """Returns the result of a call that raised; a cancelled episode and Ctrl-C propagate.

    This is the one place where failures of tools are caught.
    """
    if is_interrupt(error):
        raise error
    text = one_line(error_message(error))
    match error:
        case CallRefused(failure=failure):
            pass
        case ToolError():  # its text keeps its lines, such as the last ones of a traceback
            failure = ToolFailure.REFUSED
            text = read_output(error_message(error), DEFAULT_MAX_OUTPUT).text
        case EnvironmentFault():
            failure = ToolFailure.ENVIRONMENT
        case NotTextError():
            failure, text = ToolFailure.BAD_RESULT, one_line(f"{name} failed: it {error}.")
        case DeadlineExceeded():
            failure = ToolFailure.TIMED_OUT
            text = one_line(f"{name} took too long and was stopped. Ask for less at once.")
        case _:
            # An exception that a thread cannot pass on, such as SystemExit, arrives wrapped.
            if (cause := error.__cause__) is not None and not isinstance(cause, Exception):
                error = cause
            failure = ToolFailure.RAISED
            text = one_line(f"{name} failed with {describe_error(error)}")
    seconds = time.perf_counter() - started
    return ToolResult(name, False, text, value=text, seconds=seconds, failure=failure)


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
        # What is beyond the limit is never made: a value may have 100 MB of JSON.
        pieces = [value] if isinstance(value, str) else _ENCODER.iterencode(value)
        parts, length = [], 0
        for piece in pieces:
            parts.append(piece[: limit + 1])
            length += len(piece)
            if length > limit:
                break
        text = "".join(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotTextError(
            f"returned {type(value).__name__}, which is neither text nor JSON ({error})"
        ) from None
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


def one_line(text: str) -> str:
    """Returns a message, shortened and on one line."""
    # Only the start: splitting 100 MB into words would take seconds.
    line = " ".join(text[: 4 * _MAX_MESSAGE].split())
    line = line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."
    return _printable(line)


def _printable(text: str) -> str:
    """Escapes lone surrogates, which no tokenizer and no file takes."""
    return text.encode("utf-8", "backslashreplace").decode()
