"""Attention over packed tokens: many sequences laid end to end, each seeing only itself.

It is registered with transformers by name, so that models run on our cache unmodified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.arena import Arena
from turnwise.inference.local.runs import Run, Segment, make_runs

NAME = "turnwise_packed"
"""What transformers knows this attention by."""


Table: TypeAlias = tuple[torch.Tensor, int]
"""Segments on a GPU: the row where each begins, its number of rows, its region, its past [4, S];
and the number of rows of the longest."""


@dataclass
class Packed:
    """One forward's worth of tokens: what attention needs to know about them."""

    segments: Sequence[Segment]
    """In the order of their rows, as `packing_order` sorts them."""
    arena: Arena
    slots: torch.Tensor
    """Where in the arena each new token's key and value go [N]."""
    tables: list[Table] | None = None
    """The segments as kernels read them; made when first needed."""
    runs: dict[int | None, list[Run]] = field(default_factory=dict)
    """The segments in batches, as a CPU takes them, by sliding window; made when first needed."""

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
            group = query.shape[1] // keys.shape[1]
            self.runs[window] = make_runs(self.segments, window, group, self.arena)
        runs = self.runs[window]
        if len(runs) == 1:
            return runs[0].attend(query, layer, scale)
        pieces, row = [], 0
        for run in runs:
            pieces.append(run.attend(query.narrow(0, row, run.num_tokens), layer, scale))
            row += run.num_tokens
        return torch.cat(pieces)

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
        """Segments of one token each: every sequence has one more, at these positions [N]."""
        for window, runs in self.runs.items():
            row = 0
            for run in runs:
                run.grow(positions.narrow(0, row, run.num_rows), window)
                row += run.num_rows


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed: Packed,
    windows: Sequence[int | None],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers' signature: query [1, H, N, D], key and value [1, K, N, D].

    `windows` are those that `probe_layers` found, which has also refused what is not done here.
    Values may be narrower than keys, or wider: the cache is as wide as the wider of the two.
    """
    layer, width = module.layer_idx, packed.keys[0].shape[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, wide_value = (_widened(x[0], width).transpose(0, 1) for x in (query, key, value))
    packed.store(layer, key, wide_value)
    output = packed.attend(layer, query, scale, windows[layer])
    return output[None, :, :, : value.shape[-1]], None


def _widened(heads: torch.Tensor, width: int) -> torch.Tensor:
    """Zeros behind each head [H, N, D]: no product with them counts."""
    missing = width - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads


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
