"""`ActionParser` finds tool calls in text; `FormatParser` is the base of the built-in ones.

Below it stands what reads and writes the pieces of a call: JSON, and names. A name outside of JSON
that could be misread is written as a JSON string, in quotes.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

from turnwise.errors import ToolError
from turnwise.tools.types import ToolCall, ToolDefinition

MAX_CALLS = 100
"""A degenerate model repeats a call without end."""

_EMPTY_FENCE = re.compile(r"```\w*+\s*+```")
_EMPTY_LIST = re.compile(r"\[[\s,;]*+\]")


class ParseOutcome(Enum):
    """Whether a turn has calls."""

    NO_CALL = "no call"
    MALFORMED = "malformed"
    CALLS = "calls"


@dataclass(frozen=True)
class ParseResult:
    """The content of a turn: calls, a call that could not be read, or neither.

    >>> ParseResult(malformed="the JSON ends before it is complete").outcome
    <ParseOutcome.MALFORMED: 'malformed'>
    """

    calls: list[ToolCall] = field(default_factory=list)
    """The calls that could be read, in order, up to the first that could not."""
    malformed: str | None = None
    """Why a call could not be read and how to write it, for the model; calls before it are in
    `calls`."""
    text: str = ""
    """The text around the calls, including those that could not be read."""

    @property
    def outcome(self) -> ParseOutcome:
        """`CALLS` if there is any; else `MALFORMED` if one could not be read."""
        if self.calls:
            return ParseOutcome.CALLS
        return ParseOutcome.NO_CALL if self.malformed is None else ParseOutcome.MALFORMED

    @property
    def is_empty(self) -> bool:
        """Whether there is no call, also none that could not be read."""
        return self.outcome is ParseOutcome.NO_CALL


class ActionParser(ABC):
    """A format of tool calls. `parse(render(call)).calls == [call]` holds for each."""

    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Parts of the format that may be special tokens of a tokenizer: decoding must keep them."""

    @abstractmethod
    def parse(self, text: str) -> ParseResult:
        """Finds the calls in a turn. Never raises; takes time linear in the length of the text."""

    @abstractmethod
    def render(self, call: ToolCall) -> str:
        """Returns the call as a model should write it, without its result."""


@dataclass(slots=True)
class Attempt:
    """The result of reading at a position where a call may begin."""

    end: int
    """Where to continue."""
    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None
    """Why the rest could not be read. Without calls and problem it is just text."""
    said: str = ""
    """Text inside of what was read."""


class Malformed(ValueError):
    """What was meant as a call cannot be read; `end` is how far it was read."""

    def __init__(self, problem: str, end: int = 0) -> None:
        super().__init__(problem)
        self.end = end


class FormatParser(ActionParser):
    """A parser that finds the positions where a call may begin and reads it there.

    Text before the first `thought_end` is thought, and so is text between a later `thought_start`
    and the next end, or the end of the turn: nothing in it is a call. After a call that could not
    be read nothing more is read, so that a piece of it, such as a text to write into a file, is
    never taken for a call.
    """

    opening: ClassVar[re.Pattern[str]]
    """Where a call may begin."""
    thought_start: ClassVar[str] = "<think>"
    thought_end: ClassVar[str] = "</think>"
    """Empty if the format marks thoughts in another way."""

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        """`definitions` are for formats in which 5 may be a number or a text."""

    def _find(self, text: str, position: int) -> int:
        """Returns where the next call may begin, from `position` on; -1 if nowhere."""
        match = self.opening.search(text, position)
        return -1 if match is None else match.start()

    @abstractmethod
    def _read(self, text: str, start: int) -> Attempt:
        """Reads the call at `start`; may raise `Malformed`."""

    def parse(self, text: str) -> ParseResult:
        closed = text.find(self.thought_end) if self.thought_end else -1
        # The start of the first thought may be in the prompt.
        start = self._next_call(text, closed + len(self.thought_end) if closed >= 0 else 0)
        problem: str | None = None
        calls: list[ToolCall] = []
        around: list[str] = []
        kept = 0
        while start >= 0 and problem is None:
            try:
                attempt = self._read(text, start)
            except Malformed as error:
                problem = str(error)
                break
            problem = attempt.problem
            if attempt.calls:
                calls += attempt.calls
                around += (text[kept:start], attempt.said)
                kept = attempt.end
            if len(calls) > MAX_CALLS:
                problem = f"there are more than {MAX_CALLS} calls in one turn"
            start = self._next_call(text, attempt.end)
        malformed = None if problem is None else f"{problem}; write {self.form}"
        said = "".join([*around, text[kept:]])
        if calls:  # without a fence or a list that had only calls
            said = _EMPTY_LIST.sub("", _EMPTY_FENCE.sub("", said))
        return ParseResult(calls[:MAX_CALLS], malformed, said.strip())

    def _next_call(self, text: str, position: int) -> int:
        """Returns the first position outside of thoughts where a call may begin; -1 if none."""
        start = self._find(text, position)
        while self.thought_start:
            opened = text.find(self.thought_start, position, len(text) if start < 0 else start)
            if opened < 0:
                break
            closed = text.find(self.thought_end, opened)
            if closed < 0:
                return -1
            position = closed + len(self.thought_end)
            if 0 <= start < position:
                start = self._find(text, position)
        return start

    @cached_property
    def form(self) -> str:
        """An example of a call."""
        return self.render(ToolCall("name", {"key": "value"}))


INCOMPLETE = "the JSON ends before it is complete"

_ARGUMENT_KEYS = ("arguments", "parameters")
FENCE = re.compile(r"\s*+(?:```(?:json|JSON)?+\s*+)?+")
CLOSING_FENCE = re.compile(r"(?:\s*+```)?+")
_SPACE = re.compile(r"\s*+")
# These are escaped in strings of a call, or a parser would take the text before for a thought.
_THOUGHT_ENDS = (("</think>", "\\u003c/think>"), ("[/THINK]", "\\u005b/THINK]"))

_SAFE_NAME = re.compile(r"[\w./-]++")
# Markdown before and after a name is not part of it.
_BARE_NAME = re.compile(r'[ \t*]*+`?+([^<>\[{\n"`]*+)')
_AFTER_NAME = " \t\r*"


def _read_finite(digits: str) -> float:
    value = float(digits)  # also of NaN and Infinity, which are not JSON
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is not JSON: a number must be finite")
    return value


# Not strict: models put plain line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_read_finite, parse_float=_read_finite)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Returns the value at `start` and its end; raises `Malformed` if there is none."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        at = error.pos
        if error.msg.startswith("Unterminated string") or skip(text, at) == len(text):
            raise Malformed(INCOMPLETE, at) from None
        reason = f"the JSON is broken near {text[at : at + 12]!r}: {error.msg}"
        raise Malformed(reason, at) from None
    except (ValueError, RecursionError) as error:  # such as NaN, or a number of 5,000 digits
        raise Malformed(f"the JSON cannot be read: {str(error)[:100]}", len(text)) from None


def write_json(value: Any) -> str:
    """Returns one line of JSON that parses to the same value."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        fix = "Use str, int, finite float, bool, None, lists and dicts."
        raise ToolError(f"arguments cannot be written as JSON: {error}. {fix}") from None
    for end, escaped in _THOUGHT_ENDS:
        text = text.replace(end, escaped)
    return text


def call_from_object(value: dict[str, Any], name_keys: tuple[str, ...]) -> ToolCall | None:
    """Returns the call of an object, or None for other JSON; raises `Malformed` for a wrong one."""
    name_key = next((key for key in name_keys if key in value), None)
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key is None:
        if argument_key is None:
            return None
        raise Malformed(f'there is no "{name_keys[0]}" next to "{argument_key}"')
    schema = value.get("parameters")
    if "description" in value and isinstance(schema, dict) and schema.get("type") == "object":
        return None  # the definition of a tool, repeated
    if argument_key is None and not value.keys() <= {name_key, "type", "id"}:
        if name_key == "name":
            return None  # {"name": "Ann", "age": 3} is data; {"tool": ...} is meant as a call
        raise Malformed('the arguments must be inside "arguments"')
    name = value[name_key]
    if not isinstance(name, str) or not name:
        raise Malformed(f'"{name_key}" must be the name of a tool, got {name!r:.40}')
    return _make_call(name, {} if argument_key is None else value[argument_key])


def read_call(text: str, position: int, name: str) -> Attempt:
    """Reads the arguments at `position` as those of a call of `name`."""
    value, end = read_json(text, position)
    return Attempt(end, [_make_call(name, value)])


def _make_call(name: str, arguments: Any) -> ToolCall:
    if arguments is None or arguments == "":
        return ToolCall(name)  # models write these for a tool without arguments
    if isinstance(arguments, str):
        start = skip(arguments, 0)
        try:
            value, end = read_json(arguments, start)
            if skip(arguments, end) == len(arguments):
                arguments = value
        except Malformed as error:
            if arguments.startswith("{", start):
                raise Malformed(f"in the arguments, {error}") from None
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments must be an object, got {arguments!r:.40}")
    return ToolCall(name, arguments)


def calls_from_values(values: Iterable[Any], end: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads values that must all be calls, up to the first that is none."""
    attempt = Attempt(end)
    for value in values:
        try:
            call = call_from_object(value, name_keys) if isinstance(value, dict) else None
            if call is None:
                raise Malformed(f"expected a call, got {value!r:.40}")
        except Malformed as error:
            attempt.problem = str(error)
            break
        attempt.calls.append(call)
    return attempt


def read_calls(text: str, start: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads an object or a list at `start`, which must be calls; a code fence is skipped."""
    value, end = read_json(text, skip(text, start, FENCE))
    values = value if isinstance(value, list) else [value]
    return calls_from_values(values, skip(text, end, CLOSING_FENCE), name_keys)


def skip(text: str, position: int, pattern: re.Pattern[str] = _SPACE) -> int:
    """Returns the position after white space, or after what another pattern matches."""
    match = pattern.match(text, position)
    assert match is not None  # these patterns match the empty text too
    return match.end()


def skip_marker(text: str, position: int, marker: str) -> int:
    """Returns the position after white space and a marker, if the marker is there."""
    after = skip(text, position)
    return after + len(marker) if text.startswith(marker, after) else position


def expect(text: str, position: int, marker: str) -> int:
    """Returns the position after the marker; raises `Malformed` if it is not there."""
    if not text.startswith(marker, position):
        raise Malformed(f"there is no {marker} before {text[position : position + 20]!r}")
    return position + len(marker)


def write_name(name: str) -> str:
    """Returns the name of a tool or an argument, in quotes if necessary."""
    return name if _SAFE_NAME.fullmatch(name) else write_json(name)


def read_name(text: str, start: int, bare: re.Pattern[str] = _BARE_NAME) -> tuple[str, int]:
    """Returns the name at `start` and its end; empty if there is none."""
    match = bare.match(text, start)
    assert match is not None  # it matches the empty text too
    name, end = match.group(1).rstrip(_AFTER_NAME), match.end()
    if name or not text.startswith('"', end):
        return name, end
    try:
        return read_json(text, end)
    except Malformed as error:
        return "", error.end
