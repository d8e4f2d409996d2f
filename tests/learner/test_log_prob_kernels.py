"""The kernels of log-probs: the numbers of torch, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_log_prob_kernels.py

runs them on a CPU, where Triton is installed.
"""

import os

import pytest
import torch

from turnwise.learner import log_probs
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.log_probs import Head, chosen_log_probs

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def use_kernels(monkeypatch):
    from turnwise.learner.fast import log_prob_kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(log_probs, "_kernels_for", lambda head, hidden: log_prob_kernels)
        monkeypatch.setattr(log_probs, "free_memory", lambda device: 1 << 30)
    return log_prob_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_pass_the_probe_that_switches_them_on(dtype, use_kernels):
    assert use_kernels.is_exact(dtype, torch.device(DEVICE))
    assert load_kernels("log_prob_kernels", dtype, torch.device(DEVICE)) is use_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_words", "temperature", "scale", "bias", "with_entropy"),
    [(17, 1.0, 1.0, False, True), (5000, 0.7, 0.5, True, True), (4096, 1.0, 1.0, False, False)],
)
def test_values_and_gradients_are_those_of_torch(
    dtype, num_words, temperature, scale, bias, with_entropy, monkeypatch
):
    torch.manual_seed(0)
    hidden = torch.randn(13, 32, dtype=dtype, device=DEVICE, requires_grad=True)
    weight = torch.randn(num_words, 32, dtype=dtype, device=DEVICE, requires_grad=True)
    offset = torch.randn(num_words, dtype=dtype, device=DEVICE, requires_grad=True)
    head = Head(weight, offset if bias else None, scale)
    targets = torch.randint(0, num_words, (13,), device=DEVICE)
    variables = [hidden, weight, *([offset] if bias else [])]
    found = []
    for _ in ("kernels", "torch"):
        chosen, entropy = chosen_log_probs(
            hidden, head, targets, temperature=temperature, chunk_tokens=5
        )
        loss = (chosen * torch.linspace(-1, 1, 13, device=DEVICE)).sum()
        loss = loss + 0.1 * entropy.sum() if with_entropy else loss
        found.append((chosen, entropy, *torch.autograd.grad(loss, variables)))
        monkeypatch.setattr(log_probs, "_kernels_for", lambda head, hidden: None)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, **near)


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
    found = []
    for share in (log_probs._KEPT_SHARE, 0.0):
        monkeypatch.setattr(log_probs, "_KEPT_SHARE", share)
        chosen, entropy = chosen_log_probs(hidden, Head(weight), targets, chunk_tokens=chunk)
        loss = (chosen * torch.linspace(-1, 1, 13, device=DEVICE)).sum() + entropy.sum()
        found += [torch.autograd.grad(loss, [hidden, weight], retain_graph=True) for _ in range(2)]
    for got in found[:-1]:
        torch.testing.assert_close(got, found[-1], rtol=1e-5, atol=1e-5)


def test_without_tokens_the_gradient_of_the_head_is_zero():
    hidden = torch.randn(0, 32, device=DEVICE, requires_grad=True)
    weight = torch.randn(50, 32, device=DEVICE, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.long, device=DEVICE)
    chosen, _ = chosen_log_probs(hidden, Head(weight), targets, chunk_tokens=4)
    (gradient,) = torch.autograd.grad(chosen.sum(), [weight])
    assert not gradient.any()
