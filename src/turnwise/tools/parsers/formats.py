"""The formats in which models write tool calls: as JSON, in lines, between markers, in tags."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from turnwise.errors import ToolError
from turnwise.tools.parsers.base import (
    CLOSING_FENCE,
    FENCE,
    INCOMPLETE,
    MAX_CALLS,
    Attempt,
    FormatParser,
    Malformed,
    call_from_object,
    calls_from_values,
    expect,
    read_call,
    read_calls,
    read_json,
    read_name,
    skip,
    skip_marker,
    write_json,
    write_name,
)
from turnwise.tools.types import ToolCall, ToolDefinition, argument_schemas


class ObjectParser(FormatParser):
    """Reads each JSON object of the text; one that is no call stays in the text."""

    opening = re.compile(r'\{\s*+"')
    name_keys: ClassVar[tuple[str, ...]]
    """The keys that may have the tool's name."""
    call_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    """Further keys that show that a broken object is meant as a call."""

    def _read(self, text: str, start: int) -> Attempt:
        try:
            value, end = read_json(text, start)
        except Malformed as error:
            keys = (*self.name_keys, *self.call_keys)
            is_meant = any(text.find(f'"{key}"', start, error.end) >= 0 for key in keys)
            if str(error) == INCOMPLETE or is_meant:
                raise
            return Attempt(max(error.end, start + 1))  # such as the set {"a", "b"}
        return self._take(value, end)

    def _take(self, value: dict[str, Any], end: int) -> Attempt:
        call = call_from_object(value, self.name_keys)
        return Attempt(end, [] if call is None else [call])


class JSONActionParser(ObjectParser):
    """Reads `{"tool": "buy", "arguments": {"item": "tea"}}`, with prose or code fences around.

    `name` is accepted for `tool`, `parameters` for `arguments`, and arguments may be a JSON string.
    An object that is no call stays in the text.

    >>> JSONActionParser().parse('I will buy. {"tool": "buy", "arguments": {"item": "tea"}}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    name_keys = ("tool", "name")

    def render(self, call: ToolCall) -> str:
        return write_json({"tool": call.name, "arguments": call.arguments})


class FunctionCallingParser(ObjectParser):
    """Reads a message of OpenAI's API: `tool_calls`, whose arguments are JSON strings.

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
            raise Malformed('"tool_calls" must be a list')
        functions = [
            call.get("function_call", call.get("function", call))
            if isinstance(call, dict)
            else call
            for call in calls
        ]
        attempt = calls_from_values(functions, end, self.name_keys)
        content = value.get("content")
        attempt.said = content if isinstance(content, str) else ""
        return attempt

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return write_json({"tool_calls": [{"type": "function", "function": function}]})


_PYTHON_TAG = "<|python_tag|>"


class LlamaParser(ObjectParser):
    """Reads `{"name": "buy", "parameters": {"item": "tea"}}`, several of them separated by `;`.

    `<|python_tag|>` may precede it.
    """

    special_tokens = (_PYTHON_TAG,)
    opening = re.compile(rf"{re.escape(_PYTHON_TAG)}|{ObjectParser.opening.pattern}")
    name_keys = ("name", "function")

    def _read(self, text: str, start: int) -> Attempt:
        if text.startswith(_PYTHON_TAG, start):
            attempt = read_calls(text, start + len(_PYTHON_TAG), self.name_keys)
        else:
            attempt = super()._read(text, start)
        if attempt.calls:
            attempt.end = skip_marker(text, attempt.end, ";")
        return attempt

    def render(self, call: ToolCall) -> str:
        return write_json({"name": call.name, "parameters": call.arguments})


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(FormatParser):
    """Reads `<tool_call>{"name": "buy", "arguments": {"item": "tea"}}</tool_call>`.

    So write Hermes, Qwen 2.5, Qwen 3 and the many that follow them. The closing tag may be missing
    at the end of the turn, where it may have been a stop string.
    """

    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(_OPEN)

    def _read(self, text: str, start: int) -> Attempt:
        attempt = read_calls(text, start + len(_OPEN), ("name",))
        attempt.end = skip(text, attempt.end)
        # Some models write several calls between one pair of tags.
        while attempt.problem is None and text.startswith("{", attempt.end):
            try:
                more = read_calls(text, attempt.end, ("name",))
            except Malformed as error:  # the calls before it count
                more = Attempt(error.end, problem=str(error))
            calls = [*attempt.calls, *more.calls]
            attempt = Attempt(skip(text, more.end), calls, more.problem)
            if len(calls) > MAX_CALLS:
                break
        after = text[attempt.end : attempt.end + len(_CLOSE)]
        if _CLOSE.startswith(after):  # or a piece of it, at the end of the text
            attempt.end += len(after)
        elif attempt.problem is None and not text.startswith(_OPEN, attempt.end):
            raise Malformed(f"after the call comes {after!r}, not {_CLOSE}")
        return attempt

    def render(self, call: ToolCall) -> str:
        value = {"name": call.name, "arguments": call.arguments}
        return f"{_OPEN}\n{write_json(value)}\n{_CLOSE}"


_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(FormatParser):
    """Reads `[TOOL_CALLS] [{"name": "buy", "arguments": {"item": "tea"}}]`.

    Also the newer `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`, with or without `[CALL_ID]` or `[ARGS]`.
    """

    special_tokens = (_CALLS, _ARGS, _ID, "[THINK]", "[/THINK]")
    opening = re.compile(re.escape(_CALLS))
    thought_start, thought_end = "[THINK]", "[/THINK]"

    def _read(self, text: str, start: int) -> Attempt:
        inside = skip(text, start + len(_CALLS))
        if text.startswith(("[", "{"), inside):
            return read_calls(text, inside, ("name",))
        name, end = read_name(text, inside)
        if text.startswith(_ID, end):
            end = text.find(_ARGS, end)
        if not name or end < 0:
            raise Malformed(f"there is no call after {_CALLS}")
        if text.startswith(_ARGS, end):
            end += len(_ARGS)
        return read_call(text, skip(text, end), name)

    def render(self, call: ToolCall) -> str:
        value = [{"name": call.name, "arguments": call.arguments}]
        return f"{_CALLS} {write_json(value)}"


class MistralArgsParser(MistralParser):
    """Reads the same as `MistralParser`, and writes `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`."""

    def render(self, call: ToolCall) -> str:
        return f"{_CALLS}{write_name(call.name)}{_ARGS}{write_json(call.arguments)}"


_INPUT = re.compile(r"[ \t\r*`]*+\n[\s*]*+(?:Action[ \t]++)?+Input[ \t*]*+:[ \t*]*+")
_OBSERVATION = re.compile(r"[\s*]*+Observation[ \t*]*+:")


class ReActActionParser(FormatParser):
    """Reads a line `Action: buy` and after it `Action Input: {"item": "tea"}`, or just `Input:`.

    The format is that of arXiv:2210.03629. An `Observation:` after it is made up by the model; the
    rest stays in the text.

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
            raise Malformed(f"there is no {missing} after Action")
        attempt = read_call(text, skip(text, line.end(), FENCE), name)
        attempt.end = skip(text, attempt.end, CLOSING_FENCE)
        return attempt

    def render(self, call: ToolCall) -> str:
        return f"Action: {write_name(call.name)}\nAction Input: {write_json(call.arguments)}"


class SectionParser(FormatParser):
    """Reads calls between two markers, and all of them between two others, which may be missing."""

    calls: ClassVar[str]
    calls_end: ClassVar[str]
    call: ClassVar[str]
    call_end: ClassVar[str]

    def _read(self, text: str, start: int) -> Attempt:
        position = skip(text, skip_marker(text, start, self.calls))
        name, position = self._read_head(text, expect(text, position, self.call))
        if not name:
            raise Malformed("the call has no name")
        attempt = read_call(text, skip(text, position, FENCE), name)
        end = skip_marker(text, skip(text, attempt.end, CLOSING_FENCE), self.call_end)
        attempt.end = skip_marker(text, end, self.calls_end)
        return attempt

    @abstractmethod
    def _read_head(self, text: str, position: int) -> tuple[str, int]:
        """Returns the name after the marker of a call, and where its arguments begin."""


_SEPARATOR = "<｜tool▁sep｜>"


class DeepSeekParser(SectionParser):
    """Reads `function<sep>buy`, then the arguments in a fence, between DeepSeek's own markers.

    So write DeepSeek V3 and R1. V3.1's `buy<sep>{"item": "tea"}` is read too.
    """

    calls, calls_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    special_tokens = (calls, calls_end, call, call_end, _SEPARATOR)
    opening = re.compile(f"{calls}|{call}")

    def _read_head(self, text: str, position: int) -> tuple[str, int]:
        name, position = read_name(text, position)
        position = skip(text, expect(text, position, _SEPARATOR))
        if name == "function" and not text.startswith("{", position):
            return read_name(text, position)
        return name, position

    def render(self, call: ToolCall) -> str:
        arguments = f"```json\n{write_json(call.arguments)}\n```"
        inside = f"function{_SEPARATOR}{write_name(call.name)}\n{arguments}"
        return f"{self.calls}{self.call}{inside}{self.call_end}{self.calls_end}"


class DeepSeekV31Parser(DeepSeekParser):
    """Reads the same as `DeepSeekParser`, and writes `buy<sep>{"item": "tea"}` as V3.1 does."""

    def render(self, call: ToolCall) -> str:
        inside = f"{write_name(call.name)}{_SEPARATOR}{write_json(call.arguments)}"
        return f"{self.calls}{self.call}{inside}{self.call_end}{self.calls_end}"


_NAMESPACE = "functions."
_ARGUMENTS = "<|tool_call_argument_begin|>"
_NUMBER = re.compile(r"\s*+:\d*+\s*+")


class KimiParser(SectionParser):
    """Reads `functions.buy:0`, a call's id, and its arguments, between Kimi K2's own markers."""

    calls, calls_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    special_tokens = (calls, calls_end, call, call_end, _ARGUMENTS)
    opening = re.compile(f"{re.escape(calls)}|{re.escape(call)}")

    def _read_head(self, text: str, position: int) -> tuple[str, int]:
        position = skip_marker(text, skip(text, position), _NAMESPACE)
        name, position = read_name(text, position)
        number = _NUMBER.match(text, position)  # after a name in quotes
        if number is not None:
            position = number.end()
        else:
            bare, colon, tail = name.rpartition(":")
            name = bare if colon and (tail.isdigit() or not tail) else name
            position = skip(text, position)
        return name, expect(text, position, _ARGUMENTS)

    def render(self, call: ToolCall) -> str:
        identity = f"{_NAMESPACE}{write_name(call.name)}:0"
        inside = f"{identity}{_ARGUMENTS}{write_json(call.arguments)}"
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
            end = skip(text, inside, _HEADER)
            if text.startswith(_MESSAGE, end):
                ending = _ENDS.search(text, end)
                end = len(text) if ending is None else ending.end()
                if ending is not None and ending.group() == _START:
                    end = ending.start()
            return Attempt(end)
        name, position = read_name(text, recipient.end(), _RECIPIENT)
        if not name:
            raise Malformed("there is no name of a tool after to=")
        position = expect(text, skip(text, position, _HEADER), _MESSAGE)
        attempt = read_call(text, skip(text, position), name)
        attempt.end = skip_marker(text, attempt.end, _CALL)
        return attempt

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments)
        recipient = f"to=functions.{write_name(call.name)}"
        return f"{_CHANNEL}commentary {recipient} {_CONSTRAIN}json{_MESSAGE}{arguments}{_CALL}"


class TagParser(FormatParser):
    """Reads arguments as pairs of a name and a value in tags.

    Texts are written as they are and everything else as JSON. The rule that makes it exact: what
    reads as JSON is JSON, all else is a text; a text that would be misread (`5`, `null`, one with
    the format's own tags) is written as a JSON string, in quotes. Where the definition of the tool
    says that an argument is a text, it is one: `5` needs no quotes, and quotes are part of it
    unless it could not have been written without them. What the definition says may be text or
    something else (`null`, a number) is that, if it reads so.
    """

    tags: ClassVar[re.Pattern[str]]
    """What plain values must not have."""
    key: ClassVar[str]
    value_start: ClassVar[tuple[str, ...]]
    """What stands between the name of an argument and its value."""
    value_end: ClassVar[str]
    function_end: ClassVar[str]

    def __init__(self, definitions: Iterable[ToolDefinition] = ()) -> None:
        self._types = {
            (tool.name, argument): _schema_types(schema)
            for tool in definitions
            for argument, schema in argument_schemas(tool.parameters).items()
        }

    def _read_arguments(self, text: str, position: int, tool: str) -> Attempt:
        arguments: dict[str, Any] = {}
        while True:
            position = skip(text, position)
            if text.startswith(self.function_end, position):
                return Attempt(position + len(self.function_end), [ToolCall(tool, arguments)])
            name, position = read_name(text, expect(text, position, self.key))
            for marker in self.value_start:
                position = expect(text, skip(text, position), marker)
            end = text.find(self.value_end, position)
            if end < 0 or text.find(self.key, position, end) >= 0:
                raise Malformed(f"{name[:40]} is not closed with {self.value_end}")
            types = self._types.get((tool, name), frozenset())
            arguments[name] = self._read_value(self._trim(text[position:end]), types)
            position = end + len(self.value_end)

    def _trim(self, value: str) -> str:
        return value

    def _write(self, value: Any, tool: str, argument: str) -> str:
        types = self._types.get((tool, argument), frozenset())
        if isinstance(value, str) and not self._needs_quotes(value, types):
            return value
        text = write_json(value).replace("<", "\\u003c")
        if isinstance(value, str) or "string" not in types:
            return text
        if not _TYPES.get(type(value), _TYPES[list]) & types:
            raise ToolError(
                f"the argument {argument!r} of {tool!r} is defined as {' or '.join(sorted(types))}"
                f", so {text[:40]} cannot be written. Give it a value that fits."
            )
        return text

    def _read_value(self, text: str, types: frozenset[str]) -> Any:
        start = skip(text, 0)
        if start == len(text) or text[start] not in _JSON_START:
            return text
        try:
            value, end = read_json(text, start)
        except Malformed:
            return text
        if skip(text, end) < len(text):
            return text
        if "string" not in types:
            return value
        if isinstance(value, str):
            return value if self._needs_quotes(value, types) else text
        return value if _TYPES.get(type(value), _TYPES[list]) & types else text

    def _needs_quotes(self, text: str, types: frozenset[str]) -> bool:
        return self.tags.search(text) is not None or self._read_value(text, types) != text


_JSON_START = frozenset('{["-0123456789tfn')
_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    type(None): frozenset({"null"}),
}
"""The type names of JSON schema for values that are no text."""


def _schema_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types that a schema allows; empty if it does not say."""
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    if options:
        types = [_schema_types(option) for option in options]
        return frozenset[str]().union(*types) if all(types) else frozenset()
    if all(isinstance(option, str) for option in schema.get("enum", (None,))):
        return frozenset({"string"})
    kinds = schema.get("type", ())
    return frozenset({kinds} if isinstance(kinds, str) else kinds)


class GLMParser(TagParser):
    """Reads `<tool_call>buy`, then pairs of `<arg_key>` and `<arg_value>`, then `</tool_call>`.

    So write GLM 4.5 and later.
    """

    key, key_end = "<arg_key>", "</arg_key>"
    value, value_end = "<arg_value>", "</arg_value>"
    value_start = (key_end, value)
    function_end = _CLOSE
    tags = re.compile(r"</?+(?:tool_call|arg_key|arg_value|think)")
    special_tokens = (_OPEN, _CLOSE, key, key_end, value, value_end)
    opening = re.compile(_OPEN)

    def _read(self, text: str, start: int) -> Attempt:
        name, position = read_name(text, skip(text, start + len(_OPEN)))
        if not name:
            raise Malformed(f"there is no name of a tool after {_OPEN}")
        return self._read_arguments(text, position, name)

    def render(self, call: ToolCall) -> str:
        pairs = "".join(
            f"{self.key}{write_name(key)}{self.key_end}\n"
            f"{self.value}{self._write(value, call.name, key)}{self.value_end}\n"
            for key, value in call.arguments.items()
        )
        return f"{_OPEN}{write_name(call.name)}\n{pairs}{_CLOSE}"


_FUNCTION = "<function="


class QwenCoderParser(TagParser):
    """Reads `<function=buy>`, and in it `<parameter=item>` with the value on its own lines.

    So write Qwen3-Coder and Qwen 3.5. `<tool_call>` around it may be missing, as these models often
    leave out its start.
    """

    key, value_start, value_end = "<parameter=", (">",), "</parameter>"
    function_end = "</function>"
    tags = re.compile(r"</?+(?:tool_call|function|parameter|think)")
    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(f"{_OPEN}|{_FUNCTION}")

    def _read(self, text: str, start: int) -> Attempt:
        if text.startswith(_OPEN, start):
            start = skip(text, start + len(_OPEN))
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
            f"{self.key}{write_name(key)}>\n"
            f"{self._write(value, call.name, key)}\n{self.value_end}\n"
            for key, value in call.arguments.items()
        )
        inside = f"{_FUNCTION}{write_name(call.name)}>\n{parameters}{self.function_end}"
        return f"{_OPEN}\n{inside}\n{_CLOSE}"
