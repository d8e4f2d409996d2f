"""Attention over packed tokens: sequences concatenated, each attending only to itself.

It is registered with transformers by name, so that unmodified models run on our KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.fast.cpu_attention import AttentionBatch, make_batches
from turnwise.inference.local.kv_cache import KVCache, Segment
from turnwise.plain_mode import is_plain

NAME = "turnwise_packed"
"""The name of this attention in transformers."""


Table: TypeAlias = tuple[torch.Tensor, int]
"""Segments on a GPU: the first row of each, its number of rows, region and past [4, S]; and the
number of rows of the longest."""


@dataclass
class Packed:
    """The tokens of one forward, as attention needs them."""

    segments: Sequence[Segment]
    """In the order of their rows, as `packing_order` sorts them."""
    kv_cache: KVCache
    slots: torch.Tensor
    """Where in the KV cache each new token's key and value go [N]."""
    tables: list[Table] | None = None
    """The segments as kernels read them; made when first needed."""
    batches: dict[int | None, list[AttentionBatch]] = field(default_factory=dict)
    """The segments in batches for a CPU, by sliding window; made when first needed."""

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put the new tokens' keys and values [N, K, D] into the cache."""
        self.kv_cache.keys[layer].index_copy_(0, self.slots, key)
        self.kv_cache.values[layer].index_copy_(0, self.slots, value)

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None = None
    ) -> torch.Tensor:
        """Return the attention of each new token to its own sequence: query [N, H, D]; [N, H, D].

        A token attends to itself and all tokens before it, or to the last `window` of these.
        """
        keys, values = self.kv_cache.keys[layer], self.kv_cache.values[layer]
        if not is_plain("engine.attention"):
            by = self._attend_by_kernel if query.is_cuda else self._attend_in_batches
            return by(layer, query, scale, window)
        outputs, row = [], 0
        for segment in self.segments:
            end = segment.past + segment.num_new
            cells = slice(segment.region, segment.region + end)
            position = torch.arange(segment.past, end, device=query.device)[:, None]
            other = torch.arange(end, device=query.device)[None]
            is_visible = other <= position
            if window is not None:
                is_visible &= other > position - window
            output = F.scaled_dot_product_attention(
                query[row : row + segment.num_new].transpose(0, 1)[None],
                keys[cells].transpose(0, 1)[None],
                values[cells].transpose(0, 1)[None],
                attn_mask=is_visible,
                scale=scale,
                enable_gqa=True,
            )
            outputs.append(output[0].transpose(0, 1))
            row += segment.num_new
        return torch.cat(outputs)

    def _attend_in_batches(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Attend on a CPU, segments of one shape in one batch."""
        if window not in self.batches:
            group = query.shape[1] // self.kv_cache.keys[layer].shape[1]
            self.batches[window] = make_batches(self.segments, window, group, self.kv_cache)
        batches = self.batches[window]
        if len(batches) == 1:
            return batches[0].attend(query, layer, scale)
        pieces, row = [], 0
        for batch in batches:
            pieces.append(batch.attend(query.narrow(0, row, batch.num_tokens), layer, scale))
            row += batch.num_tokens
        return torch.cat(pieces)

    def _attend_by_kernel(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """Attend on a GPU, by a Triton kernel."""
        from turnwise.inference.local.fast.kernels import attend_segments

        if self.tables is None:
            self.tables = _tables(self.segments, query.device)
        keys, values = self.kv_cache.keys[layer], self.kv_cache.values[layer]
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for table, longest in self.tables:
            attend_segments(query, keys, values, table, longest, scale, window, output)
        return output

    def advance(self, positions: torch.Tensor) -> None:
        """Add one token to every sequence, at these positions [N]; segments have one token each."""
        for window, batches in self.batches.items():
            row = 0
            for batch in batches:
                batch.advance(positions.narrow(0, row, batch.num_rows), window)
                row += batch.num_rows


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

    `windows` come from `probe_layers`, which refuses models that need other attention. Keys and
    values may differ in width: the cache has the larger of the two.
    """
    layer, width = module.layer_idx, packed.kv_cache.keys[0].shape[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, wide_value = (_widened(x[0], width).transpose(0, 1) for x in (query, key, value))
    packed.store(layer, key, wide_value)
    output = packed.attend(layer, query, scale, windows[layer])
    return output[None, :, :, : value.shape[-1]], None


def _widened(heads: torch.Tensor, width: int) -> torch.Tensor:
    """Pad each head [H, N, D] with zeros, which do not change the products."""
    missing = width - heads.shape[-1]
    return F.pad(heads, (0, missing)) if missing else heads


def _tables(segments: Sequence[Segment], device: torch.device) -> list[Table]:
    """Return one table of single tokens and one of longer segments, for the same kernels always."""
    starts = list(accumulate((segment.num_new for segment in segments), initial=0))
    rows = [
        (start, s.num_new, s.region, s.past) for start, s in zip(starts, segments, strict=False)
    ]
    tables = []
    for kind in ([row for row in rows if row[1] == 1], [row for row in rows if row[1] > 1]):
        if kind:
            table = torch.tensor(kind, dtype=torch.int32).T.contiguous()
            tables.append((table.to(device, non_blocking=True), max(row[1] for row in kind)))
    return tables
