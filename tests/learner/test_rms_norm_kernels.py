"""The kernels of RMS norms: the numbers of torch, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_rms_norm_kernels.py

runs them on a CPU, where Triton is installed.
"""

import os

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from inference.tiny_models import make_model
from turnwise.learner.fast import modules
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.modules import fused_norms, replaced_forwards

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    from turnwise.learner.fast import rms_norm_kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(modules, "_kernels_for", lambda name, x: rms_norm_kernels)
    return rms_norm_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_pass_the_probe_that_switches_them_on(dtype, kernels):
    assert kernels.is_exact(dtype, torch.device(DEVICE))
    assert load_kernels("rms_norm_kernels", dtype, torch.device(DEVICE)) is kernels


@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 3, 100), (1, 60, 40), (4, 5, 6, 24)])
def test_values_and_gradients_are_those_of_torch(shape, kernels):
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


def test_rows_of_zeros_have_no_nan(kernels):
    x, weight = torch.zeros(3, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    normed, scales = kernels.forward(x, weight, 1e-6)
    to_x, to_weight = kernels.backward(torch.ones_like(x), x, weight, scales)
    assert torch.equal(normed, x)
    assert bool(to_x.isfinite().all())
    assert torch.equal(to_weight, torch.zeros_like(weight))


def test_gradients_of_a_model_in_bf16_are_as_near_to_float32_as_those_of_torch():
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    found = {}
    for way, dtype in (("exact", torch.float32), ("torch", torch.bfloat16), ("kernels", None)):
        model = make_model("qwen3").to(DEVICE, dtype or torch.bfloat16)
        with replaced_forwards(fused_norms(model.modules()) if way == "kernels" else []):
            model(ids, use_cache=False).logits.float().square().mean().backward()
        found[way] = {name: p.grad.float() for name, p in model.named_parameters()}
    exact = found.pop("exact")
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, g in found.items()
    }
    assert slants["kernels"] < 1.5 * slants["torch"] + 1e-3
