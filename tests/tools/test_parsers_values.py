"""Formats that write texts as they are: how `5` the text and 5 the number are told apart."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.errors import ToolError
from turnwise.tools import ToolCall, ToolRegistry, get_parser

tagged = pytest.mark.parametrize("name", ["qwen-coder", "glm"])


def note(
    text: str,
    number: int,
    flag: bool,
    kind: Literal["a", "b"],
    maybe: str | None,
    either: str | int,
    names: list[str],
    anything: Any,
) -> None:
    """Write something down."""


DEFINITIONS = ToolRegistry([note]).definitions


def write(name: str, argument: str, value: str) -> str:
    """What a model writes: the value as it is."""
    if name == "glm":
        return (
            f"<tool_call>note\n<arg_key>{argument}</arg_key>\n<arg_value>{value}</arg_value>\n"
            "</tool_call>"
        )
    return f"<tool_call>\n<function=note>\n<parameter={argument}>\n{value}\n</parameter>\n\
</function>\n</tool_call>"


@tagged
@pytest.mark.parametrize(
    ("argument", "text", "without", "with_definitions"),
    [
        ("text", "5", 5, "5"),
        ("text", "null", None, "null"),
        ("text", "[1, 2]", [1, 2], "[1, 2]"),
        ("text", '"exact phrase"', "exact phrase", '"exact phrase"'),
        ("text", "  indented\n", "  indented\n", "  indented\n"),
        ("text", '"\\u003c/tool_call>"', "</tool_call>", "</tool_call>"),
        ("number", "5", 5, 5),
        ("number", "five", "five", "five"),
        ("number", '"5"', "5", "5"),
        ("flag", "true", True, True),
        ("flag", "True", "True", "True"),
        ("kind", "5", 5, "5"),
        ("maybe", "null", None, None),
        ("maybe", "5", 5, "5"),
        ("maybe", '"null"', "null", "null"),
        ("either", "5", 5, 5),
        ("either", "1.5", 1.5, "1.5"),
        ("names", '["a", "\\u003c/x"]', ["a", "</x"], ["a", "</x"]),
        ("anything", "5", 5, 5),
        ("unknown", "{}", {}, {}),
    ],
)
def test_values(name, argument, text, without, with_definitions):
    for definitions, expected in (((), without), (DEFINITIONS, with_definitions)):
        parser = get_parser(name, definitions=definitions)
        (call,) = parser.parse(write(name, argument, text)).calls
        assert call == ToolCall("note", {argument: expected})
        assert type(call.arguments[argument]) is type(expected)


texts = st.one_of(
    st.text(),
    st.sampled_from(["5", "null", '"5"', '"null"', '"\\"null\\""', "</think>", '"<"', "[]"]),
    st.text(alphabet='"\\u03c<>/parmet_lgv\n5n'),
)
fitting = {
    "text": texts,
    "number": st.integers() | texts,
    "flag": st.booleans() | texts,
    "kind": texts,
    "maybe": st.none() | texts,
    "either": st.integers() | texts,
    "names": st.lists(texts) | texts,
    "anything": st.none() | st.integers() | st.lists(texts) | texts,
}


@tagged
@settings(deadline=None, max_examples=150)
@given(arguments=st.fixed_dictionaries({}, optional=fitting))
def test_round_trip_with_definitions(name, arguments):
    parser = get_parser(name, definitions=DEFINITIONS)
    call = ToolCall("note", arguments)
    (found,) = parser.parse(parser.render(call)).calls
    assert found == call
    assert [*map(type, found.arguments.values())] == [*map(type, arguments.values())]


@tagged
def test_a_value_that_the_definition_turns_into_a_text_is_refused(name):
    parser = get_parser(name, definitions=DEFINITIONS)
    with pytest.raises(ToolError, match="'text' of 'note' is defined as string, so null cannot"):
        parser.render(ToolCall("note", {"text": None}))
    with pytest.raises(ToolError, match="defined as null or string"):
        parser.render(ToolCall("note", {"maybe": 5}))
