"""The fast forms of rendering and encoding give the tokens of the plain ones, in every family."""

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from chat.families import FAMILIES, make_format
from chat.zoo import ZOO, zoo_format
from every_case import every_case
from turnwise import ConfigError
from turnwise.chat import ChatFormat
from turnwise.chat.fast.layouts import LayoutCache
from turnwise.chat.ownership import RenderedText
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


FORMS = ("chat.encoding", "chat.layouts")


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


@pytest.mark.parametrize(
    "family", ["chatml", "llama-2", "llama-3", "llama-3.1", "mistral", "gemma", "glm"]
)
def test_ordinary_observations_are_not_rendered(family, monkeypatch):
    chat = make_format(family)
    chat.increment_ids([{"role": "user", "content": "cache the layout"}], [7])

    def fail(*_, **__):
        raise AssertionError("rendered")

    monkeypatch.setattr(chat._renderer, "_render", fail)
    assert chat.increment_ids([{"role": "user", "content": "  higher\n"}], [7])


def is_rendered(template, content):
    """Whether a text had to be rendered in full, although a layout was cached."""
    from jinja2 import Environment

    rendered = []

    def render(messages):
        rendered.append(messages)
        return Environment().from_string(template).render(messages=messages)

    def render_with_spans(messages):
        return RenderedText(render(messages))

    layouts = LayoutCache(template, render, render_with_spans, lambda text: ())
    layouts.render([{"role": "user", "content": "learn"}])
    rendered.clear()
    text = layouts.render([{"role": "user", "content": content}]).text
    was_rendered = bool(rendered)
    assert text == render([{"role": "user", "content": content}])
    return was_rendered


LOOP = "{% for message in messages %}[BODY]{% endfor %}"


@pytest.mark.parametrize(
    "body",
    [
        "{{ message.content | trim | upper }}",
        "{{ message.content | upper }}",
        "{{ message.content | e }}",
        "{{ message.content | tojson }}",
        "{{ message.content[:1000] }}",
        "{{ message.content.lstrip() }}",
        "{{ message.content }}{{ message.content }}",
        "{% if message.content %}{{ message.content }}{% else %}nothing{% endif %}",
        "{{ message.content }}{{ strftime_now('%d') if false }}",
    ],
)
def test_a_template_that_changes_the_text_is_rendered_each_time(body):
    assert is_rendered(LOOP.replace("[BODY]", body), "hello")


@pytest.mark.parametrize("trim", ["| trim", ".strip()"])
def test_a_template_that_trims_is_not_rendered_each_time(trim):
    for text in ("hello", "  hello\n\n", "\u2003hello\x1f", " \n"):
        body = "<b>{{ message.content" + trim + " }}</b>"
        assert not is_rendered(LOOP.replace("[BODY]", body), text)


@pytest.mark.parametrize(
    "body",
    [
        "{% if 'secret' in message.content %}!{% endif %}{{ message.content }}",
        "{% if message.content == 'secret' %}!{% endif %}{{ message.content }}",
        "{% if message.content.startswith('secret') %}!{% endif %}{{ message.content }}",
        "{{ message.content.split('secret')[-1] }}",
        "{{ message.content | replace('secret', '') }}",
        "{% set hidden = ['secret'] %}{{ message.content.replace('secret', hidden[0][1:]) }}",
    ],
)
def test_a_text_that_the_template_looks_for_is_rendered(body):
    assert is_rendered(LOOP.replace("[BODY]", body), "secret")
    assert not is_rendered(LOOP.replace("[BODY]", body), "public")


def test_roles_are_not_looked_for_in_texts():
    body = "{% if message.role == 'user' %}U:{% endif %}{{ message.content }}"
    select = "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    assert not is_rendered(select + LOOP.replace("[BODY]", body), "the user")


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
