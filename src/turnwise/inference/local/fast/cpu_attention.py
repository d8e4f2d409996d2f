"""Attention on a CPU: segments of one shape in one batch, with batch-invariant results.

A row's shapes follow from its own lengths and nothing else, so that no other row of the batch
changes a bit of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.kv_cache import KVCache, Segment


def padded_kv_len(past: int, num_new: int) -> int:
    """Return how many tokens of its own region a segment attends to, masked ones included.

    Single tokens attend to a few more than there are, and mask those: so sequences of almost equal
    length share a batch, and a plan holds for several steps. A region holds as many.
    """
    length = past + num_new
    if num_new > 1:
        return length
    unit = 16
    while unit < KVCache.UNIT * 4 and length > 16 * unit:
        unit *= 2
    return -(-length // unit) * unit


def batch_shape(segment: Segment) -> tuple[int, int]:
    """Return what segments of one batch have in common: new tokens, and padded KV length."""
    return segment.num_new, padded_kv_len(segment.past, segment.num_new)


def packing_order(segment: Segment) -> tuple[int, int, int]:
    """Return a sort key that puts segments of one shape and neighbouring regions together."""
    return (*batch_shape(segment), segment.region)


@dataclass(frozen=True)
class AttentionBatch:
    """Segments of one shape whose regions lie evenly spaced: a batch without copying."""

    num_rows: int
    num_new: int
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    """Their keys and values in each layer, views of the KV cache [rows, K, L, D]."""
    mask: torch.Tensor
    """0 on visible tokens, −∞ on others: [rows, 1, 1, L] for single tokens, else [G T, L]."""

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.num_new

    def attend(self, query: torch.Tensor, layer: int, scale: float) -> torch.Tensor:
        """Return the attention of query [rows · T, H, D], in the same shape."""
        _, num_heads, size = query.shape
        key, value = self.keys[layer], self.values[layer]
        num_kv = key.shape[1]
        # The heads of a group share keys: they are rows of one matrix product, followed by the
        # tokens of the segment [rows, K, G T, D].
        if self.num_new == 1:
            grouped = query.reshape(self.num_rows, num_kv, -1, size)
        else:
            split = query.view(self.num_rows, self.num_new, num_kv, -1, size)
            grouped = split.permute(0, 2, 3, 1, 4).reshape(self.num_rows, num_kv, -1, size)
        output = F.scaled_dot_product_attention(
            grouped, key, value, attn_mask=self.mask, scale=scale
        )
        if self.num_new > 1:
            output = output.view(self.num_rows, num_kv, -1, self.num_new, size)
            output = output.permute(0, 3, 1, 2, 4)
        return output.reshape(self.num_tokens, num_heads, size)

    def advance(self, positions: torch.Tensor, window: int | None) -> None:
        """Extend the sequences of single tokens by one token, at these positions [rows]."""
        rows = self.mask[:, 0, 0]
        rows.scatter_(1, positions[:, None], 0.0)
        if window is not None:
            outside = (positions - window).clamp_(min=-1)[:, None]
            rows.masked_fill_(torch.arange(rows.shape[1])[None] <= outside, -torch.inf)


def make_batches(
    segments: Sequence[Segment], window: int | None, group: int, kv_cache: KVCache
) -> list[AttentionBatch]:
    """Return all segments, in order, in as few batches as possible; `group` heads share a key."""
    groups: list[list[Segment]] = []
    for segment in segments:
        if groups and _belongs(segment, groups[-1]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [_make_batch(members, window, group, kv_cache) for members in groups]


def _belongs(segment: Segment, group: Sequence[Segment]) -> bool:
    if batch_shape(segment) != batch_shape(group[-1]):
        return False
    distance = segment.region - group[-1].region
    return len(group) == 1 or distance == group[1].region - group[0].region


def _make_batch(
    members: Sequence[Segment], window: int | None, group: int, kv_cache: KVCache
) -> AttentionBatch:
    first = members[0]
    num_new, width = batch_shape(first)
    spacing = members[1].region - first.region if len(members) > 1 else 0
    two, num_layers, _, num_kv, size = kv_cache.storage.shape
    token = num_kv * size
    keys, values = kv_cache.storage.as_strided(
        (two, num_layers, len(members), num_kv, width, size),
        (*kv_cache.storage.stride()[:2], spacing * token, size, token, 1),
        first.region * token,
    )
    if num_new == 1:
        last = torch.tensor([member.past for member in members])[:, None]
    else:
        last = torch.arange(first.past, width)[:, None]
    at = torch.arange(width)[None]
    is_seen = at <= last
    if window is not None:
        is_seen &= at > last - window
    mask = torch.where(is_seen, 0.0, -torch.inf).to(kv_cache.storage.dtype)
    mask = mask[:, None, None] if num_new == 1 else mask.repeat(group, 1)
    return AttentionBatch(len(members), num_new, keys.unbind(), values.unbind(), mask)
