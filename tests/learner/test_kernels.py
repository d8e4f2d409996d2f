"""The learner's kernels compute what torch does, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_kernels.py

runs them on a CPU, where Triton is installed.
"""

import os

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner import add_lora, log_probs
from turnwise.learner.fast import modules
from turnwise.learner.fast.modules import FORWARDS, replaced_forwards
from turnwise.learner.fast.packed_attention import Episodes
from turnwise.learner.log_probs import Head, chosen_log_probs
from turnwise.models.rounding import round_merged, round_weight

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

# Gemma adds 1 to the weights of its norms and has a gelu in its MLPs; GPT-2 has none of them.
WITHOUT = {"norms": ("gemma", "gpt2"), "mlps": ("gemma", "gpt2", "wide-llama"), "rotary": ("gpt2",)}


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    from turnwise.learner.fast import kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(log_probs, "_kernels_for", lambda head, hidden: kernels)
        monkeypatch.setattr(log_probs, "free_memory", lambda device: 1 << 30)
        monkeypatch.setattr(modules, "load_kernels", lambda name: kernels)  # there is no driver
    return kernels


# ---- the modules of a model ----


def find(kind, model):
    pairs = ((module, FORWARDS[kind](module)) for module in model.modules())
    return [(module, forward) for module, forward in pairs if forward is not None]


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
        ours, computed = gradients(model, ids)
    assert not any("forward" in vars(module) for module, _ in fused)
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)
    assert computed.keys() == expected.keys()
    for label, gradient in expected.items():
        torch.testing.assert_close(computed[label], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", FORWARDS)
@pytest.mark.parametrize("family", CONFIGS)
def test_modules_have_the_same_numbers_and_gradients(family, kind):
    model = make_model(family).to(DEVICE)
    fused = find(kind, model)
    assert bool(fused) == (family not in WITHOUT[kind])
    assert_same_with(fused, model, (torch.arange(7, device=DEVICE) % 50)[None])


def test_adapters_of_gated_mlps_have_the_same_gradients():
    pytest.importorskip("peft")
    model = add_lora(make_model("qwen3").to(DEVICE), rank=3)
    fused = find("mlps", model)
    assert fused
    assert_same_with(fused, model, torch.arange(14, device=DEVICE).view(2, 7) % 50)


def test_rows_and_heads_that_the_kernel_cannot_rotate_are_left_to_transformers(
    kernels, monkeypatch
):
    in_part = Phi3Config(
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
    models = (Phi3ForCausalLM(in_part).eval().to(DEVICE), make_model("llama").to(DEVICE))
    for model, num_rows in zip(models, (1, 2), strict=True):
        ids = torch.arange(14, device=DEVICE).view(num_rows, -1) % 50
        rotary = find("rotary", model)
        assert rotary  # by its function alone it looks as usual
        expected = model(ids).logits
        with monkeypatch.context() as patch, replaced_forwards(rotary):
            patch.setattr(kernels, "Rotate", None)
            assert torch.equal(model(ids).logits, expected)


def test_another_kind_of_rotation_is_left_alone(monkeypatch):
    from transformers.models.llama import modeling_llama

    def interleaved(query, key, cos, sin):
        return query * cos[:, None] + sin[:, None], key

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", interleaved)
    assert find("rotary", make_model("llama").to(DEVICE)) == []


@pytest.mark.parametrize("kind", ["norms", "mlps"])
def test_gradients_of_a_model_in_bf16_are_as_near_to_float32_as_those_of_torch(kind):
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    by_way = {}
    for way, dtype in (("exact", torch.float32), ("torch", torch.bfloat16), ("kernels", None)):
        model = make_model("qwen3").to(DEVICE, dtype or torch.bfloat16)
        with replaced_forwards(find(kind, model) if way == "kernels" else []):
            by_way[way] = {n: g.float() for n, g in gradients(model, ids)[1].items()}
    exact = by_way.pop("exact")
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, g in by_way.items()
    }
    assert slants["kernels"] < 1.5 * slants["torch"] + 1e-3


# ---- log-probs ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_words", "temperature", "scale", "bias", "with_entropy"),
    [(17, 1.0, 1.0, False, True), (5000, 0.7, 0.5, True, True), (4096, 1.0, 1.0, False, False)],
)
def test_log_probs_and_their_gradients_are_those_of_torch(
    dtype, num_words, temperature, scale, bias, with_entropy, monkeypatch
):
    torch.manual_seed(0)
    hidden = torch.randn(13, 32, dtype=dtype, device=DEVICE, requires_grad=True)
    weight = torch.randn(num_words, 32, dtype=dtype, device=DEVICE, requires_grad=True)
    offset = torch.randn(num_words, dtype=dtype, device=DEVICE, requires_grad=True)
    head = Head(weight, offset if bias else None, scale)
    targets = torch.randint(0, num_words, (13,), device=DEVICE)
    variables = [hidden, weight, *([offset] if bias else [])]
    both = []
    for _ in ("kernels", "torch"):
        chosen, entropy = chosen_log_probs(
            hidden, head, targets, temperature=temperature, chunk_tokens=5
        )
        loss = (chosen * torch.linspace(-1, 1, 13, device=DEVICE)).sum()
        loss = loss + 0.1 * entropy.sum() if with_entropy else loss
        both.append((chosen, entropy, *torch.autograd.grad(loss, variables)))
        monkeypatch.setattr(log_probs, "_kernels_for", lambda head, hidden: None)
    near = 1e-4 if dtype == torch.float32 else 2e-2
    for got, expected in zip(*both, strict=True):
        torch.testing.assert_close(got, expected, rtol=near, atol=near)


def test_tokens_that_cannot_be_sampled_have_no_gradient():
    offset = torch.zeros(5000, device=DEVICE)
    offset[100:4900] = -float("inf")
    offset.requires_grad_()
    hidden, weight = torch.randn(3, 8, device=DEVICE), torch.randn(5000, 8, device=DEVICE)
    targets = torch.tensor([3, 99, 4999], device=DEVICE)
    chosen, entropy = chosen_log_probs(hidden, Head(weight, offset), targets)
    (gradient,) = torch.autograd.grad(chosen.sum() + entropy.sum(), offset)
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(gradient).all()
    assert not gradient[100:4900].any()


@pytest.mark.parametrize("chunk", [None, 5])
def test_kept_logits_give_the_same_gradients_and_also_a_second_time(chunk, monkeypatch):
    torch.manual_seed(0)
    hidden = torch.randn(13, 32, device=DEVICE, requires_grad=True)
    weight = torch.randn(5000, 32, device=DEVICE, requires_grad=True)
    targets = torch.randint(0, 5000, (13,), device=DEVICE)
    computed = []
    for share in (log_probs._KEPT_SHARE, 0.0):
        monkeypatch.setattr(log_probs, "_KEPT_SHARE", share)
        chosen, entropy = chosen_log_probs(hidden, Head(weight), targets, chunk_tokens=chunk)
        loss = (chosen * torch.linspace(-1, 1, 13, device=DEVICE)).sum() + entropy.sum()
        for _ in range(2):
            computed.append(torch.autograd.grad(loss, [hidden, weight], retain_graph=True))
    for got in computed[:-1]:
        torch.testing.assert_close(got, computed[-1], rtol=1e-5, atol=1e-5)


# ---- copies of shared prefixes, and rounding ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 24, 128])
def test_sums_over_copies_are_those_of_torch_in_one_order(dtype, width, kernels):
    prefix = torch.arange(5)
    spans = Episodes((8, 3, 1, 4), (torch.arange(0), prefix, prefix[:2], prefix)).spans(DEVICE)
    torch.manual_seed(0)
    keys, values = torch.randn(2, len(spans.keys), 2, width).to(DEVICE, dtype).unbind()
    sums = kernels.sum_copies(keys, values, spans.copies, spans.copy_offsets)
    for got, given in zip(sums, (keys, values), strict=True):
        wanted = torch.zeros(16, 2, width, device=DEVICE).index_add(0, spans.keys, given.float())
        torch.testing.assert_close(got.float(), wanted, rtol=1e-2, atol=1e-2)
        again = kernels.sum_copies(given, given, spans.copies, spans.copy_offsets)
        assert torch.equal(again[0], got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("first", [0, 1, 4099])
def test_rounding_has_the_bits_of_the_torch_form(dtype, key, first):
    from turnwise.models.rounding_kernels import round_on_gpu

    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-9, 3, 4096 + 77) * torch.randn(4096 + 77, generator=generator)
    values = torch.cat([sizes, torch.tensor([0.0, -0.0, 1.0, -2.0])])
    rounded = torch.empty(values.shape, dtype=dtype, device=DEVICE)
    round_on_gpu(values.to(DEVICE), rounded, key, first)
    assert torch.equal(rounded.cpu(), round_weight(values, dtype, key, first=first))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "rank"), [((40, 130), 3), ((33, 128), 32), ((0, 8), 4)])
def test_merged_adapters_are_those_of_torch(dtype, shape, rank):
    from turnwise.models.rounding_kernels import merge_on_gpu

    torch.manual_seed(0)
    weight, low = 0.1 * torch.randn(shape), torch.randn(rank, shape[1])
    weight, low, high = (t.to(dtype) for t in (weight, low, 1e-2 * torch.randn(shape[0], rank)))
    merged = torch.empty_like(weight, device=DEVICE)
    merge_on_gpu(*(t.to(DEVICE) for t in (weight, low, high)), merged, 0.5, 7, 3)
    expected = round_merged(weight, low, high, 0.5, 7, first=3)
    # Sums of float32 in another order may fall on the other side of a threshold.
    assert (merged.cpu() != expected).sum() <= 3
    torch.testing.assert_close(merged.cpu(), expected)
    # A shard has the bits of the whole.
    rows = merged[shape[0] // 2 :]
    shard = torch.empty_like(rows)
    parts = [weight[shape[0] // 2 :], low, high[shape[0] // 2 :]]
    first = 3 + shape[0] // 2 * shape[1]
    merge_on_gpu(*(t.to(DEVICE).contiguous() for t in parts), shard, 0.5, 7, first)
    assert torch.equal(shard, rows)
