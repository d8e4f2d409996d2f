"""Prompts are what the chat template writes, whatever it looks for in the texts."""

import pytest

from chat.families import make_format
from chat.thinkers import THINKERS, thinking_format
from chat.zoo import ZOO, zoo_format
from turnwise import ConfigError
from turnwise.chat import ChatFormat
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.tools.thoughts import opens_thought

LOOP = "{% for m in messages %}[BODY]{% endfor %}"
# What each looks for, and a text that has it.
LOOKING = {
    "through a variable": (
        "{% set words = ['se', 'cret'] %}"
        "{% if words | join in m.content %}!{% endif %}{{ m.content }}",
        "a secret",
    ),
    "through a macro's default": (
        "{% macro hide(text, word='secret') %}{{ text.replace(word, '...') }}{% endmacro %}"
        "{{ hide(m.content) }}",
        "a secret",
    ),
    "by its length": (
        "{{ m.content if m.content | length < 12000 else m.content[:12000] }}",
        "long " * 3000,
    ),
}


@pytest.mark.parametrize("case", LOOKING)
def test_a_template_that_looks_into_a_text_reads_every_text(case):
    body, text = LOOKING[case]
    tokenizer = make_tiny_tokenizer()
    template = LOOP.replace("[BODY]", body)
    chat = ChatFormat(tokenizer, template)
    for content in ("hello", text, "there"):  # nothing learned from one prompt is used in another
        messages = [{"role": "user", "content": content}]
        written = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        assert tokenizer.decode(chat.prompt_ids(messages)) == written


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CONVERSATIONS = (
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": " <b>&amp;</b> \n"}],
    [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "why"},
        {"role": "user", "content": "r"},
    ],
    [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "tool_calls": [
            {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
        ]},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "3"},
    ],
)  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_renderings_are_those_of_transformers(name):
    chat = zoo_format(name)
    for messages in CONVERSATIONS:
        for tools in (None, TOOLS):
            try:
                expected = chat.tokenizer.apply_chat_template(
                    messages, tools=tools, add_generation_prompt=True, tokenize=False
                )
            except Exception:
                with pytest.raises(ConfigError):
                    chat.render(messages, tools=tools)
            else:
                assert chat.render(messages, tools=tools) == expected


def test_a_template_that_writes_only_the_first_message_is_a_clear_error():
    chat = ChatFormat(make_tiny_tokenizer(), "{{ messages[0].content }}")
    assert chat.prompt_ids([{"role": "user", "content": "q"}])
    for ask in (
        lambda: chat.stop_ids,
        lambda: chat.answer_ids("a"),
        lambda: chat.increment_ids([{"role": "user", "content": "q"}], [7]),
        lambda: chat.increment_ids([{"role": "tool", "content": "q"}], [7]),
    ):
        with pytest.raises(ConfigError, match=r"does not (write the answers|end a call)"):
            ask()


def test_a_tokenizer_that_was_told_to_cut_still_gives_all_tokens():
    chat = make_format("chatml")
    message = [{"role": "user", "content": "hello " * 20}]
    expected = chat.increment_ids(message, [7])
    chat.tokenizer("hello there", truncation=True, max_length=2)
    assert chat.increment_ids(message, [7]) == expected


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
