"""Texts that are long, deep or endless: each parser gives an answer, and a fixed one."""

import pytest

from every_case import every_case
from turnwise.errors import ToolError
from turnwise.tools import PARSERS, ParseOutcome, ToolCall, get_parser

every_parser = every_case("name", sorted(PARSERS.keys() - {"qwen"}))
LENGTH = 100_000


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
def test_repetition_is_answered(name: str) -> None:
    for piece in PIECES:
        result = get_parser(name).parse(piece * (LENGTH // len(piece)))
        assert result.calls == [], piece


def nest(depth: int) -> list[object]:
    return [] if depth == 1 else [nest(depth - 1)]


@every_parser
def test_depth_has_a_limit_that_does_not_depend_on_the_stack(name: str) -> None:
    parser = get_parser(name)
    call = ToolCall("f", {"x": nest(90)})
    assert parser.parse(parser.render(call)).calls == [call]
    deep = "[" * 101 + "]" * 101
    result = parser.parse(parser.render(ToolCall("f", {"x": [5]})).replace("[5]", deep))
    if name in ("qwen-coder", "glm"):  # what is no JSON is a text there
        assert result.calls == [ToolCall("f", {"x": deep})]
    else:
        assert result.outcome is ParseOutcome.MALFORMED
        assert "nested too deeply" in str(result.malformed)
    with pytest.raises(ToolError, match="nested more than 100 deep"):
        parser.render(ToolCall("f", {"x": nest(101)}))


@every_parser
def test_the_number_of_calls_in_a_turn_is_bounded(name: str) -> None:
    parser = get_parser(name)
    text = parser.render(ToolCall("f", {"x": 1}))
    result = parser.parse("\n".join([text] * 100))
    assert len(result.calls) == 100
    assert result.malformed is None
    result = parser.parse("\n".join([text] * 101))
    assert len(result.calls) == 100
    assert "more than 100 calls" in str(result.malformed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json", '{"a": 1}\n' * 400 + '{"tool": "f", "arguments": {}}'),
        ("openai", '{"tool_calls": [' + '{"name": "f", "arguments": {}}, ' * 200 + "1]}"),
        ("hermes", "<tool_call>" + '{"name": "f", "arguments": {}}\n' * 200 + "</tool_call>"),
        ("qwen-coder", "<function=f>" + "<parameter=x>1</parameter>" * 600 + "</function>"),
        ("glm", "<tool_call>f" + "<arg_key>x</arg_key><arg_value>1</arg_value>" * 600),
    ],
)
def test_what_holds_too_much_is_malformed(name: str, text: str) -> None:
    assert get_parser(name).parse(text).malformed is not None


@every_parser
def test_a_long_turn_is_read_and_a_huge_one_is_refused(name: str) -> None:
    parser = get_parser(name)
    call = ToolCall("write", {"text": "word " * 20_000})
    text = "\n" + parser.render(call)
    assert parser.parse("thinking " * 50_000 + text).calls == [call]
    refused = parser.parse("thinking " * 110_000 + text)
    assert refused.calls == []
    assert "at most 1000000 characters" in str(refused.malformed)
    assert parser.parse("thinking " * 150_000).is_empty
