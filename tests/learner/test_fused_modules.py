"""Norms, gated MLPs and rotary embeddings as kernels: the numbers of transformers.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_fused_modules.py

runs the kernels on a CPU, where Triton is installed; without it, what stands in for them.
"""

import importlib
import os

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from transformers import Phi3Config, Phi3ForCausalLM

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner import add_lora
from turnwise.learner.fast import modules
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.modules import (
    fused_norms,
    fused_rotary,
    gated_mlps,
    replaced_forwards,
)

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_KERNELS = IS_INTERPRETED or torch.cuda.is_available()
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="needs a GPU, or TRITON_INTERPRET=1")

FIND = {"rms_norm": fused_norms, "gated": gated_mlps, "rotary": fused_rotary}
# Gemma adds 1 to the weights of its norms and has a gelu in its MLPs; GPT-2 has none of them.
WITHOUT = {
    "rms_norm": ("gemma", "gpt2"),
    "gated": ("gemma", "gpt2", "wide-llama"),
    "rotary": ("gpt2",),
}


class GatedInTorch:
    """Computes what the kernels of gated MLPs do."""

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


class RotaryInTorch:
    """Computes what the kernel of rotary embeddings does, and counts."""

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


def use(name, monkeypatch, *, kernels):
    """The kernels of that name, or what stands in for them, from now on."""
    if kernels:
        pytest.importorskip("triton")
        computing = importlib.import_module(f"turnwise.learner.fast.{name}_kernels")
    else:
        computing = {"gated": GatedInTorch, "rotary": RotaryInTorch}.get(name)
    monkeypatch.setattr(modules, "_kernels_for", lambda name, x: computing)
    return computing


def each(*names):
    """A test gets the name; with stand-ins, and with kernels where they run."""
    ways = [(name, False) for name in names]
    ways += [pytest.param(name, True, marks=needs_kernels) for name in names]
    return pytest.mark.parametrize(("name", "kernels"), ways)


def gradients(model, ids):
    model.zero_grad()
    logits = model(ids, use_cache=False).logits
    logits.float().square().mean().backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), {name: gradient.clone() for name, gradient in trained.items()}


def assert_same_with(fused, model, ids):
    logits, expected = gradients(model, ids)
    with replaced_forwards(fused):
        assert all("forward" in vars(module) for module, _ in fused)
        ours, found = gradients(model, ids)
    assert not any("forward" in vars(module) for module, _ in fused)
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)
    assert found.keys() == expected.keys()
    for label, gradient in expected.items():
        torch.testing.assert_close(found[label], gradient, rtol=1e-3, atol=1e-5)


@each(*FIND)
@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_numbers_and_gradients(family, name, kernels, monkeypatch):
    use(name, monkeypatch, kernels=kernels)
    model = make_model(family).to(DEVICE)
    fused = FIND[name](model.modules())
    assert bool(fused) == (family not in WITHOUT[name])
    RotaryInTorch.calls = 0
    assert_same_with(fused, model, (torch.arange(7, device=DEVICE) % 50)[None])
    if name == "rotary" and not kernels:  # query and key, there and back
        assert RotaryInTorch.calls == 4 * len(fused)


@each("gated")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_adapters_of_gated_mlps_have_the_same_gradients(family, name, kernels, monkeypatch):
    pytest.importorskip("peft")
    use(name, monkeypatch, kernels=kernels)
    model = add_lora(make_model(family).to(DEVICE), rank=3)
    fused = gated_mlps(model.modules())
    assert fused
    assert_same_with(fused, model, torch.arange(14, device=DEVICE).view(2, 7) % 50)


def test_the_model_has_its_own_modules_again_after_an_error():
    norms = fused_norms(make_model("qwen3").modules())
    with pytest.raises(RuntimeError), replaced_forwards(norms):
        raise RuntimeError
    assert not any("forward" in vars(norm) for norm, _ in norms)


def test_without_a_gpu_mlps_and_rotary_embeddings_are_left_alone():
    for find in (gated_mlps, fused_rotary):
        assert find(make_model("llama").modules()) == []


@each("gated")
def test_gated_mlps_keep_a_good_part_less(name, kernels, monkeypatch):
    use(name, monkeypatch, kernels=kernels)
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


def test_an_mlp_of_other_layers_is_left_alone(monkeypatch):
    use("gated", monkeypatch, kernels=False)
    model = make_model("llama")
    model.model.layers[0].mlp.down_proj = torch.nn.Sequential(model.model.layers[0].mlp.down_proj)
    assert len(gated_mlps(model.modules())) == model.config.num_hidden_layers - 1


def test_heads_that_are_rotated_in_part_are_left_to_transformers(monkeypatch):
    use("rotary", monkeypatch, kernels=False)
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
    assert_left_to_transformers(Phi3ForCausalLM(config).eval(), (torch.arange(9) % 50)[None])


def test_several_rows_are_left_to_transformers(monkeypatch):
    use("rotary", monkeypatch, kernels=False)
    assert_left_to_transformers(make_model("llama"), torch.arange(14).view(2, 7) % 50)


def assert_left_to_transformers(model, ids):
    expected = model(ids).logits
    rotary = fused_rotary(model.modules())
    assert rotary  # by its function alone it looks as usual
    RotaryInTorch.calls = 0
    with replaced_forwards(rotary):
        assert torch.equal(model(ids).logits, expected)
    assert RotaryInTorch.calls == 0


def test_another_kind_of_rotation_is_left_alone(monkeypatch):
    from transformers.models.llama import modeling_llama

    def interleaved(query, key, cos, sin):
        return query * cos[:, None] + sin[:, None], key

    use("rotary", monkeypatch, kernels=False)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", interleaved)
    assert fused_rotary(make_model("llama").modules()) == []


# ---- the kernels themselves ----


@needs_kernels
@pytest.mark.parametrize("name", FIND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_pass_the_probe_that_switches_them_on(name, dtype):
    pytest.importorskip("triton")
    assert load_kernels(f"{name}_kernels", dtype, torch.device(DEVICE)) is not None


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 3, 100), (1, 60, 40), (4, 5, 6, 24)])
def test_norms_and_their_gradients_are_those_of_torch(shape, monkeypatch):
    kernels = use("rms_norm", monkeypatch, kernels=True)
    torch.manual_seed(0)
    x, slope = (torch.randn(shape, device=DEVICE) for _ in range(2))
    weight = torch.randn(shape[-1], device=DEVICE)
    given = [x.requires_grad_(), weight.requires_grad_()]
    expected = F.rms_norm(x, weight.shape, weight, 1e-6)
    wanted = torch.autograd.grad(expected, given, slope)
    got = modules._Norm.apply(x, weight, 1e-6, kernels)
    found = torch.autograd.grad(got, given, slope)
    for ours, theirs in zip((got, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_no_nan_of_rows_of_zeros_or_of_a_gate_that_is_far_out(monkeypatch):
    kernels = use("rms_norm", monkeypatch, kernels=True)
    x, weight = torch.zeros(3, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    normed, scales = kernels.forward(x, weight, 1e-6)
    to_x, to_weight = kernels.backward(torch.ones_like(x), x, weight, scales)
    assert torch.equal(normed, x)
    assert bool(to_x.isfinite().all())
    assert torch.equal(to_weight, torch.zeros_like(weight))

    kernels = use("gated", monkeypatch, kernels=True)
    gate = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], device=DEVICE)
    up, slope = torch.full_like(gate, 2.0), torch.ones_like(gate)
    assert kernels.forward(gate, up).tolist() == [0.0, 0.0, 0.0, 180.0, 2e4]
    to_gate, to_up, product = kernels.backward(slope, gate, up, with_product=False)
    assert product is None
    assert to_gate.tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert to_up.tolist() == [0.0, 0.0, 0.0, 90.0, 1e4]


@needs_kernels
@pytest.mark.parametrize("name", ["rms_norm", "gated"])
def test_gradients_of_a_model_in_bf16_are_as_near_to_float32_as_those_of_torch(name, monkeypatch):
    use(name, monkeypatch, kernels=True)
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    found = {}
    for way, dtype in (("exact", torch.float32), ("torch", torch.bfloat16), ("kernels", None)):
        model = make_model("qwen3").to(DEVICE, dtype or torch.bfloat16)
        with replaced_forwards(FIND[name](model.modules()) if way == "kernels" else []):
            found[way] = {n: g.float() for n, g in gradients(model, ids)[1].items()}
    exact = found.pop("exact")
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, g in found.items()
    }
    assert slants["kernels"] < 1.5 * slants["torch"] + 1e-3
