"""Prompts as texts and as messages, and the environment that asks them."""

import pytest
from hypothesis import given, strategies as st

from turnwise import ConfigError, PromptEnvironment, check_env, expert_player, play_episode
from turnwise.env.prompts import Prompt, is_answer, read_answer, read_prompt


def said(*roles):
    return [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]


def environment(**row):
    env = PromptEnvironment()
    env.task = row
    return env


@given(
    st.booleans(),
    st.lists(st.sampled_from(["user", "assistant"])),
    st.lists(st.text(), min_size=12, max_size=12),
)
def test_messages_come_back_as_they_were(has_system, between, texts):
    roles = ["system"] * has_system + ["user", *between, "user"]
    contents = ["rules", *texts, *texts] * 2
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]
    assert Prompt.read(messages).messages == messages


def test_content_in_pieces_of_text_is_one_text():
    pieces = [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]
    assert Prompt.read([{"role": "user", "content": pieces}]).text == "What now?"


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (said(), "roles none; expected user"),
        (said("system"), "roles none; expected user"),
        (said("user", "assistant"), "user, assistant.*last of them a user's"),
        (said("assistant", "user"), "assistant, user"),
        (said("user", "system", "user"), "at most one system message"),
        (said("system", "system", "user"), "at most one system message"),
        (said("user", "assistant", "tool", "user"), "tool"),
        (["Hi."], r"message 0 of a prompt is 'Hi.' \(str\)"),
        ([{"content": "Hi."}], "message 0"),
        ([{"role": "user"}], r"message 0 of a prompt"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 0 .* 'image'.* text only"),
        (b"Hi.", "bytes"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_asked_exactly_is_refused(prompt, told):
    with pytest.raises(ConfigError, match=told):
        Prompt.read(prompt)


def test_two_system_prompts_are_refused():
    with pytest.raises(ConfigError, match="no system message in the prompt besides"):
        read_prompt({"prompt": said("system", "user"), "system": "Be brief."})
    with pytest.raises(ConfigError, match="'system' is 3"):
        read_prompt({"prompt": "Hi.", "system": 3})


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"answer": "a", "ground_truth": "b"}, "a"),
        ({"answer": None, "ground_truth": "b"}, "b"),
        ({"answer": 0}, "0"),
        ({"reward_model": {"style": "rule", "ground_truth": "c"}}, "c"),
        ({"reward_model": "rule"}, None),
        ({"answer": ["a", "b"]}, None),
        ({}, None),
    ],
)
def test_the_answer_of_a_row(row, answer):
    assert read_answer(row) == answer


def test_the_answer_is_the_reply_or_its_last_line():
    assert is_answer(" 42\n", "42")
    assert is_answer("Six sevens.\n\n 42 \n\n", "42 ")
    assert is_answer("a\nb", "a\nb")
    assert not is_answer("42\nI think.", "42")
    assert not is_answer("It is 42", "42")
    assert not is_answer("420", "42")
    assert not is_answer("", "42")


def test_one_turn_and_no_more():
    env = environment(prompt="6 x 7?", answer=42)
    trajectory = play_episode(env, expert_player, seed=1)
    assert (trajectory.actions, trajectory.rewards, trajectory.dones) == (["42"], [1.0], [True])
    assert trajectory.success
    env.reset()
    assert env.step("41") == ("Wrong.", 0.0, True, {"success": False})
    assert env.is_done()


def test_without_an_answer_the_reward_function_says_everything():
    env = environment(prompt=said("system", "user"))
    assert env.reset() == "user 1"
    assert env.get_prompt_prefix() == "system 0"
    assert env.expert_action() is None
    assert env.step("Something.") == ("", 0.0, True, {})


def test_it_keeps_the_rules_of_environments():
    report = check_env(environment(prompt="6 x 7?", answer="42"))
    assert report.ok, report


def test_without_a_task_it_says_how_to_give_one():
    with pytest.raises(ConfigError, match=r"no task to play.*EpisodeTask\(seed, task=row\)"):
        PromptEnvironment().reset()
