"""Calls one tool and returns the result, whether it succeeded or failed.

This is the one place where failures of tools are caught. A cancelled episode and the user's Ctrl-C
propagate.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
    error_message,
)
from turnwise.tools.base import DEFAULT_MAX_OUTPUT, Tool
from turnwise.tools.context import ToolContext
from turnwise.tools.types import ToolFailure, ToolResult
from turnwise.types import StepResult

_MAX_MESSAGE = 800


class CallRefused(Exception):
    """A call that is refused before the tool runs."""

    def __init__(self, failure: ToolFailure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


Finder = Callable[[str], Tool]
"""Returns the tool of a name, or raises `CallRefused`."""


async def call_async(
    find: Finder, name: str, arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult:
    """Calls a tool without blocking the event loop: a synchronous tool runs in a thread."""
    started = time.perf_counter()
    try:
        output = _begin(find, name, arguments, context)
        if inspect.isawaitable(output):
            output = await output
    except BaseException as error:
        return _failed(name, error, started)
    return _succeeded(name, output, context, started)


def call_sync(
    find: Finder, name: str, arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult:
    """Calls a tool from synchronous code."""
    started = time.perf_counter()
    try:
        output = _begin(find, name, arguments, context)
        if inspect.isawaitable(output):
            output = run_sync(_wait(output))
    except BaseException as error:
        return _failed(name, error, started)
    return _succeeded(name, output, context, started)


def _begin(find: Finder, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any:
    """Returns the output of an inline tool, or an awaitable of the output."""
    found = find(name)
    work = _prepare(found, arguments, context)
    if found.inline and not is_async(work):
        return work()
    return call_with_deadline(work, timeout=found.timeout, waiting_for=f"tool {name}")


def _prepare(found: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
    try:
        checked = found.check(arguments)
    except ToolError as error:
        raise CallRefused(ToolFailure.BAD_ARGUMENTS, str(error)) from None
    function = functools.partial(found.function, **found.with_context(checked, context))
    # The value becomes text where the tool runs, not on the event loop: it may be 100 MB.
    if is_async(function):
        return functools.partial(_run_async, function, found.max_output)
    return functools.partial(_run, function, found.max_output)


def _run(function: Callable[[], Any], limit: int) -> ToolOutput | Awaitable[ToolOutput]:
    with ending_forked_copies():
        value = function()
    if inspect.isawaitable(value):
        return _run_async(functools.partial(_wait, value), limit)
    return read_output(value, limit)


async def _run_async(function: Callable[[], Awaitable[Any]], limit: int) -> ToolOutput:
    with ending_forked_copies():
        value = await function()
    return read_output(value, limit)


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


def _succeeded(name: str, answer: ToolOutput, context: ToolContext, started: float) -> ToolResult:
    if answer.step is not None:
        context.steps.append(answer.step)
    return ToolResult(
        name,
        success=True,
        text=answer.text,
        value=answer.value,
        seconds=time.perf_counter() - started,
        was_cut=answer.was_cut,
        step=answer.step,
    )


def _failed(name: str, error: BaseException, started: float) -> ToolResult:
    if is_interrupt(error):
        raise error
    failure, message = _explain(name, error)
    # The text of a ToolError keeps its lines, such as the last ones of a traceback.
    refused = failure is ToolFailure.REFUSED
    text = read_output(message, DEFAULT_MAX_OUTPUT).text if refused else one_line(message)
    return ToolResult(
        name,
        success=False,
        text=text,
        value=text,
        seconds=time.perf_counter() - started,
        failure=failure,
    )


def _explain(name: str, error: BaseException) -> tuple[ToolFailure, str]:
    if isinstance(error, CallRefused):
        return error.failure, error_message(error)
    if isinstance(error, ToolError):
        return ToolFailure.REFUSED, error_message(error)
    if isinstance(error, EnvironmentFault):
        return ToolFailure.ENVIRONMENT, error_message(error)
    if isinstance(error, NotTextError):
        return ToolFailure.BAD_RESULT, f"{name} failed: it {error}."
    if isinstance(error, DeadlineExceeded):
        return ToolFailure.TIMED_OUT, f"{name} took too long and was stopped. Ask for less at once."
    # An exception that a thread cannot pass on, such as SystemExit, arrives wrapped.
    if (cause := error.__cause__) is not None and not isinstance(cause, Exception):
        error = cause
    return ToolFailure.RAISED, f"{name} failed with {describe_error(error)}"


@dataclass(frozen=True)
class ToolOutput:
    """The value that a tool returned, and its text for the model."""

    text: str
    value: Any
    was_cut: bool = False
    step: StepResult | None = None


class NotTextError(TypeError):
    """A tool returned what is neither text nor JSON."""


def read_output(value: Any, limit: int) -> ToolOutput:
    """Turns the value of a tool into text of at most `limit` characters and a note.

    >>> read_output({"price": 3}, 100).text
    '{"price": 3}'
    >>> read_output("abcdef", 3).text
    'abc\\n[The answer was cut after 3 characters. Ask for less at once.]'
    """
    step = value if isinstance(value, StepResult) else None
    if step is not None:
        value = step.observation
    if value is None:
        return ToolOutput("Done.", None)
    if isinstance(value, str):
        head, was_cut = value[:limit], len(value) > limit
    else:
        head, was_cut = _encode(value, limit)
    text = _printable(head)
    if was_cut:
        text += f"\n[The answer was cut after {limit} characters. Ask for less at once.]"
    return ToolOutput(text, text if was_cut or isinstance(value, str) else value, was_cut, step)


def _encode(value: Any, limit: int) -> tuple[str, bool]:
    """Returns the start of a value's JSON, and whether there is more, which is never created."""
    pieces: list[str] = []
    length = 0
    try:
        for piece in _ENCODER.iterencode(value):
            pieces.append(piece)
            length += len(piece)
            if length > limit:
                return "".join(pieces)[:limit], True
    except (TypeError, ValueError, RecursionError) as error:
        raise NotTextError(
            f"returned {type(value).__name__}, which is neither text nor JSON ({error})"
        ) from None
    return "".join(pieces), False


def _plain(value: Any) -> Any:
    """Converts dataclasses, pydantic models, dates, paths, sets, enums and arrays."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, Iterator | bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} has no JSON")  # it may be endless, or no text
    to_list = getattr(value, "tolist", None)  # numpy and torch
    return to_list() if to_list is not None else to_jsonable_python(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_plain)


def _printable(text: str) -> str:
    """Escapes lone surrogates, which no tokenizer and no file takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def one_line(text: str) -> str:
    """Returns a message, shortened and on one line."""
    # Only the start: splitting 100 MB into words would take seconds.
    line = " ".join(text[: 4 * _MAX_MESSAGE].split())
    line = line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."
    return _printable(line)
