"""Formats with markers or tags around names and arguments: DeepSeek, Kimi, harmony, GLM, Qwen."""

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from turnwise.tools.parsers.base import MAX_ARGUMENTS, Attempt, FormatParser, Malformed
from turnwise.tools.parsers.reading import (
    Values,
    expect,
    read_call,
    read_name,
    skip_closing_fence,
    skip_fence,
    skip_marker,
    skip_space,
    write_bare,
    write_json,
    write_name,
)
from turnwise.tools.types import ToolCall, ToolDefinition


class SectionParser(FormatParser):
    """Reads calls between two markers, and all of them between two others, which may be missing."""

    calls: ClassVar[str]
    calls_end: ClassVar[str]
    call: ClassVar[str]
    call_end: ClassVar[str]

    def _read(self, text: str, start: int) -> Attempt:
        position = skip_space(text, skip_marker(text, start, self.calls))
        attempt = self._read_section(text, expect(text, position, self.call))
        end = skip_marker(text, attempt.end, self.call_end)
        attempt.end = skip_marker(text, end, self.calls_end)
        return attempt

    @abstractmethod
    def _read_section(self, text: str, position: int) -> Attempt:
        """Reads the name and the arguments after the marker of a call."""


_SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekParser(SectionParser):
    """Reads `function<sep>buy`, then the arguments in a fence, between DeepSeek's own markers.

    So write DeepSeek V3 and R1. V3.1's `buy<sep>{"item": "tea"}` is read too.

    >>> text = '<｜tool▁call▁begin｜>buy<｜tool▁sep｜>{"item": "tea"}<｜tool▁call▁end｜>'
    >>> DeepSeekParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    calls, calls_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    special_tokens = (calls, calls_end, call, call_end, _SEPARATOR)
    opening = re.compile(f"{calls}|{call}")

    def _read_section(self, text: str, position: int) -> Attempt:
        name, position = read_name(text, position)
        position = skip_space(text, expect(text, position, _SEPARATOR))
        if name == "function" and not text.startswith("{", position):
            name, position = read_name(text, position)
        if not name:
            raise Malformed("the call has no name")
        attempt = read_call(text, skip_fence(text, position), name)
        attempt.end = skip_closing_fence(text, attempt.end)
        return attempt

    def render(self, call: ToolCall) -> str:
        arguments = f"```json\n{write_json(call.arguments, call.name)}\n```"
        inside = f"function{_SEPARATOR}{write_name(call)}\n{arguments}"
        return f"{self.calls}{self.call}{inside}{self.call_end}{self.calls_end}"


class DeepSeekV31Parser(DeepSeekParser):
    """Reads the same as `DeepSeekParser`, and writes `buy<sep>{"item": "tea"}` as V3.1 does."""

    def render(self, call: ToolCall) -> str:
        inside = f"{write_name(call)}{_SEPARATOR}{write_json(call.arguments, call.name)}"
        return f"{self.calls}{self.call}{inside}{self.call_end}{self.calls_end}"


_NAMESPACE = "functions."
_ARGUMENTS = "<|tool_call_argument_begin|>"
_NUMBER = re.compile(r"\s*+:\d*+\s*+")


class KimiParser(SectionParser):
    """Reads `functions.buy:0`, the id of a call, and its arguments, between Kimi K2's own markers.

    >>> text = '<|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>{"item": "tea"}'
    >>> KimiParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    calls, calls_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    special_tokens = (calls, calls_end, call, call_end, _ARGUMENTS)
    opening = re.compile(f"{re.escape(calls)}|{re.escape(call)}")

    def _read_section(self, text: str, position: int) -> Attempt:
        position = skip_marker(text, skip_space(text, position), _NAMESPACE)
        name, position = read_name(text, position)
        number = _NUMBER.match(text, position)  # after a name in quotes
        if number is not None:
            position = number.end()
        else:
            bare, colon, tail = name.rpartition(":")
            name = bare if colon and (tail.isdigit() or not tail) else name
            position = skip_space(text, position)
        if not name:
            raise Malformed("the call has no name")
        return read_call(text, skip_space(text, expect(text, position, _ARGUMENTS)), name)

    def render(self, call: ToolCall) -> str:
        identity = f"{_NAMESPACE}{write_name(call)}:0"
        inside = f"{identity}{_ARGUMENTS}{write_json(call.arguments, call.name)}"
        return f"{self.calls}{self.call}{inside}{self.call_end}{self.calls_end}"


_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _RETURN, _CALL = "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"
# The prompt ends with `<|start|>assistant`, so a turn may begin with its recipient.
_RECIPIENT_FIRST = re.compile(r"\s*+(?:\w++\s++)?+to=[^<]*+<\|(?:channel|constrain|message)\|>")
_TO = re.compile(r'(?:[^<"]|<\|channel\|>)*?\bto=(?:functions\.)?+')
_RECIPIENT = re.compile(r'([^\s<>"]*+)')
_HEADER = re.compile(r"[^<]*+(?:<\|(?:channel|constrain)\|>[^<]*+)*+")
_ENDS = re.compile(r"<\|(?:start|end|return|call)\|>")


class HarmonyParser(FormatParser):
    """Reads messages with `to=functions.buy` in the header; their content are the arguments.

    So writes gpt-oss. The header is the text between `<|channel|>` or `<|start|>` and
    `<|message|>`. A message without a recipient, such as one in the analysis channel, has no calls.

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
            return Attempt(self._skip_message(text, self._skip_header(text, inside)))
        name, position = read_name(text, recipient.end(), _RECIPIENT)
        if not name:
            raise Malformed("there is no name of a tool after to=")
        position = expect(text, self._skip_header(text, position), _MESSAGE)
        attempt = read_call(text, skip_space(text, position), name)
        attempt.end = skip_marker(text, attempt.end, _CALL)
        return attempt

    def _skip_header(self, text: str, position: int) -> int:
        match = _HEADER.match(text, position)
        assert match is not None  # it matches the empty text too
        return match.end()

    def _skip_message(self, text: str, position: int) -> int:
        """Returns where the next message may begin."""
        if not text.startswith(_MESSAGE, position):
            return position
        match = _ENDS.search(text, position)
        if match is None:
            return len(text)
        return match.start() if match.group() == _START else match.end()

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        recipient = f"to=functions.{write_name(call)}"
        return f"{_CHANNEL}commentary {recipient} {_CONSTRAIN}json{_MESSAGE}{arguments}{_CALL}"


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class TagParser(FormatParser):
    """Reads arguments as pairs of a name and a plain value in tags; `Values` has the rules."""

    tags: ClassVar[re.Pattern[str]]
    """What plain values must not have."""
    key: ClassVar[str]
    value_start: ClassVar[tuple[str, ...]]
    """What stands between the name of an argument and its value."""
    value_end: ClassVar[str]
    function_end: ClassVar[str]

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._values = Values(definitions, self.tags)

    def _read_arguments(self, text: str, position: int, tool: str) -> Attempt:
        arguments: dict[str, Any] = {}
        for _ in range(MAX_ARGUMENTS):
            position = skip_space(text, position)
            if text.startswith(self.function_end, position):
                return Attempt(position + len(self.function_end), [ToolCall(tool, arguments)])
            name, position = read_name(text, expect(text, position, self.key))
            for marker in self.value_start:
                position = expect(text, skip_space(text, position), marker)
            end = text.find(self.value_end, position)
            if end < 0 or text.find(self.key, position, end) >= 0:
                raise Malformed(f"{name[:40]} is not closed with {self.value_end}")
            arguments[name] = self._values.read(self._trim(text[position:end]), tool, name)
            position = end + len(self.value_end)
        raise Malformed(f"there are {MAX_ARGUMENTS} or more arguments")

    def _trim(self, value: str) -> str:
        return value


class GLMParser(TagParser):
    """Reads `<tool_call>buy`, then pairs of `<arg_key>` and `<arg_value>`, then `</tool_call>`.

    So write GLM 4.5 and later.

    >>> pair = "<arg_key>item</arg_key><arg_value>tea</arg_value>"
    >>> GLMParser().parse(f"<tool_call>buy{pair}</tool_call>").calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    key, key_end = "<arg_key>", "</arg_key>"
    value, value_end = "<arg_value>", "</arg_value>"
    value_start = (key_end, value)
    function_end = _CLOSE
    tags = re.compile(r"</?+(?:tool_call|arg_key|arg_value|think)")
    special_tokens = (_OPEN, _CLOSE, key, key_end, value, value_end)
    opening = re.compile(_OPEN)

    def _read(self, text: str, start: int) -> Attempt:
        name, position = read_name(text, skip_space(text, start + len(_OPEN)))
        if not name:
            raise Malformed(f"there is no name of a tool after {_OPEN}")
        return self._read_arguments(text, position, name)

    def render(self, call: ToolCall) -> str:
        pairs = "".join(
            f"{self.key}{write_bare(key, call.name)}{self.key_end}\n"
            f"{self.value}{self._values.write(value, call.name, key)}{self.value_end}\n"
            for key, value in call.arguments.items()
        )
        return f"{_OPEN}{write_name(call)}\n{pairs}{_CLOSE}"


_FUNCTION = "<function="


class QwenCoderParser(TagParser):
    """Reads `<function=buy>`, and in it `<parameter=item>` with the value on its own lines.

    So write Qwen3-Coder and Qwen 3.5. `<tool_call>` around it may be missing, as these models often
    leave out its start.

    >>> text = "<function=buy>\\n<parameter=item>\\ntea\\n</parameter>\\n</function>\\n</tool_call>"
    >>> QwenCoderParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    key, value_start, value_end = "<parameter=", (">",), "</parameter>"
    function_end = "</function>"
    tags = re.compile(r"</?+(?:tool_call|function|parameter|think)")
    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(f"{_OPEN}|{_FUNCTION}")

    def _read(self, text: str, start: int) -> Attempt:
        if text.startswith(_OPEN, start):
            start = skip_space(text, start + len(_OPEN))
        name, position = read_name(text, expect(text, start, _FUNCTION))
        if not name or not text.startswith(">", position):
            raise Malformed(f"{_FUNCTION}...> must hold the name of a tool")
        attempt = self._read_arguments(text, position + 1, name)
        attempt.end = skip_marker(text, attempt.end, _CLOSE)
        return attempt

    def _trim(self, value: str) -> str:
        return value.removeprefix("\n").removesuffix("\n")

    def render(self, call: ToolCall) -> str:
        parameters = "".join(
            f"{self.key}{write_bare(key, call.name)}>\n"
            f"{self._values.write(value, call.name, key)}\n{self.value_end}\n"
            for key, value in call.arguments.items()
        )
        inside = f"{_FUNCTION}{write_name(call)}>\n{parameters}{self.function_end}"
        return f"{_OPEN}\n{inside}\n{_CLOSE}"
