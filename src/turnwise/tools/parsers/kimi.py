"""Tool calls of Kimi K2."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import (
    read_call,
    skip_marker,
    skip_space,
    write_json,
)
from turnwise.tools.parsers.values import read_name, write_name
from turnwise.tools.types import ToolCall

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_NAMESPACE = "functions."
_NUMBER = re.compile(r"\s*+:\d*+\s*+")


class KimiParser(FormatParser):
    """Reads `functions.buy:0`, the id of a call, and its arguments, between Kimi's own markers.

    >>> text = '<|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>{"item": "tea"}'
    >>> KimiParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_CALLS, _CALLS_END, _CALL, _CALL_END, _ARGUMENTS)
    opening = re.compile(f"{re.escape(_CALLS)}|{re.escape(_CALL)}")

    def _read(self, text: str, start: int) -> Attempt:
        position = skip_space(text, skip_marker(text, start, _CALLS))
        if not text.startswith(_CALL, position):
            return Attempt(position, problem=f"there is no {_CALL} after {_CALLS}")
        name, position = _read_id(text, position + len(_CALL))
        if not name:
            return Attempt(position, problem="the call has no name")
        if not text.startswith(_ARGUMENTS, position):
            return Attempt(position, problem=f"there is no {_ARGUMENTS} after the call's name")
        call, end = read_call(text, skip_space(text, position + len(_ARGUMENTS)), name)
        if not isinstance(call, ToolCall):
            return Attempt(end, problem=call)
        end = skip_marker(text, end, _CALL_END)
        return Attempt(skip_marker(text, end, _CALLS_END), [call])

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        identity = f"{_NAMESPACE}{write_name(call)}:0"
        return f"{_CALLS}{_CALL}{identity}{_ARGUMENTS}{arguments}{_CALL_END}{_CALLS_END}"


def _read_id(text: str, start: int) -> tuple[str, int]:
    """Returns the tool's name in `functions.name:0`, and its end; empty if there is none."""
    position = skip_space(text, start)
    if text.startswith(_NAMESPACE, position):
        position += len(_NAMESPACE)
    name, end = read_name(text, position)
    number = _NUMBER.match(text, end)  # after a name in quotes
    if number is not None:
        return name, number.end()
    bare, colon, tail = name.rpartition(":")
    return (bare if colon and (tail.isdigit() or not tail) else name), skip_space(text, end)
