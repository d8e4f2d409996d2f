"""An editing agent on the real local engine: the learner's log-probs are those of the sampling."""

import asyncio

import pytest
import torch

from agents.serving import make_session_on
from turnwise.agents.requests import ChatRequest
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.models import load_model

WORDS = ["left", "right", "up", "What now?", "Look at 5, 7."]


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


async def edit_and_ask(session, number):
    """Append, fork, retry, edit an answer, compact: what harnesses do to their history."""
    messages = [{"role": "user", "content": WORDS[number % 5]}]

    async def ask(asked):
        (reply,) = await session.complete(ChatRequest(asked, max_tokens=8))
        return reply.message

    for step in range(3):
        messages += [await ask(messages), {"role": "user", "content": WORDS[step]}]
    await ask(messages)
    await ask(messages)  # a retry
    fork = [*messages[:3], await ask(messages[:3]), {"role": "user", "content": "fork"}]
    await ask(fork)
    edited = [messages[0], {"role": "assistant", "content": "edited"}, *messages[2:]]
    await ask(edited)
    await ask([{"role": "user", "content": "so far: " + messages[1]["content"]}])


def play(loaded, cache_tokens, num_agents):
    engine = create_inference_engine(
        loaded.model, "local", {"cache_tokens": cache_tokens}, tokenizer=loaded.tokenizer
    )
    sessions = [make_session_on(engine, number) for number in range(num_agents)]

    async def all_of_them():
        await asyncio.gather(*(edit_and_ask(s, number) for number, s in enumerate(sessions)))
        for session in sessions:
            await session.close()
        # The engine's thread forgets sessions before its next turn; one without a name holds none.
        for _ in range(2):
            await engine.sample(GenerationRequest([5], 1))

    try:
        asyncio.run(all_of_them())
        assert engine._runner.kv_cache.num_allocated == 0
    finally:
        engine.close()
    return [session.tree.stream() for session in sessions]


def test_sampled_log_probs_are_the_learners_in_every_branch(tiny):
    streams = play(tiny, None, 4)
    assert all(len(stream.branches) >= 3 for stream in streams)
    batch = PPOBatch.from_streams(streams)
    learner = Learner(PolicyValueModel(tiny.model, None))
    ours = learner.score(batch).log_probs[batch.response_mask]
    torch.testing.assert_close(
        ours, batch.sampler_log_probs[batch.response_mask], rtol=0, atol=2e-4
    )


def test_branches_have_the_same_bits_whatever_memory_and_neighbours_there_are(tiny):
    alone, crowded = play(tiny, None, 1), play(tiny, 2048, 6)
    assert alone[0].ids == crowded[0].ids
    assert [x for x in alone[0].log_probs if x == x] == [x for x in crowded[0].log_probs if x == x]
