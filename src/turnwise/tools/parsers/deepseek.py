"""Tool calls of DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import (
    read_call,
    skip_closing_fence,
    skip_fence,
    skip_marker,
    skip_space,
    write_json,
)
from turnwise.tools.parsers.values import read_name, write_name
from turnwise.tools.types import ToolCall

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekParser(FormatParser):
    """Reads `function<sep>buy`, then the arguments in a fence, between DeepSeek's own markers.

    Also V3.1's `buy<sep>{"item": "tea"}`.

    >>> text = '<｜tool▁call▁begin｜>buy<｜tool▁sep｜>{"item": "tea"}<｜tool▁call▁end｜>'
    >>> DeepSeekParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    opening = re.compile(f"{_CALLS}|{_CALL}")

    def _read(self, text: str, start: int) -> Attempt:
        position = skip_space(text, skip_marker(text, start, _CALLS))
        if not text.startswith(_CALL, position):
            return Attempt(position, problem=f"there is no {_CALL} after {_CALLS}")
        name, position = read_name(text, position + len(_CALL))
        if not text.startswith(_SEPARATOR, position):
            return Attempt(position, problem=f"there is no {_SEPARATOR} after {_CALL}")
        position = skip_space(text, position + len(_SEPARATOR))
        if name == "function" and not text.startswith("{", position):
            name, position = read_name(text, position)
        if not name:
            return Attempt(position, problem="the call has no name")
        call, end = read_call(text, skip_fence(text, position), name)
        if not isinstance(call, ToolCall):
            return Attempt(end, problem=call)
        end = skip_marker(text, skip_closing_fence(text, end), _CALL_END)
        return Attempt(skip_marker(text, end, _CALLS_END), [call])

    def render(self, call: ToolCall) -> str:
        arguments = f"```json\n{write_json(call.arguments, call.name)}\n```"
        return (
            f"{_CALLS}{_CALL}function{_SEPARATOR}{write_name(call)}\n{arguments}"
            f"{_CALL_END}{_CALLS_END}"
        )


class DeepSeekV31Parser(DeepSeekParser):
    """Reads the same as `DeepSeekParser`, and writes `buy<sep>{"item": "tea"}` as V3.1 does."""

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        return f"{_CALLS}{_CALL}{write_name(call)}{_SEPARATOR}{arguments}{_CALL_END}{_CALLS_END}"
