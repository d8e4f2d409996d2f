"""The fast form of encoding gives the tokens of the plain one, in every family."""

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from chat.families import FAMILIES, make_format
from chat.zoo import ZOO, zoo_format
from every_case import every_case
from turnwise import ConfigError
from turnwise.chat import ChatFormat
from turnwise.plain_mode import plain_mode

# Pieces that templates and tokenizers may treat in ways of their own.
PIECES = (
    *("hello", " ", "  ", "\n", "\t", "</think>", "<think>", "<tool_response>", "tool", "user"),
    *("<|im_end|>", "<|im_start|>", "</s>", "<s>", "[INST]", "<|eot_id|>", "<end_of_turn>"),
    *("{{ x }}", "{% if %}", "&amp;", '"', "'", "\\", "é", "🍵", "ß", "\u200b", "1023", "\ufdd0"),
)
CONTENTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["user", "tool", "system"]), CONTENTS), min_size=1, max_size=3
)


FORMS = ("chat.encoding",)


@cache
def plain_format(chat):
    """A plain format of the same tokenizer and template; to be called in plain mode."""
    return ChatFormat(chat.tokenizer)


def plain(chat, method, *args):
    """What the plain format returns."""
    with plain_mode(FORMS):
        return getattr(plain_format(chat), method)(*args)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, is_closed=st.booleans())
def test_increments_are_those_of_the_template(family, messages, is_closed):
    chat = make_format(family)
    told = [{"role": role, "content": content} for role, content in messages]
    turn = [7, min(chat.stop_ids)] if is_closed else [7]
    assert chat.increment_ids(told, turn) == plain(chat, "increment_ids", told, turn)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(contents=st.lists(CONTENTS, min_size=2, max_size=2), has_system=st.booleans())
def test_prompts_are_those_of_the_template(family, contents, has_system):
    chat = make_format(family)
    roles = ["system", "user"] if has_system else ["user"]
    told = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    assert chat.prompt_ids(told) == plain(chat, "prompt_ids", told)


INCREMENTS = (
    [{"role": "user", "content": "  higher\n"}],
    [{"role": "user", "content": "<|im_end|></s><|user|><think>a</think>"}],
    [{"role": "tool", "name": "look_up", "content": "3"}, {"role": "tool", "content": "[INST]4"}],
)


@every_case("name", ZOO)
def test_fast_and_plain_formats_agree(name):
    chat = zoo_format(name)
    for messages in INCREMENTS:
        for method, *rest in (("prompt_ids",), ("increment_ids", [7, *sorted(chat.stop_ids)[:1]])):
            assert _outcome(getattr(chat, method), messages, *rest) == _outcome(
                plain, chat, method, messages, *rest
            )


def _outcome(function, *args):
    try:
        return function(*args)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_turns_are_read_as_the_tokenizer_reads_them(family, data):
    chat = make_format(family)
    ids = data.draw(st.lists(st.integers(0, len(chat.tokenizer) - 1), max_size=12))
    assert chat.decode(ids) == chat.tokenizer.decode(ids, skip_special_tokens=True)


def test_other_fields_of_a_message_are_rendered():
    chat = make_format("chatml")
    ordinary = {"role": "user", "content": "hello"}
    chat.increment_ids([ordinary], [7])
    odd = {**ordinary, "tool_calls": []}
    assert chat.increment_ids([odd], [7]) == plain(chat, "increment_ids", [odd], [7])


def test_a_tokenizer_that_was_told_to_cut_still_gives_all_tokens():
    chat = make_format("chatml")
    message = [{"role": "user", "content": "hello " * 20}]
    expected = chat.increment_ids(message, [7])
    chat.tokenizer("hello there", truncation=True, max_length=2)
    assert chat.increment_ids(message, [7]) == expected
