"""Tool calls of Llama 3.1 and later."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt
from turnwise.tools.parsers.json import ObjectParser
from turnwise.tools.parsers.json_text import (
    check_name,
    read_calls,
    read_json,
    skip_space,
    write_json,
)
from turnwise.tools.types import ToolCall

_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"([\w.-]{1,64})\.call\(")
_KEYWORD = re.compile(r"\s*+(\w++)\s*+=\s*+")
_SEPARATOR = re.compile(r"\s*+;")


class LlamaParser(ObjectParser):
    """Reads `{"name": "buy", "parameters": {"item": "tea"}}`, several of them separated by `;`.

    `<|python_tag|>` may precede it, or `buy.call(item="tea")`, as for the tools that Llama was
    trained with.

    >>> LlamaParser().parse('<|python_tag|>search.call(query="tea")').calls
    [ToolCall(name='search', arguments={'query': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_TAG,)
    opening = re.compile(rf"{re.escape(_TAG)}|{ObjectParser.opening.pattern}")
    name_keys = ("name", "function")

    def _read(self, text: str, start: int) -> Attempt:
        if not text.startswith(_TAG, start):
            attempt = super()._read(text, start)
        else:
            inside = skip_space(text, start + len(_TAG))
            built_in = _BUILT_IN.match(text, inside)
            if built_in is None:
                attempt = read_calls(text, inside, self.name_keys)
            else:
                attempt = _read_keywords(text, built_in.end(), built_in.group(1))
        separator = _SEPARATOR.match(text, attempt.end) if attempt.calls else None
        if separator is not None:
            attempt.end = separator.end()
        return attempt

    def render(self, call: ToolCall) -> str:
        return write_json({"name": check_name(call), "parameters": call.arguments}, call.name)


def _read_keywords(text: str, position: int, name: str) -> Attempt:
    """Reads the arguments of `name.call(key="value", ...)`."""
    arguments = {}
    while (keyword := _KEYWORD.match(text, position)) is not None:
        value, end, problem = read_json(text, keyword.end())
        if problem is not None:
            return Attempt(end, problem=problem)
        arguments[keyword.group(1)] = value
        position = skip_space(text, end)
        if not text.startswith(",", position):
            break
        position += 1
    if not text.startswith(")", position):
        return Attempt(position, problem=f"{name}.call( is not closed with )")
    return Attempt(position + 1, [ToolCall(name, arguments)])
