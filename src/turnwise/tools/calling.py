"""Makes the result of a call: the text of what a tool returned, or of why it failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from turnwise.errors import (
    DeadlineExceeded,
    EnvironmentFault,
    ToolError,
    describe_error,
    error_message,
)
from turnwise.tools.base import DEFAULT_MAX_OUTPUT
from turnwise.tools.types import ToolFailure, ToolResult
from turnwise.types import StepResult

_MAX_MESSAGE = 800


class CallRefused(Exception):
    """A call that is refused before the tool runs."""

    def __init__(self, failure: ToolFailure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


class NotTextError(TypeError):
    """A tool returned what is neither text nor JSON."""


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
    if isinstance(value, str):
        head, was_cut = value[:limit], len(value) > limit
    else:
        head, was_cut = _encode(value, limit)
    text = _printable(head)
    if was_cut:
        text += f"\n[The answer was cut after {limit} characters. Ask for less at once.]"
    if was_cut or isinstance(value, str):
        value = text
    return ToolResult(name, success=True, text=text, value=value, was_cut=was_cut, step=step)


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


def _as_json(value: Any) -> Any:
    """Converts dataclasses, pydantic models, dates, paths, sets, enums and arrays."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, Iterator | bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} has no JSON")  # it may be endless, or no text
    to_list = getattr(value, "tolist", None)  # numpy and torch
    return to_list() if to_list is not None else to_jsonable_python(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_as_json)


def failed_result(name: str, error: BaseException, seconds: float) -> ToolResult:
    """Returns the result of a call that raised this."""
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
    return ToolResult(name, False, text, value=text, seconds=seconds, failure=failure)


def one_line(text: str) -> str:
    """Returns a message, shortened and on one line."""
    # Only the start: splitting 100 MB into words would take seconds.
    line = " ".join(text[: 4 * _MAX_MESSAGE].split())
    line = line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."
    return _printable(line)


def _printable(text: str) -> str:
    """Escapes lone surrogates, which no tokenizer and no file takes."""
    return text.encode("utf-8", "backslashreplace").decode()
