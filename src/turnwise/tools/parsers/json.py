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
    """Looks at each object of the text; one that is no call is left where it is."""

    opening = re.compile(r'\{\s*+"')
    name_keys: ClassVar[tuple[str, ...]]
    """What the key with the tool's name may be called."""
    call_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    """Further keys that show that a broken object was to be a call."""

    def _read(self, text: str, start: int) -> Attempt:
        value, end, problem = read_json(text, start)
        if problem is None:
            return self._take(value, end)
        if problem == INCOMPLETE or self._is_attempt(text, start, end):
            return Attempt(end, problem=problem)
        return Attempt(max(end, start + 1))  # {"a", "b"} is a set that somebody talks about

    def _is_attempt(self, text: str, start: int, end: int) -> bool:
        keys = (*self.name_keys, *self.call_keys)
        return any(text.find(f'"{key}"', start, end) >= 0 for key in keys)

    def _take(self, value: dict[str, Any], end: int) -> Attempt:
        """What an object stands for."""
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

    `name` is taken for `tool` and `parameters` for `arguments`, and arguments that are
    themselves a JSON text are read. An object that is no call is left in the text.

    >>> JSONActionParser().parse('I will buy. {"tool": "buy", "arguments": {"item": "tea"}}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    name_keys = ("tool", "name")

    def render(self, call: ToolCall) -> str:
        return write_json({"tool": check_name(call), "arguments": call.arguments}, call.name)
