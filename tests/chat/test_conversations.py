"""Conversations stay token for token what was sampled, in every family of templates."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from chat.families import FAMILIES, difference_of, make_format
from turnwise import ConfigError
from turnwise.chat import ChatFormat, Conversation, TokenStream

WORDS = st.text("abcdehlo <>|[]{}/\n,.05é☃", max_size=20)
OPENING = [{"role": "user", "content": "hello"}]
APPEND_ONLY = [name for name in FAMILIES if name != "reasoning"]


def letter_by_letter(chat_format, text):
    """Ids of a text that are not its canonical encoding, as a model may sample them."""
    encode = chat_format.tokenizer.encode
    return [i for letter in text for i in encode(letter, add_special_tokens=False)]


def end_of_turn(chat_format):
    """The token that the template itself ends a turn with, if it is one."""
    return [i for i in chat_format.turn_end.closing_ids if i in chat_format.stop_ids][:1]


def say(conversation, text, *, is_cut=False):
    ids = letter_by_letter(conversation.format, text)
    ids += [] if is_cut else end_of_turn(conversation.format)
    conversation.answer(ids, [-0.5] * len(ids))
    return ids


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=15)
@given(turns=st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=4))
def test_the_stream_only_grows_and_holds_what_was_sampled(name, turns):
    conversation = Conversation(make_format(name), OPENING)
    sampled = []
    for text, observation, is_cut in turns:
        before = list(conversation.stream.ids)
        sampled += say(conversation, text, is_cut=is_cut)
        conversation.add([{"role": "user", "content": observation}])
        assert list(conversation.stream.ids[: len(before)]) == before
    stream = conversation.stream
    assert [i for i, own in zip(stream.ids, stream.mask, strict=True) if own] == sampled
    assert sum(end - start for start, end in stream.turns) == len(sampled)
    for log_prob, own in zip(stream.log_probs, stream.mask, strict=True):
        assert math.isnan(log_prob) != own


@pytest.mark.parametrize("name", APPEND_ONLY)
@settings(deadline=None, max_examples=15)
@given(turns=st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=4))
def test_the_stream_reads_as_the_template_writes_it(name, turns):
    chat_format = make_format(name)
    conversation = Conversation(chat_format, OPENING)
    for text, observation, is_cut in turns:
        text = text.strip()  # noqa: PLW2901 - the families that open with a space trim answers
        spoken = " " + text if name == "plain" else text
        say(conversation, spoken, is_cut=is_cut)
        conversation.messages[-1] = {"role": "assistant", "content": text}
        conversation.add([{"role": "user", "content": observation}])
    text = chat_format.tokenizer.decode(conversation.stream.ids, skip_special_tokens=False)
    rendered = chat_format.render(conversation.messages)
    assert text == rendered.replace("\ufdd0", "")


def test_a_turn_that_ends_with_the_next_role_does_not_get_it_twice():
    chat_format = make_format("glm")
    user, observation = chat_format.tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    for end, role in ((user, "user"), (observation, "tool")):
        conversation = Conversation(chat_format, OPENING)
        ids = [*chat_format.tokenizer.encode("up", add_special_tokens=False), end]
        conversation.answer(ids, [-1.0] * len(ids))
        conversation.add([{"role": role, "content": "lower"}])
        assert conversation.stream.ids.count(end) == 1 + (role == "user")  # the opening has one
        assert difference_of(conversation) is None


def test_a_tokenizer_without_a_template_says_what_to_choose():
    class Bare:
        chat_template = None

    with pytest.raises(ConfigError, match="chatml"):
        ChatFormat(Bare())
    with pytest.raises(ConfigError, match="chatml"):
        ChatFormat(make_format("chatml").tokenizer, "chatlm")


def test_messages_that_the_template_refuses_are_a_clear_error():
    strict = "{{ raise_exception('no tools here') if messages[-1].role == 'tool' else 'x' }}"
    chat_format = ChatFormat(make_format("chatml").tokenizer, strict)
    with pytest.raises(ConfigError, match=r"tool.*no tools here"):
        chat_format.prompt_ids([*OPENING, {"role": "tool", "content": "x"}])


def test_a_template_of_one_exchange_serves_one_turn():
    chatml = make_format("chatml")
    strict = "{% if messages[2:] %}{{ raise_exception('one') }}{% endif %}"
    chat_format = ChatFormat(chatml.tokenizer, strict + chatml.tokenizer.chat_template)
    assert chat_format.stop_ids == chatml.stop_ids


def test_a_turn_needs_a_log_prob_for_each_token():
    with pytest.raises(ConfigError, match="2 tokens and 1 log-probs"):
        TokenStream().add_turn([1, 2], [-0.5])
