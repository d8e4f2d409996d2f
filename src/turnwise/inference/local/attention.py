"""Attention over packed tokens: many sequences laid end to end, each seeing only itself.

It is registered with transformers by name, so that models run on our cache unmodified. The shapes
in which a sequence is attended depend on nothing but that sequence, so that no neighbour changes a
bit of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.arena import Arena

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


Table: TypeAlias = tuple[torch.Tensor, int]
"""Segments on a GPU: the row where each begins, its number of rows, its region, its past [4, S];
and the number of rows of the longest."""


@dataclass
class Run:
    """Single tokens whose regions lie evenly spaced in the arena: one batch without copying."""

    region: int
    spacing: int
    num_rows: int
    width: int
    """Tokens that are looked at: the sequences' own lengths, filled up to whole units."""
    mask: torch.Tensor
    """0 on those that count, −∞ on the others [rows, 1, 1, width]."""
    keys: Sequence[torch.Tensor] = ()
    values: Sequence[torch.Tensor] = ()
    """What they look at, in each layer."""

    def of(self, arena: Arena) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """The rows' keys and values in each layer, as views [rows, K, width, D]."""
        two, num_layers, _, num_heads, size = arena.storage.shape
        row = num_heads * size
        views = arena.storage.as_strided(
            (two, num_layers, self.num_rows, num_heads, self.width, size),
            (*arena.storage.stride()[:2], self.spacing * row, size, row, 1),
            self.region * row,
        )
        keys, values = views
        return keys.unbind(), values.unbind()

    def show(self, positions: torch.Tensor, window: int | None) -> None:
        """Let the rows see up to these positions."""
        at = torch.arange(self.width)[None]
        is_seen = at <= positions[:, None]
        if window is not None:
            is_seen &= at > positions[:, None] - window
        self.mask[:, 0, 0] = torch.where(is_seen, 0.0, -torch.inf)


@dataclass
class Packed:
    """One forward's worth of tokens: what attention needs to know about them."""

    segments: Sequence[Segment]
    """In the order of their rows: single tokens first, as `packing_order` sorts them."""
    arena: Arena
    slots: torch.Tensor
    """Where in the arena each new token's key and value go [N]."""
    tables: list[Table] | None = None
    """The segments as kernels read them; made when first needed."""
    runs: dict[int | None, list[Run]] = field(default_factory=dict)
    """The single tokens in batches, by sliding window; made when first needed."""
    masks: dict[tuple[int, int, int | None], torch.Tensor] = field(default_factory=dict)
    """Of longer segments, by past, new tokens and window; made when first needed."""

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put the new tokens' keys and values [N, K, D] into the cache."""
        self.keys[layer].index_copy_(0, self.slots, key)
        self.values[layer].index_copy_(0, self.slots, value)

    @property
    def keys(self) -> Sequence[torch.Tensor]:
        """Of each layer, [tokens, K, D]."""
        return self.arena.keys

    @property
    def values(self) -> Sequence[torch.Tensor]:
        return self.arena.values

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None = None
    ) -> torch.Tensor:
        """What each new token sees of its own sequence: query [N, H, D]; [N, H, D]."""
        keys, values = self.keys[layer], self.values[layer]
        if query.is_cuda:
            return self._attend_by_kernel(query, keys, values, scale, window)
        if window not in self.runs:
            self.runs[window] = _runs(self.segments, window, self.arena)
        pieces, row = [], 0
        for run in self.runs[window]:
            rows = query if run.num_rows == len(query) else query.narrow(0, row, run.num_rows)
            pieces.append(_attend_run(rows, run, layer, scale))
            row += run.num_rows
        for segment in self.segments[row:]:
            rows = query.narrow(0, row, segment.num_new)
            mask = self._mask(segment, window, query.shape[1] // keys.shape[1])
            pieces.append(_attend_segment(rows, keys, values, segment, mask, scale))
            row += segment.num_new
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _mask(self, segment: Segment, window: int | None, group: int) -> torch.Tensor:
        """The same for every layer, and for segments of the same lengths."""
        key = (segment.past, segment.num_new, window)
        if key not in self.masks:
            self.masks[key] = _causal_mask(segment, window, group, self.arena.storage.dtype)
        return self.masks[key]

    def _attend_by_kernel(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        from turnwise.inference.local.kernels import attend_segments

        if self.tables is None:
            self.tables = _tables(self.segments, query.device)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for table, longest in self.tables:
            attend_segments(query, keys, values, table, longest, scale, window, output)
        return output

    def grow(self, positions: torch.Tensor) -> None:
        """Every sequence of one token has one more, at these positions [N]."""
        for window, runs in self.runs.items():
            row = 0
            for run in runs:
                at = positions[row : row + run.num_rows]
                if window is None:
                    run.mask[:, 0, 0].scatter_(1, at[:, None], 0.0)
                else:
                    run.show(at, window)
                row += run.num_rows


def packing_order(segment: Segment) -> tuple[bool, int, int]:
    """Sorts segments so that single tokens of like length and neighbouring regions are together."""
    return segment.num_new > 1, looked_at(segment.past + segment.num_new), segment.region


def looked_at(length: int) -> int:
    """Tokens that a single token of a sequence so long looks at: a few sizes, so that many
    sequences share one. A region holds as many."""
    unit = Arena.UNIT if length <= 4 * Arena.UNIT else 2 * Arena.UNIT
    unit = unit if length <= 16 * Arena.UNIT else 4 * Arena.UNIT
    return -(-length // unit) * unit


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
    packed.store(module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = query[0].transpose(0, 1)
    return packed.attend(module.layer_idx, rows, scale, sliding_window)[None], None


def _runs(segments: Sequence[Segment], window: int | None, arena: Arena) -> list[Run]:
    groups: list[list[Segment]] = []
    widths: list[int] = []
    for segment in segments:
        if segment.num_new > 1:
            break
        width = looked_at(segment.past + 1)
        if groups and widths[-1] == width and _is_evenly_next(groups[-1], segment):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            widths.append(width)
    runs = []
    for group, width in zip(groups, widths, strict=True):
        spacing = group[1].region - group[0].region if len(group) > 1 else 0
        mask = torch.empty(len(group), 1, 1, width, dtype=arena.storage.dtype)
        run = Run(group[0].region, spacing, len(group), width, mask)
        run.keys, run.values = run.of(arena)
        run.show(torch.tensor([segment.past for segment in group]), window)
        runs.append(run)
    return runs


def _is_evenly_next(group: Sequence[Segment], segment: Segment) -> bool:
    distance = segment.region - group[-1].region
    return len(group) == 1 or distance == group[1].region - group[0].region


def _attend_run(query: torch.Tensor, run: Run, layer: int, scale: float) -> torch.Tensor:
    num_rows, num_heads, size = query.shape
    # The heads of a group see the same keys: they are the rows of one small matrix product.
    key = run.keys[layer]
    grouped = query.reshape(num_rows, key.shape[1], -1, size)
    output = F.scaled_dot_product_attention(
        grouped, key, run.values[layer], attn_mask=run.mask, scale=scale
    )
    return output.reshape(num_rows, num_heads, size)


def _attend_segment(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    segment: Segment,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """A segment of several tokens, by itself."""
    num_new, num_heads, size = query.shape
    num_kv, length = keys.shape[1], segment.past + num_new
    # As in a run: a group's heads are rows, here with the tokens below each other [1, K, G T, D].
    grouped = query.view(num_new, num_kv, -1, size).permute(1, 2, 0, 3).reshape(1, num_kv, -1, size)
    output = F.scaled_dot_product_attention(
        grouped,
        keys.narrow(0, segment.region, length).transpose(0, 1)[None],
        values.narrow(0, segment.region, length).transpose(0, 1)[None],
        attn_mask=mask,
        scale=scale,
    )
    apart = output.view(num_kv, -1, num_new, size).permute(2, 0, 1, 3)
    return apart.reshape(num_new, num_heads, size)


def _causal_mask(
    segment: Segment, window: int | None, group: int, dtype: torch.dtype
) -> torch.Tensor:
    """0 where a new token sees one of its sequence, −∞ elsewhere; once for each head of a group
    [G T, L]."""
    length = segment.past + segment.num_new
    at = torch.arange(segment.past, length)[:, None]
    other = torch.arange(length)[None]
    is_seen = other <= at
    if window is not None:
        is_seen &= other > at - window
    return torch.where(is_seen, 0.0, -torch.inf).to(dtype).repeat(group, 1)


def _tables(segments: Sequence[Segment], device: torch.device) -> list[Table]:
    """Single tokens stand apart, so that either kind is always computed by the same kernel."""
    begins = list(accumulate((segment.num_new for segment in segments), initial=0))
    rows = [
        (begin, s.num_new, s.region, s.past) for begin, s in zip(begins, segments, strict=False)
    ]
    tables = []
    for kind in ([row for row in rows if row[1] == 1], [row for row in rows if row[1] > 1]):
        if kind:
            table = torch.tensor(kind, dtype=torch.int32).T.contiguous()
            tables.append((table.to(device, non_blocking=True), max(row[1] for row in kind)))
    return tables
