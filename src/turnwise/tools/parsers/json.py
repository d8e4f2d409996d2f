"""Tool calls written as plain JSON objects, anywhere in the text."""

from __future__ import annotations

import json
import re
from typing import Any

from turnwise.errors import ToolError
from turnwise.tools.calls import ToolCall
from turnwise.tools.parsers.base import ActionParser, ParseResult

_OBJECT = re.compile(r'\{\s*+"')
_SINGLE_QUOTED = re.compile(r"\{\s*+'(?:tool|name)'")
_EMPTY_FENCE = re.compile(r"```(?:json|JSON)?\s*+```")
_ARGUMENT_KEYS = ("arguments", "parameters")
_MAX_DIGITS = 4000
# Each failed attempt may read to the end of the text; so few of them keep the time linear.
_MAX_FAILURES = 8


class JSONActionParser(ActionParser):
    """Reads `{"tool": "buy", "arguments": {"item": "tea"}}`, with prose or code fences around.

    `name` is taken for `tool` and `parameters` for `arguments`, and arguments that are
    themselves a JSON text are read. An object that is no call is left in the text.

    >>> JSONActionParser().parse('I will buy. {"tool": "buy", "arguments": {"item": "tea"}}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    def parse(self, text: str) -> ParseResult:
        calls: list[ToolCall] = []
        problems: list[str] = []
        around: list[str] = []
        position = kept = 0
        while len(problems) < _MAX_FAILURES and (start := _OBJECT.search(text, position)):
            value, position, problem = _read_object(text, start.start())
            call = _as_call(value) if value is not None else problem
            if isinstance(call, ToolCall):
                calls.append(call)
                around.append(text[kept : start.start()])
                kept = position
            elif call is not None:
                problems.append(call)
        if not calls and not problems and _SINGLE_QUOTED.search(text):
            problems.append("the JSON has single quotes; write double quotes")
        around.append(text[kept:])
        rest = _EMPTY_FENCE.sub("", "".join(around)).strip()
        return ParseResult(calls, problems[0] if problems else None, rest)

    def render(self, call: ToolCall) -> str:
        try:
            return json.dumps({"tool": call.name, "arguments": call.arguments}, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolError(
                f"the arguments of a call of {call.name!r} cannot be written as JSON: {error}. "
                "Use str, int, float, bool, None, lists and dicts."
            ) from None


def _read_int(digits: str) -> int | float:
    # Python refuses to read a longer one; as a float it is infinite, which no tool accepts.
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


# Not strict: models put plain line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_int=_read_int)


def _read_object(text: str, start: int) -> tuple[dict[str, Any] | None, int, str | None]:
    """The object at `start`, where to read on, and why it could not be read.

    After a failure reading goes on where it failed, never inside: a piece of a broken call
    must not be taken for a call.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        position = max(error.pos, start + 1)
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            return None, position, "the JSON ends before it is complete"
        near = text[error.pos : error.pos + 12]
        return None, position, f"the JSON is broken near {near!r}: {error.msg}"
    except RecursionError:
        return None, len(text), "the JSON is nested too deeply"
    return value, end, None


def _as_call(value: dict[str, Any]) -> ToolCall | str | None:
    """The call that an object stands for, why it is not quite one, or None: just some JSON."""
    name_key = "tool" if "tool" in value else "name"
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key not in value:
        return None if argument_key is None else f'there is no "tool" beside {argument_key!r}'
    if argument_key is None and len(value) > 1:
        # {"name": "Ann", "age": 3} is data; {"tool": ...} is meant as a call.
        return None if name_key == "name" else 'the arguments must be inside "arguments"'
    name = value[name_key]
    if not isinstance(name, str) or not name:
        return f'"{name_key}" must be the name of a tool, got {_shorten(name)}'
    arguments = {} if argument_key is None else value[argument_key]
    if isinstance(arguments, str):
        arguments = _read_text(arguments)
    if not isinstance(arguments, dict):
        return f'"{argument_key}" must be an object, got {_shorten(arguments)}'
    return ToolCall(name, arguments)


def _read_text(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (json.JSONDecodeError, RecursionError):
        return text


def _shorten(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
