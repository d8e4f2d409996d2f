"""`JSONActionParser`: round trip, what models really write, and inputs made to break it."""

import json
import random
import time

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.errors import ToolError
from turnwise.tools import JSONActionParser, ParseResult, ToolCall

PARSER = JSONActionParser()
BUY = ToolCall("buy", {"item": "tea", "quantity": 2})
BUY_TEXT = '{"tool": "buy", "arguments": {"item": "tea", "quantity": 2}}'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
calls = st.builds(
    ToolCall, st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=4)
)
prose = st.text().filter(lambda text: "{" not in text)


def test_canonical_form() -> None:
    assert PARSER.render(BUY) == BUY_TEXT
    assert PARSER.parse(BUY_TEXT) == ParseResult([BUY], None, "")


@settings(deadline=None, max_examples=100)
@given(calls, prose, prose)
def test_round_trip_with_prose_around(call: ToolCall, before: str, after: str) -> None:
    result = PARSER.parse(before + PARSER.render(call) + after)
    assert result.calls == [call]
    assert result.malformed is None


@settings(deadline=None, max_examples=40)
@given(st.lists(calls, max_size=5), prose)
def test_round_trip_of_several(several: list[ToolCall], between: str) -> None:
    assert PARSER.parse(between.join(map(PARSER.render, several))).calls == several


@settings(deadline=None, max_examples=100)
@given(calls, st.data())
def test_a_truncated_call_is_never_a_call(call: ToolCall, data: st.DataObject) -> None:
    text = PARSER.render(call)
    cut = data.draw(st.integers(0, len(text) - 1))
    result = PARSER.parse(text[:cut])
    assert result.calls == []
    assert (result.malformed is not None) == (cut >= 2)


@pytest.mark.parametrize(
    "text",
    [
        f"I need tea.\n\n{BUY_TEXT}\nDone.",
        f"```json\n{BUY_TEXT}\n```",
        f"```\n{BUY_TEXT}\n```",
        f"[{BUY_TEXT}]",
        f"The set {{a, b}} and {{}} are no calls. {BUY_TEXT}",
        f'First some data: {{"price": {{"tea": 3}}}}. {BUY_TEXT}',
        '{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}',
        '{"name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '{ "thought": "buy it", "tool": "buy", "arguments": {"item": "tea", "quantity": 2} }',
        json.dumps({"tool": "buy", "arguments": json.dumps(BUY.arguments)}),
        json.dumps({"tool": "buy", "arguments": BUY.arguments}, indent=4),
    ],
)
def test_forms_that_models_write(text: str) -> None:
    result = PARSER.parse(text)
    assert result.calls == [BUY]
    assert result.malformed is None


def test_text_around_is_kept_without_empty_fences() -> None:
    result = PARSER.parse(f"Well:\n```json\n{BUY_TEXT}\n```\nThat is all.")
    assert result.text.split() == ["Well:", "That", "is", "all."]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"tool": "t", "arguments": {"a": {"tool": "x", "arguments": {}}}}', {"a": {}}),
        ('{"tool": "t", "arguments": {"q": "{\\"tool\\": \\"x\\"} } {"}}', {"q": ""}),
        ('{"tool": "t", "arguments": {"q": "two\nlines"}}', {"q": ""}),
        ('{"tool": "t", "arguments": {"q": "café 東京 \\u00e9 🍵"}}', {"q": ""}),
        ('{"tool": "t"}', {}),
        ('{"name": "t"}', {}),
        ('{"tool": "t", "arguments": {"n": ' + "9" * 10_000 + "}}", {"n": 0}),
    ],
)
def test_nested_quoted_and_unicode_arguments(text: str, arguments: dict[str, object]) -> None:
    result = PARSER.parse(text)
    assert [(call.name, call.arguments.keys()) for call in result.calls] == [
        ("t", arguments.keys())
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "buy tea",
        "{}",
        "{ }}{",
        "[1, 2]",
        '{"answer": 5}',
        '{"name": "Ann", "age": 3}',
        '"tool"',
    ],
)
def test_no_call(text: str) -> None:
    result = PARSER.parse(text)
    assert result.is_empty
    assert result.text == text.strip()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"tool": "buy", "arguments": {"item": "te', "ends before it is complete"),
        ('{"tool": "buy", "arguments": {"item": "tea"', "ends before it is complete"),
        ('{"tool": "buy" "arguments": {}}', 'broken near \'"arguments":'),
        ('{"tool": "buy", "arguments": {"item": "a "big" tea"}}', "broken near 'big"),
        ("{'tool': 'buy', 'arguments': {}}", "double quotes"),
        ('{"tool": "buy", "arguments": ["tea"]}', '"arguments" must be an object, got a list'),
        ('{"tool": "buy", "arguments": "tea"}', '"arguments" must be an object, got "tea"'),
        ('{"tool": {"name": "buy"}, "arguments": {}}', '"tool" must be the name of a tool'),
        ('{"tool": "", "arguments": {}}', '"tool" must be the name of a tool'),
        ('{"arguments": {"item": "tea"}}', 'there is no "tool"'),
        ('{"tool": "buy", "item": "tea"}', 'inside "arguments"'),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_says_why(text: str, reason: str) -> None:
    result = PARSER.parse(text)
    assert result.calls == []
    assert result.malformed is not None
    assert reason in result.malformed


def test_pieces_of_a_broken_call_are_not_calls() -> None:
    text = '{"tool": "plan", "arguments": {"then": {"tool": "buy", "arguments": {}}, oops'
    assert PARSER.parse(text).calls == []


def test_a_good_call_beside_a_broken_one() -> None:
    result = PARSER.parse(f'{BUY_TEXT}\n{{"tool": "buy", "argum')
    assert result.calls == [BUY]
    assert result.malformed == "the JSON ends before it is complete"


def test_render_of_what_json_cannot_hold_says_so() -> None:
    with pytest.raises(ToolError, match="cannot be written as JSON"):
        PARSER.render(ToolCall("buy", {"item": object()}))


@pytest.mark.parametrize(
    "piece",
    [
        '{"',
        '{"a":',
        '{"a',
        '{"a":[',
        '{"a":1,',
        "{ ",
        "{'tool'",
        "```json",
        "[[",
        '{"a":"\\"{',
        "\\",
    ],
)
def test_time_is_linear_in_the_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            PARSER.parse(text)
            best = min(best, time.perf_counter() - start)
        return best

    # 16 times the length: 256 times the time if it were quadratic. The floor hides timer noise.
    assert seconds(320_000) < 60 * max(seconds(20_000), 1e-4)


def test_fuzz_never_raises() -> None:
    rng = random.Random(0)
    pieces = [
        '{"tool": "',
        '"arguments"',
        '"name"',
        ": ",
        ", ",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        "\\u",
    ]
    pieces += [
        "1e999",
        "-",
        "NaN",
        "null",
        "```json\n",
        "\n",
        "'",
        "é",
        "\ud800",
        "\\ud83d",
        "\x00",
    ]
    pieces += [BUY_TEXT, '{"name": "a", "parameters": "{}"}', "buy ", "9" * 5000]
    for _ in range(20_000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 12)))
        result = PARSER.parse(text)
        assert all(type(call.name) is str and type(call.arguments) is dict for call in result.calls)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet=st.sampled_from("{}[]\":,\\tol aru\n'0")))
def test_any_text_is_parsed(text: str) -> None:
    PARSER.parse(text)
