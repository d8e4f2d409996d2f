"""Tool calls in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any

from turnwise.tools.parsers.base import Attempt
from turnwise.tools.parsers.json import ObjectParser
from turnwise.tools.parsers.json_text import calls_from_values, check_name, write_json
from turnwise.tools.types import ToolCall


class FunctionCallingParser(ObjectParser):
    """Reads a message with `tool_calls`, each a function's name and its arguments as a JSON string.

    One of these calls alone, a list of them and the older `function_call` are read too.

    >>> call = '{"function": {"name": "buy", "arguments": "{\\\\"item\\\\": \\\\"tea\\\\"}"}}'
    >>> FunctionCallingParser().parse(f'{{"content": "Fine.", "tool_calls": [{call}]}}')
    ParseResult(calls=[ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)],\
 malformed=None, text='Fine.')
    """

    name_keys = ("name",)
    call_keys = ("tool_calls", "function_call", "function", "arguments", "parameters")

    def _take(self, value: dict[str, Any], end: int) -> Attempt:
        calls = value.get("tool_calls")
        if calls is None:
            if not isinstance(value.get("function_call", value.get("function")), dict):
                return super()._take(value, end)
            calls = [value]
        if not isinstance(calls, list):
            return Attempt(end, problem='"tool_calls" must be a list')
        attempt = calls_from_values(map(_function, calls), end, self.name_keys)
        content = value.get("content")
        attempt.said = content if isinstance(content, str) else ""
        return attempt

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        function = {"name": check_name(call), "arguments": arguments}
        return write_json({"tool_calls": [{"type": "function", "function": function}]}, call.name)


def _function(value: Any) -> Any:
    """Returns the object with the name and the arguments."""
    if not isinstance(value, dict):
        return value
    return value.get("function_call", value.get("function", value))
