"""Attention over packed tokens: many sequences laid end to end, each seeing only itself.

It is registered with transformers by name, so that models run on our cache unmodified. Each
sequence is attended by itself, in shapes that depend on nothing but that sequence: no padding is
computed, and no neighbour changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

NAME = "turnwise_packed"
"""What transformers knows this attention by."""


@dataclass(frozen=True)
class Segment:
    """New tokens of one sequence, and where its cache lies."""

    region: int
    """Start of the sequence's region in the arena."""
    past: int
    """Tokens of it that are in the cache already."""
    num_new: int
    """Tokens of it that are computed now."""


@dataclass(frozen=True)
class Packed:
    """One forward's worth of tokens: what attention needs to know about them."""

    segments: Sequence[Segment]
    storage: torch.Tensor
    """The arena: [2, layers, tokens, heads, width]."""
    slots: torch.Tensor
    """Where in the arena each new token's key and value go [N]."""

    @cached_property
    def is_decode(self) -> bool:
        """Whether every segment has one new token."""
        return len(self.segments) == len(self.slots)

    @cached_property
    def on_device(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """For kernels: row where each segment begins, its region, its past [S]; the longest."""
        device = self.storage.device
        begins, row = [], 0
        for segment in self.segments:
            begins.append(row)
            row += segment.num_new
        table = torch.tensor(
            [
                [*begins, row],
                [*(s.region for s in self.segments), 0],
                [*(s.past for s in self.segments), 0],
            ],
            dtype=torch.int32,
        ).to(device, non_blocking=True)
        return table[0], table[1], table[2], max(s.num_new for s in self.segments)


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed: Packed,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers' signature: query [1, H, N, D], key and value [1, K, N, D]."""
    if softcap is not None or attention_mask is not None:
        raise NotImplementedError("this attention knows neither a softcap nor a mask of its own")
    keys, values = packed.storage[:, module.layer_idx]
    keys.index_copy_(0, packed.slots, key[0].transpose(0, 1))
    values.index_copy_(0, packed.slots, value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.is_cuda:
        from turnwise.inference.local.kernels import attend_segments

        starts, regions, pasts, longest = packed.on_device
        output = attend_segments(
            query, keys, values, starts, regions, pasts, longest, scale, sliding_window
        )
        return output, None
    # [1, K, tokens, D]: views of the arena, of which each segment takes its own stretch.
    k, v = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    if packed.is_decode:
        return _attend_last(query, k, v, packed.segments, scale, sliding_window), None
    rows, pieces = 0, []
    for segment in packed.segments:
        new = query[:, :, rows : rows + segment.num_new]
        if segment.num_new == 1:
            pieces.append(_attend_last(new, k, v, [segment], scale, sliding_window))
        else:
            pieces.append(_attend(new, k, v, segment, scale, sliding_window))
        rows += segment.num_new
    return torch.cat(pieces, 1), None


def _attend_last(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Sequence[Segment],
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Segments of one new token each: query [1, H, N, D]; [1, N, H, D]."""
    _, num_heads, num_rows, width = query.shape
    attend = F.scaled_dot_product_attention
    # The heads of a group see the same keys: they are the rows of one small matrix product.
    rows = query.transpose(1, 2).reshape(num_rows, 1, k.shape[1], -1, width).unbind(0)
    pieces = []
    for row, segment in zip(rows, segments, strict=True):
        length = segment.past + 1
        first = 0 if window is None else max(length - window, 0)
        start, seen = segment.region + first, length - first
        own_k, own_v = k.narrow(2, start, seen), v.narrow(2, start, seen)
        pieces.append(attend(row, own_k, own_v, scale=scale))
    return torch.cat(pieces).view(1, num_rows, num_heads, width)


def _attend(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment: Segment,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """One segment of several new tokens: query [1, H, T, D]; [1, T, H, D]."""
    num_new = query.shape[2]
    length = segment.past + num_new
    mask = None
    if segment.past or window is not None:
        mask = _causal_mask(num_new, length, window, query.device)
    output = F.scaled_dot_product_attention(
        query,
        k.narrow(2, segment.region, length),
        v.narrow(2, segment.region, length),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != k.shape[1],
    )
    return output.transpose(1, 2)


def _causal_mask(
    num_new: int, length: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """Which of `length` tokens the last `num_new` of them see [T, L]."""
    at = torch.arange(length - num_new, length, device=device)[:, None]
    other = torch.arange(length, device=device)[None]
    seen = other <= at
    return seen if window is None else seen & (other > at - window)
