"""What must hold for every parser and every call: the round trip, cuts, and texts made to break."""

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.errors import ToolError
from turnwise.tools import PARSERS, ActionParser, ToolCall, get_parser

# What the formats are made of, and what is hard to write in one of them.
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>",
    "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "Action: f", "Action Input: {}", "Observation: 1", "<think>", "</think>",
    "[/THINK]", "```json\n", "```", '{"tool": "x", "arguments": {}}',
    '{"name": "x", "parameters": {}}', "x.call(a=1)", "{", "}", "[", "]", '"', "'",
    "\\", "\\u003c", "\n", "\r\n", "\t", " ", ":", ";", ",", "=", ">", "<", "*", "`",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>", "functions.f:0", "<|start|>", "<|channel|>",
    "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "to=functions.f", "[THINK]",
    "5", "-0", "1e5", "NaN", "true", "null", '"5"', "\x00", "\u2028", "\u202e",
    "\ud800", "\udc00", "é", "東京", "🍵",
]  # fmt: skip

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=5).map("".join)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall,
    st.sampled_from(["buy", "get_weather", "a.b/c-d", "function"]) | texts.filter(bool),
    st.dictionaries(st.sampled_from(["item", "x"]) | texts, json_values, max_size=3),
)
# Nothing in it begins a call in any format, or ends a thought.
prose = st.text(st.characters(exclude_characters="<[{`:;", exclude_categories=["Cs"]))
every_parser = pytest.mark.parametrize("name", sorted(PARSERS.keys() - {"qwen"}))

HARD = [
    ToolCall("buy", {"item": "tea", "quantity": 2, "note": 'a "big" <b>cup</b>\nwith {milk}'}),
    ToolCall("write", {"text": "".join(FRAGMENTS), "": {"": [None, True, -1.5e-7, "null"]}}),
    ToolCall("look up", {"a b": "5", "<c>": " ", "n": 10**60, "d": "\n\n"}),
    ToolCall("stop"),
]


@every_parser
@settings(deadline=None, max_examples=25)
@given(call=calls, before=prose, after=prose)
def test_what_is_rendered_is_read_back_exactly(name, call, before, after):
    parser = get_parser(name)
    result = parser.parse(f"{before}\n{parser.render(call)}\n{after}")
    assert result.calls == [call]
    assert result.malformed is None
    assert result.text.split() == f"{before} {after}".split()
    assert same_types(result.calls[0].arguments, call.arguments)


@every_parser
@settings(deadline=None, max_examples=10)
@given(several=st.lists(calls, max_size=4), between=prose)
def test_several_calls_keep_their_order(name, several, between):
    parser = get_parser(name)
    text = "\n".join(f"{between}\n{parser.render(call)}" for call in several)
    assert parser.parse(text).calls == several


@every_parser
def test_a_cut_never_makes_another_call(name):
    parser = get_parser(name)
    text = "Well.\n" + "\n".join(map(parser.render, HARD))
    assert parser.parse(text).calls == HARD
    num_found = 0
    for cut in range(len(text)):
        result = parser.parse(text[:cut])
        assert result.calls == HARD[: len(result.calls)], text[:cut][-60:]
        assert len(result.calls) >= num_found  # what was complete stays so
        num_found = len(result.calls)


@every_parser
def test_fuzz_texts(name):
    """`bench/parsers.py` does it with a million."""
    rng = random.Random(name)
    parser = get_parser(name)
    good = [parser.render(call) for call in HARD]
    for _ in range(1_500):
        check_result(parser, mutate(rng, good))


def mutate(rng: random.Random, good: list[str]) -> str:
    """A rendering with pieces cut out, doubled and put in, or pieces alone."""
    text = rng.choice(good) if rng.random() < 0.8 else ""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = rng.choice([start, start, start + 1, start + rng.randint(0, 30), len(text)])
        piece = rng.choice([rng.choice(FRAGMENTS), text[start:end] * 2, "", rng.choice(good)])
        text = text[:start] + piece + text[end:]
    return text


def check_result(parser: ActionParser, text: str) -> None:
    """Whatever was found is a call that can be written and read again; messages are short."""
    result = parser.parse(text)
    for call in result.calls:
        assert call.name
        assert parser.parse(parser.render(call)).calls == [call]
    assert result.malformed is None or 0 < len(result.malformed) < 500
    assert result.is_empty == (not result.calls and result.malformed is None)
    if not result.calls:
        assert result.text == text.strip()


@every_parser
def test_what_json_cannot_hold_is_not_rendered(name):
    for value in (object(), float("nan"), float("inf"), {1, 2}, 10**5000, b"tea", {(1, 2): 3}):
        with pytest.raises(ToolError, match="cannot be written as JSON"):
            get_parser(name).render(ToolCall("buy", {"item": value}))


def same_types(one: Any, other: Any) -> bool:
    """Equal values that are also alike: 1, 1.0 and True are three."""
    if isinstance(one, dict):
        return all(same_types(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return all(map(same_types, one, other))
    return type(one) is type(other)
