"""Gated MLPs that keep less for their gradient: the numbers of torch, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_gated_mlp.py

runs the kernels on a CPU, where Triton is installed.
"""

import os

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner import add_lora
from turnwise.learner.fast import modules
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.modules import gated_mlps, replaced_forwards

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED or not torch.cuda.is_available() else "cuda"
HAS_KERNELS = IS_INTERPRETED or DEVICE == "cuda"
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="needs a GPU, or TRITON_INTERPRET=1")


class InTorch:
    """Computes what the kernels do."""

    @staticmethod
    def forward(gate, up):
        return F.silu(gate) * up

    @staticmethod
    def backward(gradient, gate, up, *, with_product):
        with torch.enable_grad():
            gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
            product = F.silu(gate) * up
        to_gate, to_up = torch.autograd.grad(product, (gate, up), gradient)
        return to_gate, to_up, product.detach() if with_product else None


@pytest.fixture(params=["torch", pytest.param("kernels", marks=needs_kernels)])
def kernels(request, monkeypatch):
    found = InTorch
    if request.param == "kernels":
        pytest.importorskip("triton")
        from turnwise.learner.fast import gated_kernels as found
    monkeypatch.setattr(modules, "_kernels_for", lambda name, x: found)
    return found


def gradients(model, ids):
    model.zero_grad()
    logits = model(ids, use_cache=False).logits
    logits.float().square().mean().backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), {name: gradient.clone() for name, gradient in trained.items()}


@pytest.mark.parametrize("has_adapters", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_numbers_and_gradients(family, has_adapters, kernels):
    model = make_model(family).to(DEVICE)
    if has_adapters:
        pytest.importorskip("peft")
        model = add_lora(model, rank=3)
    mlps = gated_mlps(model.modules())
    # Gemma's gate is a gelu, GPT-2 has none.
    assert bool(mlps) == (family not in ("gemma", "gpt2", "wide-llama"))
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    logits, expected = gradients(model, ids)
    with replaced_forwards(mlps):
        got, found = gradients(model, ids)
    assert not any("forward" in vars(mlp) for mlp, _ in mlps)
    torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def test_they_keep_a_good_part_less(kernels):
    model = make_model("llama").to(DEVICE)
    ids = torch.arange(60, device=DEVICE).view(2, 30) % 50

    def kept():
        sizes = {}

        def note(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logits = model(ids, use_cache=False).logits
        assert logits.requires_grad
        return sum(sizes.values())

    before = kept()
    with replaced_forwards(gated_mlps(model.modules())):
        after = kept()
    inner, num_layers = model.config.intermediate_size, model.config.num_hidden_layers
    assert before - after >= 2 * inner * ids.numel() * num_layers


def test_an_mlp_of_other_layers_is_left_alone(kernels):
    model = make_model("llama").to(DEVICE)
    model.model.layers[0].mlp.down_proj = torch.nn.Sequential(model.model.layers[0].mlp.down_proj)
    assert len(gated_mlps(model.modules())) == model.config.num_hidden_layers - 1


def test_without_a_gpu_nothing_is_replaced():
    assert gated_mlps(make_model("llama").modules()) == []


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_pass_the_probe_that_switches_them_on(dtype):
    pytest.importorskip("triton")
    assert load_kernels("gated_kernels", dtype, torch.device(DEVICE)) is not None


@needs_kernels
def test_a_gate_that_is_far_out_has_no_nan():
    pytest.importorskip("triton")
    from turnwise.learner.fast import gated_kernels as kernels

    gate = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], device=DEVICE)
    up, slope = torch.full_like(gate, 2.0), torch.ones_like(gate)
    assert kernels.forward(gate, up).tolist() == [0.0, 0.0, 0.0, 180.0, 2e4]
    to_gate, to_up, product = kernels.backward(slope, gate, up, with_product=False)
    assert product is None
    assert to_gate.tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert to_up.tolist() == [0.0, 0.0, 0.0, 90.0, 1e4]


@needs_kernels
def test_gradients_of_a_model_in_bf16_are_as_near_to_float32_as_those_of_torch(kernels):
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    found = {}
    for way, dtype in (("exact", torch.float32), ("torch", torch.bfloat16), ("kernels", None)):
        model = make_model("llama").to(DEVICE, dtype or torch.bfloat16)
        with replaced_forwards(gated_mlps(model.modules()) if way == "kernels" else []):
            found[way] = {n: g.float() for n, g in gradients(model, ids)[1].items()}
    exact = found.pop("exact")
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, g in found.items()
    }
    assert slants["kernels"] < 1.5 * slants["torch"] + 1e-3
