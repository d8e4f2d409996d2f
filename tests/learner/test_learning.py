"""Tiny tasks that must be learned, quickly and from a seed."""

import asyncio
import dataclasses

import pytest
import torch

from inference.tiny_models import VOCABULARY, make_model
from turnwise.algo import compute_advantages
from turnwise.chat import TokenStream
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch, on_last_token

GOOD = 42
PROMPT = (3, 1, 4)


def play(policy, num_episodes, generator):
    """Episodes of one sampled token; the good one earns 1."""
    with torch.no_grad():
        log_probs = policy(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    tokens = torch.multinomial(log_probs.exp(), num_episodes, True, generator=generator)
    streams = []
    for token in tokens.tolist():
        stream = TokenStream()
        stream.add_context(PROMPT)
        stream.add_turn([token], [float(log_probs[token])])
        streams.append(stream)
    batch = PPOBatch.from_streams(streams)
    scores = (tokens == GOOD).float()
    return batch, scores, float(log_probs[GOOD].exp())


@pytest.mark.parametrize(("estimator", "critic"), [("gae", "shared"), ("grpo", None)])
def test_a_model_learns_to_say_the_word_that_pays(estimator, critic):
    policy = make_model("llama")
    learner = Learner(
        PolicyValueModel(policy, critic),
        LearnerOptions(learning_rate=3e-3, update_epochs=2, mini_batch_size=32),
    )
    generator = torch.Generator().manual_seed(0)
    chances = []
    for _ in range(25):
        batch, scores, chance = play(policy, 64, generator)
        chances.append(chance)
        rewards = on_last_token(scores, batch.response_mask)
        values = learner.score(batch).values
        known = {
            "token_level_rewards": rewards,
            "response_mask": batch.response_mask,
            "index": [0] * len(batch),
            "gamma": 1.0,
            "lam": 0.95,
        }
        if values is not None:
            known["values"] = values
        advantages, returns = compute_advantages(estimator, known)
        learner.update(
            dataclasses.replace(batch, advantages=advantages, returns=returns, values=values)
        )
    assert chances[0] < 0.1
    assert chances[-1] > 0.9


def test_the_local_engine_and_the_learner_agree_on_the_modules_they_share():
    policy = make_model("llama")  # the engine joins its projections into blocks of memory
    learner = Learner(PolicyValueModel(policy, None), LearnerOptions(learning_rate=1e-3))

    async def sample(engine, version):
        streams = []
        for seed in range(8):
            stream = TokenStream()
            stream.add_context([*PROMPT, seed])
            for turn in range(3):
                request = GenerationRequest(list(stream.ids), 5, seed=10 * version + seed + turn)
                result = await engine.sample(request)
                stream.add_turn(result.ids, result.log_probs)
                stream.add_context([seed, turn])
            streams.append(stream)
        return streams

    async def alternate():
        engine = LocalEngine(policy)
        try:
            for version in range(3):
                batch = PPOBatch.from_streams(await sample(engine, version))
                advantages = torch.where(batch.input_ids < VOCABULARY // 2, 1.0, -1.0)
                metrics = learner.update(dataclasses.replace(batch, advantages=advantages))
                assert metrics["gap_max"] < 1e-4
                assert metrics["num_steps"] == 1
                engine.update_weights(None)
        finally:
            engine.close()

    asyncio.run(alternate())
