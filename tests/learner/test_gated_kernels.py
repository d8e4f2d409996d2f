"""The kernels of gated MLPs: the numbers of torch, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_gated_kernels.py

runs them on a CPU, where Triton is installed.
"""

import os

import pytest
import torch

from inference.tiny_models import make_model
from turnwise.learner.fast import gated_mlp
from turnwise.learner.fast.gated_mlp import lean_mlps
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.replaced import replaced_forwards

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    from turnwise.learner.fast import gated_kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(gated_mlp, "_kernels_for", lambda x: gated_kernels)
    return gated_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_pass_the_probe_that_switches_them_on(dtype, kernels):
    assert kernels.is_exact(dtype, torch.device(DEVICE))
    assert load_kernels("gated_kernels", dtype, torch.device(DEVICE)) is kernels


def test_a_gate_that_is_far_out_has_no_nan(kernels):
    gate = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], device=DEVICE)
    up, slope = torch.full_like(gate, 2.0), torch.ones_like(gate)
    assert kernels.forward(gate, up).tolist() == [0.0, 0.0, 0.0, 180.0, 2e4]
    to_gate, to_up, product = kernels.backward(slope, gate, up, with_product=False)
    assert product is None
    assert to_gate.tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert to_up.tolist() == [0.0, 0.0, 0.0, 90.0, 1e4]


def test_gradients_of_a_model_in_bf16_are_as_near_to_float32_as_those_of_torch():
    ids = torch.arange(14, device=DEVICE).view(2, 7) % 50
    found = {}
    for way, dtype in (("exact", torch.float32), ("torch", torch.bfloat16), ("kernels", None)):
        model = make_model("llama").to(DEVICE, dtype or torch.bfloat16)
        with replaced_forwards(lean_mlps(model.modules()) if way == "kernels" else []):
            model(ids, use_cache=False).logits.float().square().mean().backward()
        found[way] = {name: p.grad.float() for name, p in model.named_parameters()}
    exact = found.pop("exact")
    slants = {
        way: max(float((g[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        for way, g in found.items()
    }
    assert slants["kernels"] < 1.5 * slants["torch"] + 1e-3
