"""What a tool returns becomes a text for the model: whole, cut and said so, or refused."""

import datetime
import itertools
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

from turnwise.tools import ToolCall, ToolFailure, ToolRegistry, tool
from turnwise.tools.registry import read_output


@dataclass
class Point:
    x: int


class Model(BaseModel):
    name: str


class Colour(Enum):
    RED = "red"


def result_of(value: Any, max_output: int = 1000) -> Any:
    @tool(max_output=max_output, inline=True)
    def give() -> Any:
        return value

    success, told = ToolRegistry([give]).execute_tool("give")
    return told if success else None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "Done."),
        (3, "3"),
        (True, "true"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        ((1, 2), "[1, 2]"),
        (Point(1), '{"x": 1}'),
        ([Model(name="m")], '[{"name": "m"}]'),
        (Colour.RED, '"red"'),
        (datetime.date(2024, 1, 2), '"2024-01-02"'),
        (Path("a/b"), '"a/b"'),
        (np.int64(3), "3"),
        (np.arange(3), "[0, 1, 2]"),
    ],
)
def test_text_and_json_are_given_as_text(value, text):
    answer = read_output(value, 1000)
    assert answer.text == text
    assert not answer.was_cut


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        [b"bytes"],
        lambda: 3,
        itertools.count(),
        (x for x in [1]),
        {(1, 2): 3},
        {"a": object()},
        type,
    ],
)
def test_what_is_neither_text_nor_json_is_a_failed_call(value):
    @tool
    def give() -> Any:
        return value

    result = ToolRegistry([give]).execute(ToolCall("give"))
    assert result.failure is ToolFailure.BAD_RESULT
    assert result.text.startswith("give failed: it returned")
    assert len(result.text) < 1000


def test_circular_and_deep_values_are_failed_calls():
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert result_of(circle) is None
    assert result_of(deep, max_output=1_000_000) is None


@pytest.mark.parametrize("value", ["x" * 1_000_000, ["x" * 1000] * 1000], ids=["text", "list"])
def test_a_huge_answer_is_cut_and_says_so(value):
    text = result_of(value)
    assert len(text) < 1100
    assert text.endswith("[The answer was cut after 1000 characters. Ask for less at once.]")


def test_half_a_surrogate_pair_does_not_reach_the_model():
    text = result_of("bad \ud800 pair")
    assert text == "bad \\ud800 pair"
    assert result_of(["\udfff"]) == ["\udfff"]  # a value for programs, its text for the model
    assert read_output(["\udfff"], 100).text == '["\\udfff"]'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(json_values, st.integers(0, 60))
def test_every_json_value_becomes_text_of_bounded_length(value, limit):
    answer = read_output(value, limit)
    answer.text.encode()
    assert len(answer.text) <= 6 * limit + 80  # what is no text takes up to six characters
    if not answer.was_cut and value is not None and not isinstance(value, str):
        assert "\\ud" in answer.text or json.loads(answer.text) == value
