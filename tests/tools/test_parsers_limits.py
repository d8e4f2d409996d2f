"""Texts that are long, deep or endless: each parser gives an answer."""

from every_case import every_case
from turnwise.tools import PARSERS, ToolCall, get_parser

every_parser = every_case("name", sorted(PARSERS.keys() - {"qwen"}))
LENGTH = 50_000


PIECES = [
    "{", "[", '{"', '{"a":', '{"a', '{"a":[', '{"a":1,', "{ ", "[[", "[1,", '"',
    "\\", '{"a":"\\"{', '{"tool": "a", ', "{'tool'", "```json", "`", "\n", "*",
    "Action: ", "Action: a\nAction Input: ", "Observation:\n", "<tool_call>",
    "<tool_call></tool_call>", '<tool_call>{"', "<function=", "<function=a>",
    "<function=a><parameter=a>", "<arg_key>", "<tool_call>a<arg_key>",
    "[TOOL_CALLS]", "[TOOL_CALLS][", "<|python_tag|>", "</think>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "\ud800", "\x00",
    "\u202e",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_begin|>a<|tool_call_argument_begin|>", "<|start|>", "<|channel|>", "to=",
    "<|channel|>analysis<|message|>", "<|channel|>commentary to=a", "<|message|>", "<think>",
    "<think></think>", "<think>{", "</think><think>", "[THINK]", "[THINK][/THINK]",
]  # fmt: skip


@every_parser
def test_repetition_is_answered(name):
    for piece in PIECES:
        result = get_parser(name).parse(piece * (LENGTH // len(piece)))
        assert result.calls == [], piece


@every_parser
def test_the_number_of_calls_in_a_turn_is_bounded(name):
    parser = get_parser(name)
    text = parser.render(ToolCall("f", {"x": 1}))
    result = parser.parse("\n".join([text] * 100))
    assert len(result.calls) == 100
    assert result.malformed is None
    result = parser.parse("\n".join([text] * 101))
    assert len(result.calls) == 100
    assert "more than 100 calls" in str(result.malformed)


@every_parser
def test_a_long_turn_is_read(name):
    parser = get_parser(name)
    call = ToolCall("write", {"text": "word " * 20_000})
    assert parser.parse("thinking " * 50_000 + "\n" + parser.render(call)).calls == [call]
