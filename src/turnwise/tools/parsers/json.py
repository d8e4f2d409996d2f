"""Tool calls written as plain JSON objects, anywhere in the text."""

from __future__ import annotations

from turnwise.tools.calls import ToolCall
from turnwise.tools.parsers.json_text import check_name, write_json
from turnwise.tools.parsers.objects import ObjectParser


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
