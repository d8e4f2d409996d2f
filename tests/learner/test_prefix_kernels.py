"""Sums over the copies of shared prefixes as a kernel, on a GPU or interpreted.

    TRITON_INTERPRET=1 python -m pytest tests/learner/test_prefix_kernels.py

runs it on a CPU, where Triton is installed.
"""

import os

import pytest
import torch

from turnwise.learner.fast.packed_attention import Episodes, _sum_copies

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

PREFIX = torch.arange(5)
EPISODES = Episodes((8, 3, 1, 4), (torch.arange(0), PREFIX, PREFIX[:2], PREFIX))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 24, 128])
def test_the_sums_are_those_of_torch(dtype, width):
    from turnwise.learner.fast import prefix_kernels

    assert prefix_kernels.is_exact(dtype, DEVICE)
    spans = EPISODES.spans(DEVICE)
    torch.manual_seed(0)
    keys, values = torch.randn(2, len(spans.keys), 2, width).to(DEVICE, dtype).unbind()
    found = prefix_kernels.sum_copies(keys, values, spans.copies, spans.copy_offsets)
    for got, given in zip(found, (keys, values), strict=True):
        wanted = torch.zeros(16, 2, width, device=DEVICE).index_add(0, spans.keys, given.float())
        torch.testing.assert_close(got.float(), wanted, rtol=1e-2, atol=1e-2)
        again = prefix_kernels.sum_copies(given, given, spans.copies, spans.copy_offsets)
        assert torch.equal(again[0], got)  # in one order, however often


@pytest.mark.skipif(IS_INTERPRETED, reason="needs a GPU")
def test_attention_uses_it(monkeypatch):
    from turnwise.learner.fast import prefix_kernels

    calls = []
    own = prefix_kernels.sum_copies
    monkeypatch.setattr(prefix_kernels, "sum_copies", lambda *x: calls.append(1) or own(*x))
    spans = EPISODES.spans(DEVICE)
    copies = torch.ones(len(spans.keys), 2, 64, device=DEVICE, dtype=torch.bfloat16)
    sums, _ = _sum_copies(copies, copies, spans)
    assert calls
    assert sums[:, 0, 0].tolist() == [4, 4, 3, 3, 3, *[1] * 11]
