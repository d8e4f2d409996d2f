"""Tool calls of Hermes, Qwen 2.5, Qwen 3 and the many that follow them."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import MAX_CALLS, Attempt, FormatParser
from turnwise.tools.parsers.json_text import check_name, read_calls, skip_space, write_json
from turnwise.tools.types import ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(FormatParser):
    """Reads `<tool_call>{"name": "buy", "arguments": {"item": "tea"}}</tool_call>`.

    The closing tag may be missing at the end of the turn, where it may have been a stop string.

    >>> text = '<tool_call>{"name": "buy", "arguments": {"item": "tea"}}</tool_call>'
    >>> HermesParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(_OPEN)

    def _read(self, text: str, start: int) -> Attempt:
        attempt = Attempt(start + len(_OPEN))
        while len(attempt.calls) <= MAX_CALLS:
            more = read_calls(text, attempt.end, ("name",))
            attempt.calls += more.calls
            attempt.end = skip_space(text, more.end)
            attempt.problem = more.problem
            if more.problem is not None or not text.startswith("{", attempt.end):
                break
        after = text[attempt.end : attempt.end + len(_CLOSE)]
        if _CLOSE.startswith(after):  # or a piece of it, at the end of the text
            attempt.end += len(after)
        elif attempt.problem is None and not text.startswith(_OPEN, attempt.end):
            return Attempt(attempt.end, problem=f"after the call comes {after!r}, not {_CLOSE}")
        return attempt

    def render(self, call: ToolCall) -> str:
        value = {"name": check_name(call), "arguments": call.arguments}
        return f"{_OPEN}\n{write_json(value, call.name)}\n{_CLOSE}"
