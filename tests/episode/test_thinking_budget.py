"""A budget of thinking tokens: the thought is closed, and the tokens that close it are masked."""

import asyncio
import math

import pytest
from hypothesis import given, settings, strategies as st

from agents.serving import QUESTION
from chat.thinkers import thinking_format
from episode.recorder import Recorder, check_exact, check_log_probs
from episode.worlds import Counting
from turnwise import ConfigError, EpisodeLimits, ScriptedEngine, run_episode
from turnwise.agents.requests import ChatRequest
from turnwise.agents.session import AgentSession
from turnwise.chat import ChatFormat
from turnwise.episode import CollectorOptions, make_setup
from turnwise.inference import SamplingParams, create_inference_engine
from turnwise.learner import PPOBatch
from turnwise.models import load_model
from turnwise.models.tiny import make_tiny_tokenizer

NAMES = st.sampled_from(["qwen3", "deepseek-r1", "glm-4.5", "gpt-oss"])
LIMITS = EpisodeLimits(max_turns=4, max_tokens_per_turn=24, max_thinking_tokens=6)


@settings(max_examples=20)
@given(name=NAMES, seed=st.integers(0, 99))
def test_every_sampled_token_stands_once_in_its_context(name, seed):
    chat = thinking_format(name)
    engine = Recorder(chat.tokenizer)
    result = run_episode(engine, Counting(), chat_format=chat, limits=LIMITS, seed=seed)
    assert result.error is None
    check_exact(result.stream, engine.requests)
    assert len(result.stream.turns) == len(result.turns)
    for _, end in result.stream.turns:
        assert result.stream.mask[end - 1]


@pytest.mark.parametrize(
    ("name", "thought", "close"),
    [
        ("qwen3", "<think>\n" + "hello " * 12, "\n</think>\n\n"),
        ("deepseek-r1", "hello " * 14, "\n</think>\n\n"),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>" + "hello " * 12,
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_the_turn_goes_on_with_the_answer(name, thought, close):
    chat = thinking_format(name)
    environment = Counting()
    engine = ScriptedEngine(chat.tokenizer, lambda text: "bed" if text.endswith(close) else thought)
    limits = EpisodeLimits(max_turns=4, max_tokens_per_turn=64, max_thinking_tokens=12)
    result = run_episode(engine, environment, chat_format=chat, limits=limits)
    turn, stream = result.turns[0], result.stream
    assert environment.heard[0] == "bed"
    assert turn.text.count(close.strip()) == 1
    start, end = turn.tokens
    masked = [i for i in range(start, end) if not stream.mask[i]]
    assert masked == list(range(start + 12, start + 12 + len(masked)))
    assert chat.tokenizer.decode([stream.ids[i] for i in masked]) == close
    assert all(math.isnan(stream.log_probs[i]) for i in masked)


def test_a_stop_string_is_seen_across_the_end_of_the_budget():
    loaded = load_model("tiny")
    greedy = SamplingParams(temperature=0.0)

    def reply(engine, budget, *stop):
        limits = EpisodeLimits(max_tokens_per_turn=24, max_thinking_tokens=budget)
        setup = make_setup(engine, CollectorOptions(limits=limits, sampling=greedy))
        session = AgentSession(setup)
        (reply,) = asyncio.run(session.complete(ChatRequest(QUESTION, stop=stop)))
        (facts,) = session.records.values()
        return session.tree.stream().ids, reply.content, facts.finish_reason

    with create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer) as engine:
        _, text, _ = reply(engine, None)
        assert len(text) > 16
        for start, end in ((0, 9), (6, 10), (9, 16)):  # the budget ends in some token between
            expected = reply(engine, None, text[start:end])
            for budget in range(2, 12, 3):
                assert reply(engine, budget, text[start:end]) == expected


def test_the_budget_leaves_tokens_for_the_answer():
    with pytest.raises(ConfigError, match="max_thinking_tokens got 24, expected less than the 24"):
        EpisodeLimits(max_tokens_per_turn=24, max_thinking_tokens=24)


def test_an_agent_has_the_same_budget_and_gets_its_thoughts_apart():
    chat = thinking_format("qwen3")
    thought = "<think>\nhello hello hello hello hello hello"

    def policy(text):
        return "bed" if text.endswith("</think>\n\n") else thought

    options = CollectorOptions(chat_format=chat, limits=LIMITS)
    session = AgentSession(make_setup(ScriptedEngine(chat.tokenizer, policy), options))
    request = ChatRequest(QUESTION, wants_tokens=True)
    (reply,) = asyncio.run(session.complete(request))
    assert reply.content == "bed"
    assert reply.thought.startswith("hello")
    first, last = reply.inserted
    assert set(reply.log_probs[first:last]) == {0.0}
    assert len(reply.ids) == len(reply.log_probs) == reply.num_sampled_tokens + last - first
    stream = session.tree.stream()
    assert sum(stream.mask) == reply.num_sampled_tokens < len(stream.ids) - reply.num_prompt_tokens


def test_the_learner_computes_the_log_probs_of_a_turn_whose_thought_was_closed():
    loaded = load_model("tiny")
    opens = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}<think>\n"
    chat = ChatFormat(make_tiny_tokenizer(), opens)
    engine = create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer)
    with engine:
        result = run_episode(engine, Counting(), chat_format=chat, limits=LIMITS)
    batch = PPOBatch.from_streams([result.stream])
    inserted = sum(end - start for start, end in result.stream.turns) - batch.num_policy_tokens
    assert inserted > 0
    check_log_probs(loaded.model, batch)
