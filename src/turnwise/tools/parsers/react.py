"""Tool calls as lines of text: Thought, Action, Action Input or Input (arXiv:2210.03629)."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import (
    read_call,
    skip_closing_fence,
    skip_fence,
    write_json,
)
from turnwise.tools.parsers.values import read_name, write_name
from turnwise.tools.types import ToolCall

_INPUT = re.compile(r"[ \t\r*`]*+\n[\s*]*+(?:Action[ \t]++)?+Input[ \t*]*+:[ \t*]*+")
_OBSERVATION = re.compile(r"[\s*]*+Observation[ \t*]*+:")


class ReActActionParser(FormatParser):
    """Reads a line `Action: buy` and after it `Action Input: {"item": "tea"}`, or just `Input:`.

    An `Observation:` after it is made up by the model; the rest stays in the text.

    >>> parser = ReActActionParser()
    >>> parser.parse('Thought: I need tea.\\nAction: buy\\nAction Input: {"item": "tea"}')
    ParseResult(calls=[ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)],\
 malformed=None, text='Thought: I need tea.')
    """

    opening = re.compile(r"^[ \t*]*+Action[ \t*]*+:", re.MULTILINE)

    def _find(self, text: str, position: int) -> int:
        return -1 if _OBSERVATION.match(text, position) else super()._find(text, position)

    def _read(self, text: str, start: int) -> Attempt:
        name, end = read_name(text, text.index(":", start) + 1)
        line = _INPUT.match(text, end)
        if not name or line is None:
            missing = "line with Action Input (or Input)" if name else "name of a tool"
            return Attempt(end, problem=f"there is no {missing} after Action")
        call, end = read_call(text, skip_fence(text, line.end()), name)
        if isinstance(call, ToolCall):
            return Attempt(skip_closing_fence(text, end), [call])
        return Attempt(end, problem=call)

    def render(self, call: ToolCall) -> str:
        return f"Action: {write_name(call)}\nAction Input: {write_json(call.arguments, call.name)}"
