"""Attention on a CPU: segments of like shape in one batch, each row as if it were alone.

A row's shapes follow from its own lengths and nothing else, so that no neighbour changes a bit of
the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.arena import Arena


@dataclass(frozen=True)
class Segment:
    """New tokens of one sequence, and where its cache lies."""

    region: int
    """Start of the sequence's region in the arena."""
    past: int
    """Tokens of it that are in the cache already."""
    num_new: int
    """Tokens of it that are computed now."""

    @property
    def shape(self) -> tuple[int, int]:
        """What segments of one batch have in common: new tokens, and tokens that are looked at."""
        return self.num_new, looked_at(self.past, self.num_new)


def looked_at(past: int, num_new: int) -> int:
    """How many tokens of its own region a segment looks at.

    Single tokens look at a few more than there are, and mask those: so many sequences that are not
    quite of a length share a batch, and a plan holds for several steps. A region holds as many.
    """
    length = past + num_new
    if num_new > 1:
        return length
    unit = 16
    while unit < Arena.UNIT * 4 and length > 16 * unit:
        unit *= 2
    return -(-length // unit) * unit


def packing_order(segment: Segment) -> tuple[int, int, int]:
    """Sorts segments so that those of like shape and neighbouring regions are together."""
    return (*segment.shape, segment.region)


@dataclass(frozen=True)
class Run:
    """Segments of one shape whose regions lie evenly spaced: a batch without copying."""

    num_rows: int
    num_new: int
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    """What they look at in each layer, views of the arena [rows, K, L, D]."""
    mask: torch.Tensor
    """0 on what counts, −∞ on the rest: [rows, 1, 1, L] for single tokens, else [G T, L]."""

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.num_new

    def attend(self, query: torch.Tensor, layer: int, scale: float) -> torch.Tensor:
        """query [rows · T, H, D], and so the result."""
        _, num_heads, size = query.shape
        key, value = self.keys[layer], self.values[layer]
        num_kv = key.shape[1]
        # The heads of a group see the same keys: they are rows of one matrix product, and the
        # tokens of a segment are rows below them [rows, K, G T, D].
        if self.num_new == 1:
            grouped = query.reshape(self.num_rows, num_kv, -1, size)
        else:
            apart = query.view(self.num_rows, self.num_new, num_kv, -1, size)
            grouped = apart.permute(0, 2, 3, 1, 4).reshape(self.num_rows, num_kv, -1, size)
        output = F.scaled_dot_product_attention(
            grouped, key, value, attn_mask=self.mask, scale=scale
        )
        if self.num_new > 1:
            output = output.view(self.num_rows, num_kv, -1, self.num_new, size)
            output = output.permute(0, 3, 1, 2, 4)
        return output.reshape(self.num_tokens, num_heads, size)

    def grow(self, positions: torch.Tensor, window: int | None) -> None:
        """Single tokens: their sequences have one token more, at these positions [rows]."""
        rows = self.mask[:, 0, 0]
        rows.scatter_(1, positions[:, None], 0.0)
        if window is not None:
            gone = (positions - window).clamp_(min=-1)[:, None]
            rows.masked_fill_(torch.arange(rows.shape[1])[None] <= gone, -torch.inf)


def make_runs(
    segments: Sequence[Segment], window: int | None, group: int, arena: Arena
) -> list[Run]:
    """All segments, in their order, in as few batches as can be; `group` heads share a key."""
    groups: list[list[Segment]] = []
    for segment in segments:
        if groups and _belongs(segment, groups[-1]):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [_make_run(members, window, group, arena) for members in groups]


def _belongs(segment: Segment, group: Sequence[Segment]) -> bool:
    if segment.shape != group[-1].shape:
        return False
    distance = segment.region - group[-1].region
    return len(group) == 1 or distance == group[1].region - group[0].region


def _make_run(members: Sequence[Segment], window: int | None, group: int, arena: Arena) -> Run:
    first = members[0]
    num_new, width = first.shape
    spacing = members[1].region - first.region if len(members) > 1 else 0
    two, num_layers, _, num_kv, size = arena.storage.shape
    token = num_kv * size
    keys, values = arena.storage.as_strided(
        (two, num_layers, len(members), num_kv, width, size),
        (*arena.storage.stride()[:2], spacing * token, size, token, 1),
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
    mask = torch.where(is_seen, 0.0, -torch.inf).to(arena.storage.dtype)
    mask = mask[:, None, None] if num_new == 1 else mask.repeat(group, 1)
    return Run(len(members), num_new, keys.unbind(), values.unbind(), mask)
