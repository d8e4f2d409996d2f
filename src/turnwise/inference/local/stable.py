"""Which batch sizes leave a row's arithmetic alone.

A matrix product may sum in another order when it has another number of rows, so a token's log-prob
could depend on how many others were computed beside it, by a rounding. Which sizes agree is a
matter of the machine and its libraries: it is measured, on the model's own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

_REFERENCE = 32
_CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Layer = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def stable_sizes(
    layers: Iterable[tuple[Layer, torch.Tensor, int]],
) -> list[int]:
    """Numbers of rows that give a row the same bits, whatever else is beside it; at least one.

    Of each layer: what computes it, its weight, and the width of its input.
    """
    # One layer of each shape: what a matrix product does follows from its shape.
    distinct = {(*weight.shape, width): (layer, weight, width) for layer, weight, width in layers}
    chosen = list(distinct.values())
    if not _is_stable(chosen, _REFERENCE):
        return [1]  # one row alone has no neighbours
    return [size for size in _CANDIDATES if _is_stable(chosen, size)]


def _is_stable(layers: Sequence[tuple[Layer, torch.Tensor, int]], size: int) -> bool:
    """Whether `size` rows get the bits that they get in the reference size, in any order."""
    for layer, weight, width in layers:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(max(size, _REFERENCE), width, generator=generator)
        rows = rows.to(weight.device, weight.dtype)
        got = layer(rows[:size])
        turned = layer(rows[:size].roll(1, 0)).roll(-1, 0)
        pieces = torch.cat([layer(piece) for piece in torch.split(rows, _REFERENCE)])
        if not torch.equal(got, pieces[:size]) or not torch.equal(got, turned):
            return False
    return True
