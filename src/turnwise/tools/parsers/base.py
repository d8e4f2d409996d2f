"""`ActionParser`: from what a model wrote to tool calls, and back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import ClassVar

from turnwise.tools.types import ToolCall, ToolDefinition

# What is longer or holds more is not read: a model that runs wild must not hold up the others.
MAX_LENGTH = 1_000_000
MAX_CALLS = 100
MAX_ARGUMENTS = 500
# An object costs microseconds even if it is no call, so that many of them add up.
_MAX_ATTEMPTS = 250
# Brackets and commas, of which each may be a value or a level. Python's JSON reader recurses in C:
# so many levels fit any stack, whatever the recursion limit.
_MAX_PARTS = 10_000

_EMPTY_FENCE = re.compile(r"```\w*+\s*+```")
_EMPTY_LIST = re.compile(r"\[[\s,;]*+\]")


class ParseOutcome(Enum):
    """What a turn came to, for whoever counts."""

    NO_CALL = "no call"
    MALFORMED = "malformed"
    CALLS = "calls"


@dataclass(frozen=True)
class ParseResult:
    """What a turn of the model holds: calls, a failed attempt at one, or neither.

    >>> ParseResult(malformed="the JSON ends before it is complete").outcome
    <ParseOutcome.MALFORMED: 'malformed'>
    """

    calls: list[ToolCall] = field(default_factory=list)
    """The calls that could be read, in order. Nothing is read after an attempt that failed."""
    malformed: str | None = None
    """Why an attempt could not be read and how to write it, for the model; it may stand beside
    calls that could."""
    text: str = ""
    """What was said around the calls, failed attempts included."""

    @property
    def outcome(self) -> ParseOutcome:
        """Calls, if there is any; else malformed, if there was an attempt."""
        if self.calls:
            return ParseOutcome.CALLS
        return ParseOutcome.NO_CALL if self.malformed is None else ParseOutcome.MALFORMED

    @property
    def is_empty(self) -> bool:
        """No call, and no attempt at one."""
        return self.outcome is ParseOutcome.NO_CALL


class ActionParser(ABC):
    """One way of writing tool calls. `parse(render(call)).calls == [call]` holds for each."""

    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Parts of the format that tokenizers may know as special tokens: who decodes must keep them,
    or there is nothing left to find."""

    @abstractmethod
    def parse(self, text: str) -> ParseResult:
        """Find the calls in a turn. Never raises, whatever the text; time linear in its length."""

    @abstractmethod
    def render(self, call: ToolCall) -> str:
        """The call as a model should write it; its result is not part of that."""


@dataclass(slots=True)
class Attempt:
    """What was read at a place where a call seemed to begin."""

    end: int
    """Where to read on."""
    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None
    """Why it could not be read. Neither calls nor a problem: it was no call, just text."""
    said: str = ""
    """What was said inside of what was read."""


class FormatParser(ActionParser):
    """A parser that says where a call may begin and reads it there.

    What stands before the first `thought_end` is thought, and so is what stands between a later
    `thought_start` and the next end, or the end of the turn: nothing in it is a call. After a
    failed attempt nothing more is read, so that a piece of a broken call, for example a text that
    it was to write into a file, is never taken for a call.
    """

    opening: ClassVar[re.Pattern[str]]
    """Where a call may begin."""
    thought_start: ClassVar[str] = "<think>"
    thought_end: ClassVar[str] = "</think>"
    """Empty: the format marks thoughts in another way."""

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        """`definitions` help formats that do not say whether 5 is a number or a text."""

    def _find(self, text: str, position: int) -> int:
        """Where the next call may begin, from `position` on; -1: nowhere."""
        found = self.opening.search(text, position)
        return -1 if found is None else found.start()

    @abstractmethod
    def _read(self, text: str, start: int) -> Attempt:
        """Read what begins at `start`."""

    def _hint(self, text: str, position: int) -> str | None:
        """What is wrong with a turn in which no call was found, if it can be told."""
        return None

    def parse(self, text: str) -> ParseResult:
        thoughts = _Thoughts(text, self.thought_start, self.thought_end)
        position = thoughts.first_end
        start = thoughts.next_call(position, self._find)
        problem = None if start < 0 else _beyond_limits(text, start)
        calls: list[ToolCall] = []
        around: list[str] = []
        kept = num_attempts = 0
        while start >= 0 and problem is None:
            attempt = self._read(text, start)
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
        """How a call is written, as an example."""
        return self.render(ToolCall("name", {"key": "value"}))


class _Thoughts:
    """Where the thoughts of a turn are, looked for from left to right."""

    def __init__(self, text: str, start: str, end: str) -> None:
        self._text, self._start, self._end = text, start, end
        closed = text.find(end) if end else -1
        self.first_end = closed + len(end) if closed >= 0 else 0
        """Where the first thought ends, whose beginning may have been in the prompt."""
        self.is_unfinished = False
        self._next = text.find(start, self.first_end) if start else -1

    def next_call(self, position: int, find: Callable[[str, int], int]) -> int:
        """The first place from `position` on where a call may begin, in no thought; -1: none."""
        text, place = self._text, find(self._text, position)
        while True:
            if 0 <= self._next < position:  # it stood inside of a call: an argument, no thought
                self._next = text.find(self._start, position)
            is_thought = self._next >= 0 and (self._next < place or place < 0)
            if not is_thought:
                return place
            closed = text.find(self._end, self._next)
            if closed < 0:
                self.is_unfinished = True
                return -1
            position = closed + len(self._end)
            if 0 <= place < position:
                place = find(text, position)


def _beyond_limits(text: str, start: int) -> str | None:
    if len(text) > MAX_LENGTH:
        return f"a turn with calls may have at most {MAX_LENGTH} characters, not {len(text)}"
    if sum(text.count(part, start) for part in "{[,") > _MAX_PARTS:
        return f"there are more than {_MAX_PARTS} brackets and commas"
    return None


def _tidy(around: list[str]) -> str:
    """What was said around the calls, without the fence or the list that held only them."""
    if len(around) == 1:
        return around[0].strip()
    return _EMPTY_LIST.sub("", _EMPTY_FENCE.sub("", "".join(around))).strip()
