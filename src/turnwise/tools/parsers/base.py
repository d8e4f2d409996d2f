"""`ActionParser`: from what a model wrote to tool calls, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from turnwise.tools.calls import ToolCall


@dataclass(frozen=True)
class ParseResult:
    """What a turn of the model holds: calls, a failed attempt at one, or neither.

    >>> ParseResult(malformed="the JSON ends before it is complete").is_empty
    False
    """

    calls: list[ToolCall] = field(default_factory=list)
    """The calls that could be read, in order."""
    malformed: str | None = None
    """Why an attempt at a call could not be read; it may stand beside calls that could."""
    text: str = ""
    """What was said around the calls."""

    @property
    def is_empty(self) -> bool:
        """No call, and no attempt at one."""
        return not self.calls and self.malformed is None


class ActionParser(ABC):
    """One way of writing tool calls. `parse(render(call)).calls == [call]` holds for each."""

    @abstractmethod
    def parse(self, text: str) -> ParseResult:
        """Find the calls in a turn. Never raises, whatever the text; time linear in its length."""

    @abstractmethod
    def render(self, call: ToolCall) -> str:
        """The call as a model should write it; its result is not part of that."""
