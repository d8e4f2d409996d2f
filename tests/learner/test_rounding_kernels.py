"""Rounding by thresholds as a kernel has the bits of the torch form, on a GPU or interpreted."""

import os

import pytest
import torch

from turnwise.models.rounding import round_weight

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
if not IS_INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key", [0, 1, 2**31 - 1])
@pytest.mark.parametrize("first", [0, 1, 4099])
def test_the_same_bits(dtype, key, first):
    from turnwise.models.rounding_kernels import round_on_gpu

    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-9, 3, 4096 + 77) * torch.randn(4096 + 77, generator=generator)
    values = torch.cat([sizes, torch.tensor([0.0, -0.0, 1.0, -2.0])])
    rounded = torch.empty(values.shape, dtype=dtype, device=DEVICE)
    round_on_gpu(values.to(DEVICE), rounded, key, first)
    assert torch.equal(rounded.cpu(), round_weight(values, dtype, key, first=first))
