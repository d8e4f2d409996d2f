"""Tool calls of GLM 4.5 and later: keys and values in tags."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from turnwise.tools.parsers.base import MAX_ARGUMENTS, Attempt, FormatParser
from turnwise.tools.parsers.json_text import skip_space
from turnwise.tools.parsers.values import Values, read_name, write_bare, write_name
from turnwise.tools.types import ToolCall, ToolDefinition

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_TAGS = re.compile(r"</?+(?:tool_call|arg_key|arg_value|think)")


class GLMParser(FormatParser):
    """Reads `<tool_call>buy`, then pairs of `<arg_key>` and `<arg_value>`, then `</tool_call>`.

    `values.py` has the rules for texts and other values.

    >>> pair = "<arg_key>item</arg_key><arg_value>tea</arg_value>"
    >>> GLMParser().parse(f"<tool_call>buy{pair}</tool_call>").calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    opening = re.compile(_OPEN)

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._values = Values(definitions, _TAGS)

    def _read(self, text: str, start: int) -> Attempt:
        name, position = read_name(text, skip_space(text, start + len(_OPEN)))
        if not name:
            return Attempt(position, problem=f"there is no name of a tool after {_OPEN}")
        arguments, position, problem = self._read_pairs(text, position, name)
        if problem is not None:
            return Attempt(position, problem=problem)
        return Attempt(position, [ToolCall(name, arguments)])

    def _read_pairs(
        self, text: str, position: int, tool: str
    ) -> tuple[dict[str, Any], int, str | None]:
        """Returns the arguments, the end of the call, and the problem if there is one."""
        arguments: dict[str, Any] = {}
        for _ in range(MAX_ARGUMENTS):
            position = skip_space(text, position)
            if text.startswith(_CLOSE, position):
                return arguments, position + len(_CLOSE), None
            if not text.startswith(_KEY, position):
                return {}, position, f"{tool[:40]} is not closed with {_CLOSE}"
            key, position = read_name(text, position + len(_KEY))
            if not text.startswith(_KEY_END, position):
                return {}, position, f"{key[:40]} is not closed with {_KEY_END}"
            position = skip_space(text, position + len(_KEY_END))
            if not text.startswith(_VALUE, position):
                return {}, position, f"there is no {_VALUE} for {key[:40]}"
            end = text.find(_VALUE_END, position)
            if end < 0 or text.find(_KEY, position, end) >= 0:
                return {}, position, f"{key[:40]} is not closed with {_VALUE_END}"
            value = text[position + len(_VALUE) : end]
            arguments[key] = self._values.read(value, tool, key)
            position = end + len(_VALUE_END)
        return {}, position, f"there are {MAX_ARGUMENTS} or more arguments"

    def render(self, call: ToolCall) -> str:
        pairs = "".join(
            f"{_KEY}{write_bare(key, call.name)}{_KEY_END}\n"
            f"{_VALUE}{self._values.write(value, call.name, key)}{_VALUE_END}\n"
            for key, value in call.arguments.items()
        )
        return f"{_OPEN}{write_name(call)}\n{pairs}{_CLOSE}"
