"""Tool calls of gpt-oss, in the harmony format."""

from __future__ import annotations

import re

from turnwise.tools.parsers.base import Attempt, FormatParser
from turnwise.tools.parsers.json_text import read_call, read_json, skip_space, write_json
from turnwise.tools.parsers.values import write_name
from turnwise.tools.types import ToolCall

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _RETURN, _CALL = "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"

# The prompt ends with `<|start|>assistant`, so a turn may begin with its recipient.
_RECIPIENT_FIRST = re.compile(r"\s*+(?:\w++\s++)?+to=[^<]*+<\|(?:channel|constrain|message)\|>")
_TO = re.compile(r'(?:[^<"]|<\|channel\|>)*?\bto=(?:functions\.)?+')
_NAME = re.compile(r'[^\s<>"]*+')
_HEADER = re.compile(r"[^<]*+(?:<\|(?:channel|constrain)\|>[^<]*+)*+")
_ENDS = re.compile(r"<\|(?:start|end|return|call)\|>")


class HarmonyParser(FormatParser):
    """Reads messages with `to=functions.buy` in the header; their content are the arguments.

    The header is the text between `<|channel|>` or `<|start|>` and `<|message|>`. A message without
    a recipient, such as one in the analysis channel, has no calls.

    >>> text = '<|channel|>commentary to=functions.buy <|constrain|>json<|message|>{"item": "tea"}'
    >>> HarmonyParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _RETURN, _CALL)
    opening = re.compile(r"<\|(?:start|channel)\|>")
    thought_start = thought_end = ""  # it has channels instead

    def _find(self, text: str, position: int) -> int:
        if position == 0 and _RECIPIENT_FIRST.match(text):
            return 0
        return super()._find(text, position)

    def _read(self, text: str, start: int) -> Attempt:
        inside = start
        for marker in (_START, _CHANNEL):
            inside += len(marker) if text.startswith(marker, inside) else 0
        recipient = _TO.match(text, inside)
        if recipient is None or text.startswith("to=assistant", recipient.end() - len("to=")):
            # A message without a recipient, or a tool result that the model made up.
            return Attempt(_end_of_message(text, _end_of_header(text, inside)))
        name, position = _read_name(text, recipient.end())
        if not name:
            return Attempt(position, problem="there is no name of a tool after to=")
        position = _end_of_header(text, position)
        if not text.startswith(_MESSAGE, position):
            return Attempt(position, problem=f"there is no {_MESSAGE} after to={name[:40]}")
        call, end = read_call(text, skip_space(text, position + len(_MESSAGE)), name)
        if not isinstance(call, ToolCall):
            return Attempt(end, problem=call)
        after = skip_space(text, end)
        return Attempt(after + len(_CALL) if text.startswith(_CALL, after) else end, [call])

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        recipient = f"to=functions.{write_name(call)}"
        return f"{_CHANNEL}commentary {recipient} {_CONSTRAIN}json{_MESSAGE}{arguments}{_CALL}"


def _read_name(text: str, start: int) -> tuple[str, int]:
    """Returns the name at `start`, in quotes or up to the next space, and its end."""
    found = _NAME.match(text, start)
    assert found is not None  # it matches the empty text too
    if found.group() or not text.startswith('"', start):
        return found.group(), found.end()
    value, end, problem = read_json(text, start)
    return (value if problem is None else ""), end


def _end_of_header(text: str, position: int) -> int:
    found = _HEADER.match(text, position)
    assert found is not None  # it matches the empty text too
    return found.end()


def _end_of_message(text: str, position: int) -> int:
    """Returns where the next message may begin."""
    if not text.startswith(_MESSAGE, position):
        return position
    found = _ENDS.search(text, position)
    if found is None:
        return len(text)
    return found.start() if found.group() == _START else found.end()
