"""LoRA: the base stays, the adapters learn, the reference is the base."""

import asyncio

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import largest_difference, random_batch, weights, with_targets
from turnwise import ConfigError, ConfigStore
from turnwise.chat import TokenStream
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.learner import PPOBatch, add_lora, has_adapters, make_learner

pytest.importorskip("peft")


def sample_all(engine, requests):
    async def gather():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(gather())


def settings(**training):
    config = ConfigStore()
    config.training.lora_rank = 4
    config.training.learning_rate = 1e-2
    for name, value in training.items():
        setattr(config.training, name, value)
    return config


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_adapters_and_the_value_head_learn(family):
    model = make_model(family)
    learner = make_learner(settings(kl_loss_coef=0.1), model)
    assert all("lora_" in name or "value_head" in name for name in learner.optimizer.names)
    batch = with_targets(random_batch(), learner)
    start = learner.score(batch).log_probs
    before = weights(learner.model)
    for _ in range(3):
        assert learner.update(batch)["num_steps"] == 1
    after = weights(learner.model)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved <= set(learner.optimizer.names)
    assert any("lora_A" in name for name in moved)
    # The reference is the model as it was, without a second copy.
    assert learner._reference is None
    torch.testing.assert_close(learner.reference_log_probs(batch), start)
    assert float((learner.score(batch).log_probs - start).abs().max()) > 1e-3
    assert learner.update(batch)["num_steps"] == 1  # the adapters are on again


def test_checkpointing_and_adapters_go_together():
    found = []
    for switch in (False, True):
        torch.manual_seed(0)
        learner = make_learner(settings(gradient_checkpointing=switch), make_model())
        learner.update(with_targets(random_batch(), learner))
        found.append(weights(learner.model))
    assert largest_difference(*found) < 1e-5


def test_a_wrapped_model_is_taken_too():
    import peft

    wrapped = peft.get_peft_model(make_model(), peft.LoraConfig(r=2, target_modules="all-linear"))
    assert has_adapters(wrapped)
    assert not has_adapters(make_model())
    config = settings(adv_estimator="grpo", kl_loss_coef=0.1)
    learner = make_learner(config, wrapped)
    batch = with_targets(random_batch(), learner)
    assert learner.update(batch)["num_steps"] == 1
    assert not torch.equal(learner.reference_log_probs(batch), learner.score(batch).log_probs)


def test_the_local_engine_samples_with_the_adapters_on():
    config = settings(adv_estimator="grpo", kl_loss_coef=0.1)
    model = make_model()
    learner = make_learner(config, model)
    engine = LocalEngine(model)
    try:
        for _ in range(2):
            requests = [GenerationRequest([3, 1, seed], 8, seed=seed) for seed in range(6)]
            streams = [TokenStream() for _ in requests]
            for stream, request, result in zip(
                streams, requests, sample_all(engine, requests), strict=True
            ):
                stream.add_context(request.prompt_ids)
                stream.add_turn(result.ids, result.log_probs)
            batch = PPOBatch.from_streams(streams)
            batch.ref_log_probs = learner.reference_log_probs(batch)
            batch.advantages = torch.where(batch.input_ids < 50, 1.0, -1.0)
            metrics = learner.update(batch)
            assert metrics["num_steps"] == 1
            assert metrics["gap_max"] < 1e-4
            engine.update_weights(None)
    finally:
        engine.close()
    assert metrics["kl_ref"] > 0


def test_a_copy_of_a_policy_with_adapters_is_no_critic():
    with pytest.raises(ConfigError, match="separate critic"):
        make_learner(settings(critic="separate"), make_model())
    with pytest.raises(ConfigError, match="lora_rank got 0"):
        add_lora(make_model(), 0)
