"""Thinking models: what their chat templates do, and what is made of it."""

import pytest

from chat.thinkers import THINKERS, thinking_format
from turnwise import ConfigError
from turnwise.tools.thoughts import opens_thought

QUESTION = [{"role": "user", "content": "hello"}]


def shown(chat, ids):
    return chat.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", THINKERS)
def test_thoughts_are_turned_on_and_off_or_the_error_names_the_template(name):
    thinker = THINKERS[name]
    default = shown(thinking_format(name), thinking_format(name).prompt_ids(QUESTION))
    assert opens_thought(default) == thinker.opens
    if not thinker.has_switch:
        with pytest.raises(ConfigError, match="writes the same prompt with and without thoughts"):
            thinking_format(name, enable_thinking=True)
        return
    on, off = (thinking_format(name, enable_thinking=value) for value in (True, False))
    prompts = [shown(chat, chat.prompt_ids(QUESTION)) for chat in (on, off)]
    assert "</think>" in prompts[1].rpartition("hello")[2]
    assert "</think>" not in prompts[0]
    turn = on.answer_ids("bed")
    increments = [shown(chat, chat.increment_ids(QUESTION, turn)) for chat in (on, off)]
    # The same choice holds for every later turn.
    assert [opens_thought(text) for text in increments] == [opens_thought(p) for p in prompts]
    assert "</think>" in increments[1].rpartition("hello")[2]
