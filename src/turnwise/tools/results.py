"""`ToolResult`: what came of a call, and how a value becomes the text that a model reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.env.driver import StepResult

DEFAULT_MAX_OUTPUT = 16_000
"""Characters of an answer that a model is given; some four thousand tokens."""

_MAX_MESSAGE = 800


class ToolFailure(StrEnum):
    """Why a call did not work. All of them are told to the model."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    REFUSED = "refused"
    """The tool itself said no: it raised a `ToolError`."""
    RAISED = "raised"
    """The tool broke: any other exception, or an exit."""
    TIMED_OUT = "timed_out"
    BAD_RESULT = "bad_result"
    """It returned what is neither text nor JSON."""
    ENVIRONMENT = "environment"
    """The environment broke while a tool stepped in it; the episode cannot go on."""


@dataclass(frozen=True)
class ToolResult:
    """What came of one call.

    >>> ToolResult("add", success=True, text="3", value=3).done
    False
    """

    name: str
    """The tool, as the model wrote it."""
    success: bool
    """Whether it worked."""
    text: str
    """What the model is told: the answer, cut to the tool's limit, or what went wrong."""
    value: Any = None
    """What the tool returned; the text, where there is nothing else or it had to be cut."""
    seconds: float = 0.0
    """How long it took."""
    failure: ToolFailure | None = None
    """Why it did not work."""
    was_cut: bool = False
    """Whether the answer was longer than the tool's limit; the text says so too."""
    step: StepResult | None = None
    """What the environment gave, if the call was a step in it."""

    @property
    def reward(self) -> float:
        """What the call earned in the environment."""
        return self.step.reward if self.step is not None else 0.0

    @property
    def done(self) -> bool:
        """Whether the call ended the episode."""
        return self.step is not None and self.step.done


@dataclass(frozen=True)
class Answer:
    """What a tool returned, made ready for the model."""

    text: str
    value: Any
    was_cut: bool = False
    step: StepResult | None = None


class NotTextError(TypeError):
    """A tool returned what is neither text nor JSON."""


def read_answer(value: Any, limit: int) -> Answer:
    """Turn what a tool returned into text of at most `limit` characters and a note.

    >>> read_answer({"price": 3}, 100).text
    '{"price": 3}'
    >>> read_answer("abcdef", 3).text
    'abc\\n[The answer was cut after 3 characters. Ask for less at once.]'
    """
    from turnwise.env.driver import StepResult

    step = value if isinstance(value, StepResult) else None
    if step is not None:
        value = step.observation
    if value is None:
        return Answer("Done.", None)
    if isinstance(value, str):
        head, was_cut = value[:limit], len(value) > limit
    else:
        head, was_cut = _encode(value, limit)
    text = _printable(head)
    if was_cut:
        text += f"\n[The answer was cut after {limit} characters. Ask for less at once.]"
    return Answer(text, text if was_cut or isinstance(value, str) else value, was_cut, step)


def _encode(value: Any, limit: int) -> tuple[str, bool]:
    """The start of a value's JSON, and whether there is more; the rest is never made."""
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
    """Dataclasses, pydantic models, dates, paths, sets, enums, arrays."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, Iterator | bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} has no JSON")  # it may be endless, or no text
    to_list = getattr(value, "tolist", None)  # numpy and torch
    return to_list() if to_list is not None else to_jsonable_python(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_plain)


def _printable(text: str) -> str:
    """Half a surrogate pair is no text: no tokenizer and no file takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def one_line(text: str) -> str:
    """A message, short and on one line."""
    # Only the start is looked at: splitting 100 MB into words would take seconds.
    line = " ".join(text[: 4 * _MAX_MESSAGE].split())
    line = line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."
    return _printable(line)
