"""Formats whose calls are JSON: plain, OpenAI's, Llama's, Hermes', Mistral's; and ReAct's lines."""

import re
from typing import Any, ClassVar

from turnwise.tools.parsers.base import MAX_CALLS, Attempt, FormatParser, Malformed
from turnwise.tools.parsers.reading import (
    INCOMPLETE,
    call_from_object,
    calls_from_values,
    check_name,
    expect,
    read_call,
    read_calls,
    read_json,
    read_name,
    skip_closing_fence,
    skip_fence,
    skip_marker,
    skip_space,
    write_json,
    write_name,
)
from turnwise.tools.types import ToolCall


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
        """Returns the call of an object."""
        call = call_from_object(value, self.name_keys)
        return Attempt(end, [] if call is None else [call])

    def _hint(self, text: str, position: int) -> str | None:
        if re.compile(rf"\{{\s*+'(?:{'|'.join(self.name_keys)})'").search(text, position):
            return "the JSON has single quotes; use double quotes"
        return None


class JSONActionParser(ObjectParser):
    """Reads `{"tool": "buy", "arguments": {"item": "tea"}}`, with prose or code fences around.

    `name` is accepted for `tool`, `parameters` for `arguments`, and arguments may be a JSON string.
    An object that is no call stays in the text.

    >>> JSONActionParser().parse('I will buy. {"tool": "buy", "arguments": {"item": "tea"}}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    name_keys = ("tool", "name")

    def render(self, call: ToolCall) -> str:
        return write_json({"tool": check_name(call), "arguments": call.arguments}, call.name)


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
        functions = (
            call.get("function_call", call.get("function", call))
            if isinstance(call, dict)
            else call
            for call in calls
        )
        attempt = calls_from_values(functions, end, self.name_keys)
        content = value.get("content")
        attempt.said = content if isinstance(content, str) else ""
        return attempt

    def render(self, call: ToolCall) -> str:
        arguments = write_json(call.arguments, call.name)
        function = {"name": check_name(call), "arguments": arguments}
        return write_json({"tool_calls": [{"type": "function", "function": function}]}, call.name)


_PYTHON_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"([\w.-]{1,64})\.call\(")
_KEYWORD = re.compile(r"\s*+(\w++)\s*+=\s*+")


class LlamaParser(ObjectParser):
    """Reads `{"name": "buy", "parameters": {"item": "tea"}}`, several of them separated by `;`.

    `<|python_tag|>` may precede it, or `buy.call(item="tea")`, as for the tools that Llama was
    trained with.

    >>> LlamaParser().parse('<|python_tag|>search.call(query="tea")').calls
    [ToolCall(name='search', arguments={'query': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_PYTHON_TAG,)
    opening = re.compile(rf"{re.escape(_PYTHON_TAG)}|{ObjectParser.opening.pattern}")
    name_keys = ("name", "function")

    def _read(self, text: str, start: int) -> Attempt:
        if not text.startswith(_PYTHON_TAG, start):
            attempt = super()._read(text, start)
        else:
            inside = skip_space(text, start + len(_PYTHON_TAG))
            built_in = _BUILT_IN.match(text, inside)
            if built_in is None:
                attempt = read_calls(text, inside, self.name_keys)
            else:
                attempt = self._read_keywords(text, built_in.end(), built_in.group(1))
        if attempt.calls:
            attempt.end = skip_marker(text, attempt.end, ";")
        return attempt

    def _read_keywords(self, text: str, position: int, name: str) -> Attempt:
        """Reads the arguments of `name.call(key="value", ...)`."""
        arguments = {}
        while (keyword := _KEYWORD.match(text, position)) is not None:
            value, end = read_json(text, keyword.end())
            arguments[keyword.group(1)] = value
            position = skip_space(text, end)
            if not text.startswith(",", position):
                break
            position += 1
        end = expect(text, position, ")")
        return Attempt(end, [ToolCall(name, arguments)])

    def render(self, call: ToolCall) -> str:
        return write_json({"name": check_name(call), "parameters": call.arguments}, call.name)


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(FormatParser):
    """Reads `<tool_call>{"name": "buy", "arguments": {"item": "tea"}}</tool_call>`.

    So write Hermes, Qwen 2.5, Qwen 3 and the many that follow them. The closing tag may be missing
    at the end of the turn, where it may have been a stop string.

    >>> text = '<tool_call>{"name": "buy", "arguments": {"item": "tea"}}</tool_call>'
    >>> HermesParser().parse(text).calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_OPEN, _CLOSE)
    opening = re.compile(_OPEN)

    def _read(self, text: str, start: int) -> Attempt:
        attempt = Attempt(start + len(_OPEN))
        while len(attempt.calls) <= MAX_CALLS:
            try:
                more = read_calls(text, attempt.end, ("name",))
            except Malformed as error:  # the calls before it count
                more = Attempt(error.end, problem=str(error))
            attempt.calls += more.calls
            attempt.end = skip_space(text, more.end)
            attempt.problem = more.problem
            if more.problem is not None or not text.startswith("{", attempt.end):
                break
        after = text[attempt.end : attempt.end + len(_CLOSE)]
        if _CLOSE.startswith(after):  # or a piece of it, at the end of the text
            attempt.end += len(after)
        elif attempt.problem is None and not text.startswith(_OPEN, attempt.end):
            raise Malformed(f"after the call comes {after!r}, not {_CLOSE}")
        return attempt

    def render(self, call: ToolCall) -> str:
        value = {"name": check_name(call), "arguments": call.arguments}
        return f"{_OPEN}\n{write_json(value, call.name)}\n{_CLOSE}"


_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(FormatParser):
    """Reads `[TOOL_CALLS] [{"name": "buy", "arguments": {"item": "tea"}}]`.

    Also the newer `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`, with or without `[CALL_ID]` or `[ARGS]`.

    >>> MistralParser().parse('[TOOL_CALLS]buy[ARGS]{"item": "tea"}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """

    special_tokens = (_CALLS, _ARGS, _ID, "[THINK]", "[/THINK]")
    opening = re.compile(re.escape(_CALLS))
    thought_start, thought_end = "[THINK]", "[/THINK]"

    def _read(self, text: str, start: int) -> Attempt:
        inside = skip_space(text, start + len(_CALLS))
        if text.startswith(("[", "{"), inside):
            return read_calls(text, inside, ("name",))
        name, end = read_name(text, inside)
        if text.startswith(_ID, end):
            end = text.find(_ARGS, end)
        if not name or end < 0:
            raise Malformed(f"there is no call after {_CALLS}")
        if text.startswith(_ARGS, end):
            end += len(_ARGS)
        return read_call(text, skip_space(text, end), name)

    def render(self, call: ToolCall) -> str:
        value = [{"name": check_name(call), "arguments": call.arguments}]
        return f"{_CALLS} {write_json(value, call.name)}"


class MistralArgsParser(MistralParser):
    """Reads the same as `MistralParser`, and writes `[TOOL_CALLS]buy[ARGS]{"item": "tea"}`."""

    def render(self, call: ToolCall) -> str:
        return f"{_CALLS}{write_name(call)}{_ARGS}{write_json(call.arguments, call.name)}"


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
        attempt = read_call(text, skip_fence(text, line.end()), name)
        attempt.end = skip_closing_fence(text, attempt.end)
        return attempt

    def render(self, call: ToolCall) -> str:
        return f"Action: {write_name(call)}\nAction Input: {write_json(call.arguments, call.name)}"
