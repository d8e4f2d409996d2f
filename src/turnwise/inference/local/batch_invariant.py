"""Measures which batch sizes are batch-invariant: a row's bits do not depend on the other rows.

A matrix product may sum in another order with another number of rows, so the rounding of a log-prob
could depend on the batch size. Which sizes agree depends on the machine and its libraries, so it is
measured on the model's own layers.

The bits of a function of each element depend on how many there are, too: torch computes vectors of
elements, and the remainder of a tensor by other code, whose `silu`, `gelu` or `sigmoid` rounds
differently. A tensor that several threads compute has a remainder in each thread's part.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from turnwise.inference.local.fused_forward import GRAIN, VECTOR, FusedLinear

_REFERENCE = 32
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# For small models on a CPU, where larger forwards amortise the fixed cost of a forward.
_LARGE_SIZES = (320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
_LITTLE_WORK = 10**9

Layer = Callable[[torch.Tensor], torch.Tensor]

_measured: dict[Hashable, set[int]] = {}
"""Measured once per process, which may have several engines."""


def has_remainder(num_elements: int) -> bool:
    """Return whether torch computes some of so many elements, one after the other, as a remainder.

    >>> has_remainder(64), has_remainder(100)
    (False, True)
    """
    num_parts = min(torch.get_num_threads(), -(-num_elements // GRAIN))
    return bool(num_elements % VECTOR or -(-num_elements // num_parts) % VECTOR)


@torch.no_grad()
def batch_invariant_sizes(layers: Iterable[tuple[Layer, torch.Tensor, int]]) -> list[int]:
    """Return numbers of rows at which a row has the same bits in any batch; at least one.

    Of each layer: what computes it, its weight, and the width of its input.
    """
    # One layer of each shape: what a matrix product does follows from its shape.
    distinct = {(*weight.shape, width): (layer, weight, width) for layer, weight, width in layers}
    largest = max((weight.numel() for _, weight, _ in distinct.values()), default=0)
    sizes = [*_SIZES]
    if all(weight.device.type == "cpu" for _, weight, _ in distinct.values()):
        sizes += [size for size in _LARGE_SIZES if 2 * size * largest <= _LITTLE_WORK]
    invariant = set(sizes)
    for layer, weight, width in distinct.values():
        module: Any = layer.func if isinstance(layer, partial) else layer
        options = layer.keywords.items() if isinstance(layer, partial) else ()
        key: Hashable = None
        if type(module) in (FusedLinear, nn.Linear):  # it is known what chooses the kernel
            layout = (weight.shape, weight.stride(), weight.dtype, weight.device)
            kind = (type(module), *options, module.bias is None, width, *layout)
            key = (*kind, torch.get_num_threads(), *sizes)
        measured = _measured.get(key) or _invariant_for(layer, weight, width, sizes)
        if key is not None:
            _measured[key] = measured
        invariant &= measured
    # One row alone has no neighbours.
    return sorted(invariant) if _REFERENCE in invariant else [1]


def _invariant_for(
    layer: Layer, weight: torch.Tensor, width: int, sizes: Sequence[int]
) -> set[int]:
    """Return the sizes at which rows have the bits that they have in the reference size.

    In the reference size, a permutation of the rows must also give the same bits.
    """
    generator = torch.Generator().manual_seed(0)
    # Quantised weights are integers; their inputs are not.
    dtype = weight.dtype if weight.is_floating_point() else torch.float32
    rows = torch.randn(max(sizes), width, generator=generator).to(weight.device, dtype)
    expected = torch.cat([layer(piece) for piece in torch.split(rows, _REFERENCE)])
    permuted = layer(rows[:_REFERENCE].roll(1, 0)).roll(-1, 0)
    if not torch.equal(permuted, expected[:_REFERENCE]):
        return set()
    return {size for size in sizes if torch.equal(layer(rows[:size]), expected[:size])}
