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
from turnwise.models.adapters import adapted_layers

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
    trained = {name for name, p in learner.model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "value_head" in name for name in trained)
    batch = with_targets(random_batch(), learner)
    start = learner.score(batch).log_probs
    before = weights(learner.model)
    for _ in range(3):
        assert learner.update(batch)["num_steps"] == 1
    after = weights(learner.model)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved <= trained
    assert any("lora_A" in name for name in moved)
    # The reference is the model as it was, without a second copy.
    assert learner._reference is None
    torch.testing.assert_close(learner.reference_log_probs(batch), start)
    assert float((learner.score(batch).log_probs - start).abs().max()) > 1e-3
    assert learner.update(batch)["num_steps"] == 1  # the adapters are on again


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


ADAPTERS = {
    "all": {},
    "two of three": {"lora_target_modules": ["q_proj", "v_proj", "down_proj"]},
    "scaled": {"use_rslora": True, "lora_alpha": 40, "lora_dropout": 0.5},
}


@pytest.mark.parametrize("adapters", ADAPTERS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_the_local_engine_samples_with_the_adapters_on(family, adapters):
    given = {} if family == "gpt2" else ADAPTERS[adapters]
    config = settings(adv_estimator="grpo", kl_loss_coef=0.1, **given)
    model = make_model(family)
    learner = make_learner(config, model)
    engine = LocalEngine(model)
    assert (engine._runner._fused is not None) == (family != "gpt2")
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
    with pytest.raises(ConfigError, match="which a policy with adapters cannot have"):
        make_learner(settings(critic="separate"), make_model())
    with pytest.raises(ConfigError, match="lora_rank got 0"):
        add_lora(make_model(), 0)


def test_every_setting_of_the_adapters_reaches_peft():
    model = make_model()
    given = {
        "lora_alpha": 6,
        "lora_target_modules": ["q_proj", "v_proj"],
        "lora_dropout": 0.3,
        "use_rslora": True,
    }
    learner = make_learner(settings(**given), model)
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 6, 0.3)
    names = [name for name, _ in learner.model.named_parameters() if "lora" in name]
    adapted = {name.split(".lora_")[0][-6:] for name in names}
    assert adapted == {"q_proj", "v_proj"}
    assert {one.scaling["default"] for one in adapted_layers(model).values()} == {6 / 4**0.5}


def test_dropout_changes_the_update_and_nothing_else():
    found, gaps = [], []
    for dropout, checkpointing in ((0.0, False), (0.5, False), (0.5, True)):
        config = settings(
            lora_dropout=dropout,
            lora_target_modules=["q_proj"],
            gradient_checkpointing=checkpointing,
        )
        learner = make_learner(config, make_model())
        batch = with_targets(random_batch(), learner)
        before, state = learner.score(batch).log_probs, torch.get_rng_state()
        gaps.append(learner.update(batch)["gap_max"])
        torch.testing.assert_close(learner.log_probs_before_update, before.float())
        learner.update(batch)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(learner.score(batch).log_probs, learner.score(batch).log_probs)
        found.append(weights(learner.model))
    assert largest_difference(found[0], found[1]) > 1e-4
    assert largest_difference(found[1], found[2]) < 1e-5  # layers computed again drop the same
    assert len(set(gaps)) == 1


def test_layers_that_do_not_exist_and_settings_without_adapters_are_refused():
    with pytest.raises(ConfigError, match=r"got \['query'\].*linear layers are: .*q_proj"):
        make_learner(settings(lora_target_modules=["query"]), make_model())
    with pytest.raises(ConfigError, match=r"training\.lora_alpha got 4.*lora_rank is 0"):
        make_learner(settings(lora_rank=0, lora_alpha=4), make_model())
