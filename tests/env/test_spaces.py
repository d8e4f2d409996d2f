"""Gymnasium's spaces as text: every action can be written and read back, nothing else raises."""

import json
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

pytest.importorskip("gymnasium")

from gymnasium import spaces

from turnwise.env.adapters.gymnasium_spaces import (
    InvalidActionError,
    describe_answers,
    describe_observation,
    example_action,
    parse_action,
    render_action,
)

MOVES = {"left": "", "right": "", "pick up": ""}

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
counts = st.integers(1, 9)
starts = st.integers(-(2**40), 2**40)


@st.composite
def boxes(draw: st.DrawFn) -> Any:
    shape = draw(shapes)
    if draw(st.booleans()):
        low = draw(st.integers(-(2**62), 2**62))
        return spaces.Box(low, low + draw(st.integers(0, 2**40)), shape, np.int64)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    if draw(st.booleans()):
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    low = draw(st.floats(-1e6, 1e6))
    return spaces.Box(low, low + draw(st.floats(0.01, 1e6)), shape, dtype)


leaves = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), counts, starts),
    st.builds(spaces.MultiDiscrete, st.lists(counts, min_size=1, max_size=4)),
    st.builds(lambda n: spaces.MultiDiscrete([n, n], start=[-4, 7]), counts),
    st.builds(lambda n: spaces.MultiDiscrete([n, n]), st.lists(counts, min_size=1, max_size=3)),
    st.builds(lambda shape: spaces.MultiBinary(shape or 1), shapes),
    st.builds(lambda n: spaces.Text(n, charset=string.printable), counts),
    boxes(),
)


@settings(deadline=None, max_examples=80)
@given(leaves, st.integers(0, 2**31))
def test_every_action_is_read_back_exactly(space, seed):
    space.seed(seed)
    assert describe_answers(space, {}).startswith("Answer with ")
    assert isinstance(describe_observation(space, space.sample(), {}), str)
    for value in (space.sample(), example_action(space)):
        read = parse_action(space, render_action(space, value, {}), {})
        assert np.array_equal(read, value)
        assert space.contains(read)


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
).map(json.dumps)


@settings(deadline=None, max_examples=60)
@given(leaves, st.one_of(st.text(), any_json, st.from_regex(r"[-+0-9.eE\[\]{},:\" ]{0,40}")))
@example(spaces.Box(-1, 1, (2,)), "[" * 2000)
@example(spaces.Box(-1, 1, (1,)), "9" * 5000)
@example(spaces.Box(-np.inf, np.inf, (1,)), "1e300")
@example(spaces.Discrete(3), "1" + "0" * 400)
def test_no_text_raises_anything_but_invalid_action(space, text):
    try:
        value = parse_action(space, text, {})
    except InvalidActionError:
        return
    assert space.contains(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I push RIGHT.", 1),
        ("Action: 1.", 1),
        ("The left is blocked at 0.5, so I go right", 1),
        ("pickup", 2),
        ("Pick-up!", 2),
        ('{"action": "pick up"}', 2),
    ],
)
def test_discrete_answers_may_be_a_name_or_a_number_in_prose(text, expected):
    assert parse_action(spaces.Discrete(3), text, MOVES) == expected


@pytest.mark.parametrize("text", ["0.5", "force: 0.5.", "[0.5]", "not -1 but 0.5", "[[0.5]]", ".5"])
def test_one_number_is_enough_for_a_box_of_one(text):
    value = parse_action(spaces.Box(-1, 1, (1,)), text, {})  # the last one in the prose
    assert value.tolist() == [0.5]
    assert value.dtype == np.float32


@pytest.mark.parametrize(
    ("space", "text", "problem"),
    [
        (spaces.Box(-1, 1, (2,)), "[0.1]", "a list of 2 numbers, each from -1 to 1"),
        (spaces.MultiDiscrete([2, 3]), "[1, 3]", "from 0 to 1, from 0 to 2"),
        (spaces.MultiBinary(2), "[2, 0]", "each from 0 to 1"),
        (spaces.Text(3, charset="abc"), "abca", "a text of 1 to 3 characters of 'abc'"),
        (spaces.MultiDiscrete([2, 2]), "[0, 5]", "the answer is [0, 5]"),
        (spaces.Discrete(3), "upright", "left (0), right (1), pick up (2)"),
        (spaces.Discrete(3), "1.5", "left (0), right (1), pick up (2)"),
    ],
)
def test_an_invalid_answer_is_told_what_was_expected(space, text, problem):
    with pytest.raises(InvalidActionError) as caught:
        parse_action(space, text, MOVES if isinstance(space, spaces.Discrete) else {})
    assert problem in str(caught.value)


def test_observations_are_short_and_named():
    box = spaces.Box(-9, 9, (2,))
    value = np.array([0.123456, -0.0], dtype=np.float32)
    assert describe_observation(box, value, {}) == "[0.1235, 0]"
    assert describe_observation(box, value, {"height": "in m", "speed": ""}) == (
        "height: 0.1235\nspeed: 0"
    )
    assert describe_observation(None, {"room": 1, "bag": {"keys": 3}}, {}) == (
        "room: 1\nbag:\n  keys: 3"
    )
    assert describe_observation(None, (1, "hall", True), {}) == (
        "item 1: 1\nitem 2: hall\nitem 3: yes"
    )
