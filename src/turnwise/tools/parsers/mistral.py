"""Tool calls of Mistral's models, older and newer."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import (
    check_name,
    read_call,
    read_calls,
    skip_space,
    write_json,
)
from turnwise.tools.parsers.values import read_name, write_name
from turnwise.tools.types import ToolCall

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(FormatParser):
    """Reads `[TOOL_CALLS] [{"name": "buy", "arguments": {"item": "tea"}}]`.

    Also the newer `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`, with or without `[CALL_ID]` or `[ARGS]`.

    >>> MistralParser().parse('[TOOL_CALLS]buy[ARGS]{"item": "tea"}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_CALLS, _ARGS, _ID, "[THINK]", "[/THINK]")
    opening = re.compile(re.escape(_CALLS))
    thought_start, thought_end = "[THINK]", "[/THINK]"

    def _read(self, text: str, start: int) -> Attempt:
        inside = skip_space(text, start + len(_CALLS))
        if text.startswith(("[", "{"), inside):
            return read_calls(text, inside, ("name",))
        name, end = read_name(text, inside)
        if text.startswith(_ID, end):
            end = text.find(_ARGS, end)
        if not name or end < 0:
            return Attempt(inside, problem=f"there is no call after {_CALLS}")
        if text.startswith(_ARGS, end):
            end += len(_ARGS)
        call, end = read_call(text, skip_space(text, end), name)
        return Attempt(end, [call]) if isinstance(call, ToolCall) else Attempt(end, problem=call)

    def render(self, call: ToolCall) -> str:
        value = [{"name": check_name(call), "arguments": call.arguments}]
        return f"{_CALLS} {write_json(value, call.name)}"


class MistralArgsParser(MistralParser):
    """Reads the same as `MistralParser`, and writes `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`."""

    def render(self, call: ToolCall) -> str:
        return f"{_CALLS}{write_name(call)}{_ARGS}{write_json(call.arguments, call.name)}"
