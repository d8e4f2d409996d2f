"""Work through a batch a few rows at a time.

A chain of element-wise steps over [B, T] tensors spends its time moving memory: each step reads
and writes the whole batch. Done tile by tile, the intermediate results stay in the cache and
never exist in full, which is several times faster on a CPU and takes less memory everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import torch

# Numbers in one tile: few enough that temporaries stay in a cache, or at least small, and many
# enough that the overhead of each operation is small.
_CPU_TILE = 1 << 19
_GPU_TILE = 1 << 21


def row_tiles(tensor: torch.Tensor, num_parts: int = 1) -> Iterator[slice]:
    """Yield slices of rows that cover a [B, T] tensor; `num_parts` divides the tile size."""
    num_rows, row_length = tensor.shape
    size = _CPU_TILE if tensor.device.type == "cpu" else _GPU_TILE
    step = max(1, size // num_parts // max(1, row_length))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def has_kernels(tensor: torch.Tensor) -> bool:
    """Whether Triton kernels can be used: on a GPU with Triton, in float32 or less."""
    return tensor.is_cuda and tensor.dtype != torch.float64 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
