"""`ActionParser` finds tool calls in text; `FormatParser` is the base of the built-in ones."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import ClassVar

from turnwise.tools.types import ToolCall, ToolDefinition

# Longer texts are not parsed: a degenerate model must not block the other episodes.
MAX_LENGTH = 1_000_000
MAX_CALLS = 100
MAX_ARGUMENTS = 500
# Each object takes microseconds even if it is no call, so that many of them add up.
_MAX_ATTEMPTS = 250
# Brackets and commas, each of which may be a value or a level. Python's JSON parser recurses in C:
# this many levels fit any stack, whatever the recursion limit.
_MAX_PARTS = 10_000

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

    def _hint(self, text: str, position: int) -> str | None:
        """Returns the problem of a turn in which no call was found, if there is a known one."""
        return None

    def parse(self, text: str) -> ParseResult:
        thoughts = _Thoughts(text, self.thought_start, self.thought_end)
        position = thoughts.first_end
        start = thoughts.next_call(position, self._find)
        problem: str | None = None
        if start >= 0 and len(text) > MAX_LENGTH:
            problem = f"a turn with calls may have at most {MAX_LENGTH} characters, not {len(text)}"
        elif start >= 0 and sum(text.count(part, start) for part in "{[,") > _MAX_PARTS:
            problem = f"there are more than {_MAX_PARTS} brackets and commas"
        calls: list[ToolCall] = []
        around: list[str] = []
        kept = num_attempts = 0
        while start >= 0 and problem is None:
            try:
                attempt = self._read(text, start)
            except Malformed as error:
                attempt = Attempt(start, problem=str(error))
            problem = attempt.problem
            num_attempts += 1
            if attempt.calls:
                calls += attempt.calls
                around += (text[kept:start], attempt.said)
                kept = attempt.end
            if len(calls) > MAX_CALLS:
                problem = f"there are more than {MAX_CALLS} calls in one turn"
            elif num_attempts == _MAX_ATTEMPTS:
                problem = f"there are {_MAX_ATTEMPTS} or more objects in one turn"
            elif problem is None:
                start = thoughts.next_call(attempt.end, self._find)
        if not calls and problem is None and not thoughts.is_unfinished:
            problem = self._hint(text, position)
        malformed = None if problem is None else f"{problem}; write {self.form}"
        around.append(text[kept:])
        return ParseResult(calls[:MAX_CALLS], malformed, _tidy(around))

    @cached_property
    def form(self) -> str:
        """An example of a call."""
        return self.render(ToolCall("name", {"key": "value"}))


class _Thoughts:
    """Finds the thoughts of a turn, from left to right."""

    def __init__(self, text: str, start: str, end: str) -> None:
        self._text, self._start, self._end = text, start, end
        closed = text.find(end) if end else -1
        self.first_end = closed + len(end) if closed >= 0 else 0
        """The end of the first thought, whose start may be in the prompt."""
        self.is_unfinished = False
        self._next = text.find(start, self.first_end) if start else -1

    def next_call(self, position: int, find: Callable[[str, int], int]) -> int:
        """Returns the first position outside of thoughts where a call may begin; -1 if none."""
        text, start = self._text, find(self._text, position)
        while True:
            if 0 <= self._next < position:  # it is inside a call: an argument, no thought
                self._next = text.find(self._start, position)
            is_thought = self._next >= 0 and (self._next < start or start < 0)
            if not is_thought:
                return start
            closed = text.find(self._end, self._next)
            if closed < 0:
                self.is_unfinished = True
                return -1
            position = closed + len(self._end)
            if 0 <= start < position:
                start = find(text, position)


def _tidy(around: list[str]) -> str:
    """Returns the text around the calls, without a fence or list that had only calls."""
    if len(around) == 1:
        return around[0].strip()
    return _EMPTY_LIST.sub("", _EMPTY_FENCE.sub("", "".join(around))).strip()
