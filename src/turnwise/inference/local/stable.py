"""Which batch sizes leave a row's arithmetic alone.

A matrix product may sum in another order when it has another number of rows, so a token's log-prob
could depend on how many others were computed beside it, by a rounding. Which sizes agree is a
matter of the machine and its libraries: it is measured, on the model's own layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_REFERENCE = 32
_CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@torch.no_grad()
def stable_sizes(model: Any) -> list[int]:
    """Numbers of rows that give a row the same bits, whatever else is beside it; at least one."""
    layers = _distinct_layers(model)
    if not all(_is_stable(layer, _REFERENCE) for layer in layers):
        return [1]  # one row alone has no neighbours
    return [size for size in _CANDIDATES if all(_is_stable(layer, size) for layer in layers)]


def _distinct_layers(model: Any) -> list[nn.Module]:
    """One layer of each shape: what a matrix product does follows from its shape."""
    from transformers.pytorch_utils import Conv1D

    found: dict[tuple[int, ...], nn.Module] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            found.setdefault((*module.weight.shape, isinstance(module, nn.Linear)), module)
    return list(found.values())


def _is_stable(layer: nn.Module, size: int) -> bool:
    """Whether `size` rows get the bits that they get in the reference size, in any order."""
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    width = weight.shape[1] if isinstance(layer, nn.Linear) else weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(max(size, _REFERENCE), width, generator=generator)
    rows = rows.to(weight.device, weight.dtype)
    # As the model calls it: [1, rows, width].
    got = layer(rows[None, :size])[0]
    turned = layer(rows[:size].roll(1, 0)[None])[0].roll(-1, 0)
    pieces = [layer(piece[None])[0] for piece in torch.split(rows, _REFERENCE)]
    return torch.equal(got, torch.cat(pieces)[:size]) and torch.equal(got, turned)
