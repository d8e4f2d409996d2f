"""Warm start of agents: the expert's replies as the tokens that the model would have to sample."""

import asyncio
import re

import pytest

from agents.serving import CALL, QUESTION, TOOL, ask
from chat.families import make_format
from trainer.runs import Listener
from turnwise import ConfigError, Trainer
from turnwise.agents.expert import ExpertSession
from turnwise.agents.requests import ApiError, ChatRequest
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine

SIMPLE = {"name": "look", "arguments": {"key": "x"}}
OPENAI = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"key":"x"}'}}


def replies(expert, *requests, family="hermes", parser="hermes", **options):
    """The session of an expert, and its reply to each request."""
    chat = make_format(family)
    setup = make_setup(
        ScriptedEngine(chat.tokenizer, "unused"),
        CollectorOptions(chat_format=chat, parser=parser, **options),
    )
    session = ExpertSession(setup, expert)

    async def all_of_them():
        return [(await session.complete(request))[0].message for request in requests]

    return session, asyncio.run(all_of_them())


@pytest.mark.parametrize("call", [SIMPLE, OPENAI])
def test_the_tokens_are_those_that_a_model_would_sample(call):
    def expert(messages, tools):
        assert tools == [TOOL]
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        return {"content": "Wait.", "tool_calls": [call]}

    session, (first,) = replies(expert, ChatRequest(QUESTION, [TOOL]))
    assert first["content"] == "Wait."
    assert first["tool_calls"][0]["function"]["name"] == "look"
    chat = make_format("hermes")
    (turn,) = session.tree.turns
    assert list(turn.ids) == chat.answer_ids(f"Wait.\n{CALL}")
    assert turn.ids[-1] in chat.stop_ids
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "42"}
    follow = ChatRequest([*QUESTION, first, result], [TOOL])
    assert asyncio.run(session.complete(follow))[0].message["content"] == "42"
    assert not session.tree.stream().branches, "the second request continues the first one's tokens"


@pytest.mark.parametrize(
    ("family", "parser"),
    [("llama-3.1", "llama"), ("mistral-tools", "mistral"), ("glm", "glm"), ("reasoning", "json")],
)
def test_calls_are_written_in_the_format_that_the_parser_reads(family, parser):
    async def expert(messages, tools):
        return {"tool_calls": [SIMPLE]}

    _, (reply,) = replies(expert, ChatRequest(QUESTION, [TOOL]), family=family, parser=parser)
    (call,) = reply["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"key": "x"}'}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (3, "returned 3, expected a text, or a message such as"),
        ({"tool_calls": [{"look": "x"}]}, "expected a text, or a message such as"),
        (CALL, "is read as 1 tool calls, expected 0"),
        ("word " * 50, "raise inference.max_tokens"),
        (ValueError("lost"), "ValueError: lost"),
    ],
)
def test_what_the_model_could_not_write_fails_the_episode(reply, problem):
    def expert(messages, tools):
        if isinstance(reply, Exception):
            raise reply
        return reply

    limits = EpisodeLimits(max_tokens_per_turn=40)
    with pytest.raises(ApiError) as caught:
        replies(expert, ChatRequest(QUESTION, [TOOL]), limits=limits)
    assert problem in str(caught.value)


def forks(task, llm):
    """Two conversations that begin alike; the reward is never asked for."""
    for ending in ("", " Quickly."):
        body = {"model": llm.model, "messages": [{"role": "user", "content": f"Go{ending}"}]}
        assert ask(llm, "/chat/completions", body)[0] == 200
    return "no number"


def goes_left(messages, tools):
    return "left"


def test_the_learner_imitates_every_branch(tmp_path):
    training = {"batch_size": 2, "warm_start": "expert", "warm_start_steps": 12}
    config = {"training": training, "checkpoint": {"output_dir": str(tmp_path)}}
    reporter = Listener()

    def reward(trajectory):
        return sum(action == "left" for action in trajectory.actions) / 2

    given = {"agent": forks, "expert": goes_left, "reward_fn": reward, "reporter": reporter}
    with Trainer(config, **given) as trainer:
        trainer.fit(1, 1)
        assert trainer.evaluate(2)["reward"] == 1.0
    (loss,) = re.findall(r"warm start on expert: 12 steps, loss ([\d.]+)", "".join(reporter.said))
    assert float(loss) < 0.5


def test_agents_that_never_call_the_model_are_reported(tmp_path):
    reporter = Listener()
    config = {"training": {"batch_size": 2}, "checkpoint": {"output_dir": str(tmp_path)}}
    with Trainer(config, agent=lambda task, llm: 1.0, reporter=reporter) as trainer:
        trainer.fit(1, 1)
    assert any("Pass llm.base_url, llm.api_key and llm.model" in text for text in reporter.said)


def test_a_warm_start_needs_an_expert():
    config = {"training": {"warm_start": "expert"}}
    with pytest.raises(ConfigError, match="an agent has no such player"):
        Trainer(config, agent=forks, reporter=None)
    with pytest.raises(ConfigError, match="an agent has no such player"):
        Trainer({"training": {"warm_start": "random"}}, agent=forks, expert=goes_left)
    with pytest.raises(ConfigError, match="expert is given without an agent"):
        Trainer(config, "guess-number", expert=goes_left, reporter=None)
    with pytest.raises(ConfigError, match="expert got int"):
        Trainer(config, agent=forks, expert=3, reporter=None)
