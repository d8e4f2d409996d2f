"""On a GPU: attention without padding in bf16, master weights, and bounded memory."""

import asyncio
import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from learner.episodes import random_batch
from turnwise.chat import TokenStream
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch, add_lora
from turnwise.learner.log_probs import Head, chosen_log_probs
from turnwise.learner.packing import make_packs
from turnwise.models.rounding import round_weight, threshold_key

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS = {"llama": LlamaConfig(**SHAPE), "window": MistralConfig(**SHAPE, sliding_window=5)}


def made(name, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    return model.to("cuda", dtype).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_bf16_is_as_near_to_float32_as_padded_bf16(name):
    batch = random_batch(16, 40)
    exact = PolicyValueModel(made(name, torch.float32), None, layout="padded")
    found = {}
    for layout in ("packed", "padded"):
        model = PolicyValueModel(made(name), None, layout=layout)
        outputs = model(batch.input_ids, batch.attention_mask, batch.response_mask)
        outputs.log_probs.sum().backward()
        found[layout] = (
            outputs.log_probs.detach(),
            {n: p.grad.float() for n, p in model.policy.named_parameters()},
        )
    outputs = exact(batch.input_ids, batch.attention_mask, batch.response_mask)
    outputs.log_probs.sum().backward()
    expected = outputs.log_probs.detach()
    gaps, slants = {}, {}
    for layout, (log_probs, gradients) in found.items():
        gaps[layout] = float((log_probs - expected).abs().mean())
        slants[layout] = max(
            float((gradients[n] - p.grad).norm() / p.grad.norm())
            for n, p in exact.policy.named_parameters()
        )
    assert gaps["packed"] < 2 * gaps["padded"] + 1e-3
    assert slants["packed"] < 2 * slants["padded"] + 1e-3


def shared_and_branching_streams():
    """Two groups with one prompt each; every episode branches after its first turn."""
    draw = torch.Generator().manual_seed(0)
    tokens = lambda number: torch.randint(0, 97, (number,), generator=draw).tolist()  # noqa: E731
    streams = []
    for prompt in (tokens(30), tokens(17)):
        for _ in range(4):
            stream = TokenStream()
            stream.add_context(prompt)
            stream.add_turn(tokens(5), [-1.0] * 5)
            fork = len(stream)
            for _ in range(2):
                stream.begin_branch(fork)
                stream.add_context(tokens(6))
                stream.add_turn(tokens(9), [-1.0] * 9)
            streams.append(stream)
    return streams


@pytest.mark.parametrize("name", CONFIGS)
def test_shared_prefixes_in_bf16_are_as_near_to_float32_as_episodes_one_by_one(name):
    batch = PPOBatch.from_streams(shared_and_branching_streams())
    rows = torch.arange(len(batch))
    found = {}
    for way, dtype in (("exact", torch.float32), ("shared", None), ("alone", None)):
        model = PolicyValueModel(made(name, dtype or torch.bfloat16), None, layout="packed")
        ids = batch.input_ids if way == "shared" else None
        budget = 10_000 if way == "shared" else 1
        grid = torch.zeros(batch.input_ids.shape, device="cuda")
        masks = (batch.attention_mask, batch.response_mask)
        for pack in make_packs(*masks, rows, budget, ids, batch.branches):
            log_probs = model.forward_pack(batch.input_ids, pack).log_probs
            log_probs.sum().backward()
            grid[pack.rows.cuda()] = log_probs.detach().float()
        gradients = {n: p.grad.float() for n, p in model.policy.named_parameters()}
        found[way] = grid, gradients
    expected, exact = found.pop("exact")
    gaps = {way: float((grid - expected).abs().mean()) for way, (grid, _) in found.items()}
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, (_, g) in found.items()
    }
    assert gaps["shared"] < 1.5 * gaps["alone"] + 1e-3
    assert slants["shared"] < 1.5 * slants["alone"] + 1e-3


def test_bf16_weights_follow_their_masters():
    learner = Learner(
        PolicyValueModel(made("llama")),
        LearnerOptions(learning_rate=1e-3, entropy_coef=0.01, micro_batch_tokens=100),
    )
    batch = random_batch(16, 40).to("cuda")
    scores = learner.score(batch)
    good = torch.where(batch.input_ids < 50, 1.0, -1.0)
    batch = dataclasses.replace(
        batch,
        sampler_log_probs=scores.log_probs,
        advantages=good,
        returns=good,
        values=scores.values,
    )
    metrics = [learner.update(batch) for _ in range(20)]
    assert metrics[0]["gap_max"] < 0.2
    assert all(m["num_steps"] == 1 for m in metrics)
    assert metrics[-1]["value_loss"] < metrics[0]["value_loss"]
    state = learner.state().rest
    name = "policy.model.layers.0.mlp.up_proj.weight"
    weight = dict(learner.model.named_parameters())[name]
    rounded = round_weight(state[f"master.{name}"].cpu(), torch.bfloat16, threshold_key(name))
    assert torch.equal(weight.cpu(), rounded)


def test_where_memory_is_scarce_no_logits_of_all_tokens_exist(monkeypatch):
    monkeypatch.setattr("turnwise.learner.log_probs._KEPT_SHARE", 1e-3)

    def peak(num_tokens):
        hidden = torch.randn(num_tokens, 64, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(100_000, 64, device="cuda", dtype=torch.bfloat16)
        targets = torch.randint(0, 100_000, (num_tokens,), device="cuda")
        torch.cuda.reset_peak_memory_stats()
        chosen, entropy = chosen_log_probs(
            hidden.requires_grad_(), Head(weight.requires_grad_()), targets
        )
        (chosen.sum() + entropy.sum()).backward()
        return torch.cuda.max_memory_allocated()

    few, many = peak(3_000), peak(17_000)
    assert many - few < 14_000 * 64 * 2 * 8  # the hidden states and their gradients, no logits


def test_an_offloaded_optimiser_makes_nearly_the_same_steps():
    found = []
    for offload in (False, True):
        options = LearnerOptions(learning_rate=1e-3, offload_optimizer=offload)
        learner = Learner(PolicyValueModel(made("llama"), None), options)
        batch = random_batch(16, 40).to("cuda")
        good = torch.where(batch.input_ids < 50, 1.0, -1.0)
        scores = learner.score(batch).log_probs
        batch = dataclasses.replace(batch, sampler_log_probs=scores, advantages=good)
        for _ in range(3):
            assert learner.update(batch)["num_steps"] == 1
        state = learner.state().rest
        found.append(state["master.policy.model.layers.0.mlp.up_proj.weight"].cpu())
        assert (state["exp_avg.policy.model.norm.weight"].device.type == "cpu") == offload
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_merged_adapters_sample_what_the_adapters_do():
    pytest.importorskip("peft")
    model = add_lora(made("llama"), 4, use_rslora=True)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.02)
    engine = LocalEngine(model)
    requests = [GenerationRequest([3, 1, seed], 24, seed=seed) for seed in range(16)]

    async def sample_all():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    try:
        assert engine._runner._fused is not None
        for _ in range(2):
            for request, result in zip(requests, asyncio.run(sample_all()), strict=True):
                ids = [*request.prompt_ids, *result.ids]
                scores = asyncio.run(engine.score(ids, 3))
                gaps = torch.tensor(scores) - torch.tensor(result.log_probs)
                assert float(gaps.abs().mean()) < 0.2
    finally:
        engine.close()
