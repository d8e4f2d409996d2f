"""Tool calls of Qwen3-Coder and Qwen 3.5: tags around plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from turnwise.tools.parsers.base import MAX_ARGUMENTS, Attempt, FormatParser
from turnwise.tools.parsers.json_text import skip_space
from turnwise.tools.parsers.values import Values, read_name, write_bare, write_name
from turnwise.tools.types import ToolCall, ToolDefinition

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_TAGS = re.compile(r"</?+(?:tool_call|function|parameter|think)")


class QwenCoderParser(FormatParser):
    """Reads `<function=buy>`, and in it `<parameter=item>` with the value on its own lines.

    `<tool_call>` around it may be missing, as these models often leave out its start. `values.py`
    has the rules for texts and other values.

    >>> text = "<function=buy>\\n<parameter=item>\\ntea\\n</parameter>\\n</function>\\n</tool_call>"
    >>> QwenCoderParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(f"{_OPEN}|{_FUNCTION}")

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._values = Values(definitions, _TAGS)

    def _read(self, text: str, start: int) -> Attempt:
        if text.startswith(_OPEN, start):
            start = skip_space(text, start + len(_OPEN))
        if not text.startswith(_FUNCTION, start):
            return Attempt(start, problem=f"there is no {_FUNCTION}...> after {_OPEN}")
        name, position = read_name(text, start + len(_FUNCTION))
        if not name or not text.startswith(">", position):
            return Attempt(position, problem=f"{_FUNCTION}...> must hold the name of a tool")
        arguments, position, problem = self._read_parameters(text, position + 1, name)
        if problem is not None:
            return Attempt(position, problem=problem)
        close = skip_space(text, position)
        end = close + len(_CLOSE) if text.startswith(_CLOSE, close) else position
        return Attempt(end, [ToolCall(name, arguments)])

    def _read_parameters(
        self, text: str, position: int, tool: str
    ) -> tuple[dict[str, Any], int, str | None]:
        """Returns the arguments, the end of the function, and the problem if there is one."""
        arguments: dict[str, Any] = {}
        for _ in range(MAX_ARGUMENTS):
            position = skip_space(text, position)
            if text.startswith(_FUNCTION_END, position):
                return arguments, position + len(_FUNCTION_END), None
            if not text.startswith(_PARAMETER, position):
                return {}, position, f"{tool[:40]} is not closed with {_FUNCTION_END}"
            name, position = read_name(text, position + len(_PARAMETER))
            if not text.startswith(">", position):
                return {}, position, f"{_PARAMETER}...> must hold the name of an argument"
            end = text.find(_PARAMETER_END, position)
            if end < 0 or text.find(_PARAMETER, position, end) >= 0:
                return {}, position, f"{name[:40]} is not closed with {_PARAMETER_END}"
            value = text[position + 1 : end].removeprefix("\n").removesuffix("\n")
            arguments[name] = self._values.read(value, tool, name)
            position = end + len(_PARAMETER_END)
        return {}, position, f"there are {MAX_ARGUMENTS} or more arguments"

    def render(self, call: ToolCall) -> str:
        parameters = "".join(
            f"{_PARAMETER}{write_bare(key, call.name)}>\n"
            f"{self._values.write(value, call.name, key)}\n{_PARAMETER_END}\n"
            for key, value in call.arguments.items()
        )
        return f"{_OPEN}\n{_FUNCTION}{write_name(call)}>\n{parameters}{_FUNCTION_END}\n{_CLOSE}"
