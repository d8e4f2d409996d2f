"""`ActionParser`: from what a model wrote to tool calls, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from turnwise.tools.calls import ToolCall


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
