"""AdamW as a kernel: the steps of torch, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_adam_kernels.py

runs it on a CPU, where Triton is installed.
"""

import os

import pytest
import torch
from torch import nn

from turnwise.learner import MasterOptimizer, optimizer as module
from turnwise.models.rounding import round_weight, threshold_key

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

SHAPES = ((5, 700), (33,), (1,), (64, 64))


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    from turnwise.learner.fast import adam_kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(module, "_kernels_for", lambda weights: adam_kernels)
    return adam_kernels


def weights():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(s, device=DEVICE).bfloat16()) for s in SHAPES]
    parameters.append(nn.Parameter(torch.randn(3, 4, device=DEVICE)))  # its own master
    return [(f"p{i}", p) for i, p in enumerate(parameters)]


def made(monkeypatch, *, by_kernel, **options):
    if by_kernel:
        optimizer = MasterOptimizer(parameters := weights(), **options)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_kernels_for", lambda weights: None)
            optimizer = MasterOptimizer(parameters := weights(), **options)
    assert (optimizer._kernels is not None) == by_kernel
    return optimizer, parameters


def steps(optimizer, parameters, numbers, num_packs=1):
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for _ in range(num_packs):
            slopes = (torch.randn(p.shape, generator=generator).to(p) for _, p in parameters)
            pairs = zip(parameters, slopes, strict=True)
            sum((p * s).float().sum() for (_, p), s in pairs).backward()
        norm = optimizer.gradient_norm()
        if number % 2:  # else the step does
            optimizer.prepare_step(1e-2 if number > 1 else 1.0)  # another rate: prepared again
        optimizer.step(1e-2, 1.0 / float(norm))
        optimizer.zero_grad()


@pytest.mark.parametrize("num_packs", [1, 3])
def test_masters_moments_and_weights_are_those_of_torch(num_packs, monkeypatch):
    found = []
    for by_kernel in (False, True):
        optimizer, parameters = made(monkeypatch, by_kernel=by_kernel, weight_decay=0.1)
        steps(optimizer, parameters, range(4), num_packs)
        found.append((optimizer.state_tensors(), dict(parameters)))
    (plain, plain_weights), (fast, fast_weights) = found
    assert list(plain) == list(fast)
    for name, expected in plain.items():
        torch.testing.assert_close(fast[name].cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
    for name, expected in plain_weights.items():
        torch.testing.assert_close(fast_weights[name], expected, rtol=1e-2, atol=1e-6)
        if expected.dtype == torch.bfloat16:
            master = fast[f"master.{name}"]
            assert torch.equal(
                fast_weights[name], round_weight(master, torch.bfloat16, threshold_key(name))
            )


@pytest.mark.parametrize("first_by_kernel", [False, True])
def test_one_goes_on_from_the_state_of_the_other(first_by_kernel, monkeypatch):
    whole, parameters = made(monkeypatch, by_kernel=True)
    steps(whole, parameters, range(5))
    first, parameters = made(monkeypatch, by_kernel=first_by_kernel)
    steps(first, parameters, range(2))
    second, others = made(monkeypatch, by_kernel=not first_by_kernel)
    with torch.no_grad():
        for (_, ours), (_, theirs) in zip(others, parameters, strict=True):
            ours.copy_(theirs)
    second.load_state_tensors({name: x.clone() for name, x in first.state_tensors().items()})
    steps(second, others, range(2, 5))
    for name, expected in whole.state_tensors().items():
        got = second.state_tensors()[name]
        torch.testing.assert_close(got.cpu(), expected.cpu(), rtol=1e-4, atol=1e-6)


def test_a_step_that_is_given_up_leaves_nothing():
    parameters = weights()[:2]
    optimizer = MasterOptimizer(parameters)
    before = [p.detach().clone() for _, p in parameters]
    sum(p.sum() for _, p in parameters).backward()
    optimizer.prepare_step(1e-2)
    optimizer.zero_grad()
    optimizer.step(1e-2)
    assert all(torch.equal(p, old) for (_, p), old in zip(parameters, before, strict=True))
    steps(optimizer, parameters, range(1))
    assert float(optimizer.state_tensors()["step.p0"]) == 1.0


def test_shards_without_weights():
    empty = nn.Parameter(torch.empty(0, 4, device=DEVICE, dtype=torch.bfloat16))
    for parameters in ([("p0", empty)], [*weights()[:2], ("p2", empty)]):
        optimizer = MasterOptimizer(parameters)
        sum(p.sum() for _, p in parameters).backward()
        optimizer.step(1e-2)


def test_the_weights_that_moved_are_counted(monkeypatch):
    counts = []
    for by_kernel in (False, True):
        optimizer, parameters = made(monkeypatch, by_kernel=by_kernel)
        before = [p.detach().clone() for _, p in parameters]
        sum((p * p).float().sum() for _, p in parameters).backward()
        num_moved = optimizer.step(1e-4)
        pairs = zip(parameters, before, strict=True)
        moved = sum(int((p != old).sum()) for (_, p), old in pairs if p.dtype == torch.bfloat16)
        counts.append(int(num_moved))
        assert moved == int(num_moved) < optimizer.num_half
    assert counts[0] == counts[1] > 0


def test_a_weight_without_a_gradient_stays(monkeypatch):
    optimizer, parameters = made(monkeypatch, by_kernel=True, weight_decay=0.5)
    before = parameters[0][1].detach().clone()
    parameters[1][1].sum().backward()
    optimizer.step(1e-2)
    assert torch.equal(parameters[0][1], before)
    assert "step.p0" not in optimizer.state_tensors()
    assert float(optimizer.state_tensors()["step.p1"]) == 1.0
