"""Rotary embeddings as a kernel: the numbers of transformers, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_rotary.py

runs the kernel on a CPU, where Triton is installed.
"""

import os

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner.fast import modules as fast_modules
from turnwise.learner.fast.modules import fused_rotary, replaced_forwards

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED or not torch.cuda.is_available() else "cuda"
HAS_KERNEL = IS_INTERPRETED or DEVICE == "cuda"
needs_kernel = pytest.mark.skipif(not HAS_KERNEL, reason="needs a GPU, or TRITON_INTERPRET=1")


class InTorch:
    """Computes what the kernel does, and counts."""

    calls = 0

    @classmethod
    def rotate(cls, x, cos, sin, *, is_backward=False):
        cls.calls += 1
        half = x.shape[-1] // 2
        (c_1, c_2), (s_1, s_2) = (t[:, None].split(half, -1) for t in (cos, sin))
        x_1, x_2 = x.split(half, -1)
        if is_backward:
            return torch.cat([x_1 * c_1 + x_2 * s_2, x_2 * c_2 - x_1 * s_1], -1)
        return torch.cat([x_1 * c_1 - x_2 * s_1, x_2 * c_2 + x_1 * s_2], -1)


@pytest.fixture(params=["torch", pytest.param("kernel", marks=needs_kernel)])
def kernels(request, monkeypatch):
    found = InTorch
    if request.param == "kernel":
        pytest.importorskip("triton")
        from turnwise.learner.fast import rotary_kernels as found
    monkeypatch.setattr(fast_modules, "_kernels_for", lambda name, x: found)
    return found


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_passes_the_probe_that_switches_it_on(dtype):
    pytest.importorskip("triton")
    from turnwise.learner.fast import rotary_kernels

    assert rotary_kernels.is_exact(dtype, torch.device(DEVICE))


def logits_and_gradients(model, ids):
    model.zero_grad()
    logits = model(ids, use_cache=False).logits
    logits.square().mean().backward()
    return logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_numbers_and_gradients(family, kernels):
    model = make_model(family).to(DEVICE)
    modules = fused_rotary(model.modules())
    if family in ("llama", "qwen2", "qwen3"):
        assert len(modules) == model.config.num_hidden_layers
    if family == "gpt2":
        assert not modules
    ids = (torch.arange(7, device=DEVICE) % 50)[None]
    logits, expected = logits_and_gradients(model, ids)
    InTorch.calls = 0
    with replaced_forwards(modules):
        got, found = logits_and_gradients(model, ids)
    if kernels is InTorch:  # query and key, there and back
        assert InTorch.calls == 4 * len(modules)
    torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_heads_that_are_rotated_in_part_are_left_to_transformers(kernels):
    config = Phi3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Phi3ForCausalLM(config).to(DEVICE).eval()
    ids = (torch.arange(9, device=DEVICE) % 50)[None]
    expected = model(ids).logits
    modules = fused_rotary(model.modules())
    assert modules  # by its function alone it looks as usual
    InTorch.calls = 0
    with replaced_forwards(modules):
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=0)
    assert InTorch.calls == 0


def test_several_rows_are_left_to_transformers(kernels):
    model = make_model("llama").to(DEVICE)
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    expected = model(ids).logits
    InTorch.calls = 0
    with replaced_forwards(fused_rotary(model.modules())):
        InTorch.calls = 0
        assert torch.equal(model(ids).logits, expected)
    assert InTorch.calls == 0


def test_another_kind_of_rotation_is_left_alone(kernels, monkeypatch):
    from transformers.models.llama import modeling_llama

    def interleaved(query, key, cos, sin):
        return query * cos[:, None] + sin[:, None], key

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", interleaved)
    assert fused_rotary(make_model("llama").to(DEVICE).modules()) == []


def test_without_a_gpu_nothing_is_replaced():
    assert fused_rotary(make_model("llama").modules()) == []
