"""Tool calls written as plain JSON objects, anywhere in the text."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import (
    INCOMPLETE,
    call_from_object,
    check_name,
    read_json,
    write_json,
)
from turnwise.tools.types import ToolCall


class ObjectParser(FormatParser):
    """Reads each JSON object of the text; one that is no call stays in the text."""

    opening = re.compile(r'\{\s*+"')
    name_keys: ClassVar[tuple[str, ...]]
    """The keys that may have the tool's name."""
    call_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    """Further keys that show that a broken object is meant as a call."""

    def _read(self, text: str, start: int) -> Attempt:
        value, end, problem = read_json(text, start)
        if problem is None:
            return self._take(value, end)
        if problem == INCOMPLETE or self._is_attempt(text, start, end):
            return Attempt(end, problem=problem)
        return Attempt(max(end, start + 1))  # such as the set {"a", "b"}

    def _is_attempt(self, text: str, start: int, end: int) -> bool:
        keys = (*self.name_keys, *self.call_keys)
        return any(text.find(f'"{key}"', start, end) >= 0 for key in keys)

    def _take(self, value: dict[str, Any], end: int) -> Attempt:
        """Returns the call of an object."""
        found = call_from_object(value, self.name_keys)
        if isinstance(found, ToolCall):
            return Attempt(end, [found])
        return Attempt(end, problem=found)

    def _hint(self, text: str, position: int) -> str | None:
        if re.compile(rf"\{{\s*+'(?:{'|'.join(self.name_keys)})'").search(text, position):
            return "the JSON has single quotes; use double quotes"
        return None


class JSONActionParser(ObjectParser):
    """Reads `{"tool": "buy", "arguments": {"item": "tea"}}`, with prose or code fences around.

    `name` is accepted for `tool`, `parameters` for `arguments`, and arguments may be a JSON string.
    An object that is no call stays in the text.

    >>> JSONActionParser().parse('I will buy. {"tool": "buy", "arguments": {"item": "tea"}}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    name_keys = ("tool", "name")

    def render(self, call: ToolCall) -> str:
        return write_json({"tool": check_name(call), "arguments": call.arguments}, call.name)
