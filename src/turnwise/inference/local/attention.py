"""Attention over packed tokens: sequences concatenated, each attending only to itself.

It is registered with transformers by name, so that unmodified models run on our KV cache. On a GPU
it is a Triton kernel. On a CPU segments of one shape are one batch: a row's shapes follow from its
own lengths and nothing else, so that no other row of the batch changes a bit of its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.kv_cache import KVCache, Segment

NAME = "turnwise_packed"
"""The name of this attention in transformers."""


Table: TypeAlias = tuple[torch.Tensor, int]
"""Segments on a GPU: the first row of each, its number of rows, region and past [4, S]; and the
number of rows of the longest."""


def batch_shape(segment: Segment) -> tuple[int, int]:
    """Return what segments of one batch have in common: new tokens, and those attended to.

    Single tokens attend to a few more than there are, and mask those: so sequences of almost equal
    length share a batch. A region holds as many.
    """
    length = segment.past + segment.num_new
    if segment.num_new > 1:
        return segment.num_new, length
    unit = 16
    while unit < KVCache.UNIT * 4 and length > 16 * unit:
        unit *= 2
    return 1, -(-length // unit) * unit


class AttentionBatch:
    """Segments of one shape whose regions lie evenly spaced: a batch without copying.

    `group` heads share a key.
    """

    def __init__(
        self, members: Sequence[Segment], window: int | None, group: int, kv_cache: KVCache
    ) -> None:
        first = members[0]
        self.num_rows = len(members)
        self.num_new, length = batch_shape(first)
        self.num_tokens = self.num_rows * self.num_new
        spacing = members[1].region - first.region if len(members) > 1 else 0
        two, num_layers, _, num_kv, size = kv_cache.storage.shape
        token = num_kv * size
        keys, values = kv_cache.storage.as_strided(
            (two, num_layers, self.num_rows, num_kv, length, size),
            (*kv_cache.storage.stride()[:2], spacing * token, size, token, 1),
            first.region * token,
        )
        self.keys, self.values = keys.unbind(), values.unbind()
        """Their keys and values in each layer, views of the KV cache [rows, K, L, D]."""
        if self.num_new == 1:
            last = torch.tensor([member.past for member in members])[:, None]
        else:
            last = torch.arange(first.past, length)[:, None]
        at = torch.arange(length)[None]
        is_seen = at <= last
        if window is not None:
            is_seen &= at > last - window
        mask = torch.where(is_seen, 0.0, -torch.inf).to(kv_cache.storage.dtype)
        self.mask = mask[:, None, None] if self.num_new == 1 else mask.repeat(group, 1)
        """0 on visible tokens, −∞ on others: [rows, 1, 1, L] for single tokens, else [G T, L]."""

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


@dataclass
class Packed:
    """The tokens of one forward, as attention needs them."""

    segments: Sequence[Segment]
    """In the order of their rows: those of one `batch_shape` together, by region."""
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
        if query.is_cuda:
            from turnwise.inference.local.kernels import attend_segments

            if self.tables is None:
                self.tables = _tables(self.segments, query.device)
            keys, values = self.kv_cache.keys[layer], self.kv_cache.values[layer]
            output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            for table, longest in self.tables:
                attend_segments(query, keys, values, table, longest, scale, window, output)
            return output
        if window not in self.batches:
            group = query.shape[1] // self.kv_cache.keys[layer].shape[1]
            self.batches[window] = [
                AttentionBatch(members, window, group, self.kv_cache)
                for members in _alike(self.segments)
            ]
        batches = self.batches[window]
        if len(batches) == 1:
            return batches[0].attend(query, layer, scale)
        pieces, row = [], 0
        for batch in batches:
            pieces.append(batch.attend(query.narrow(0, row, batch.num_tokens), layer, scale))
            row += batch.num_tokens
        return torch.cat(pieces)


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

    `windows` come from `Runner`, which refuses models that need other attention. Keys and
    values may differ in width: the cache has the larger of the two.
    """
    layer, width = module.layer_idx, packed.kv_cache.keys[0].shape[-1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    wide = []
    for heads in (query[0], key[0], value[0]):
        missing = width - heads.shape[-1]  # zeros do not change the products
        wide.append((F.pad(heads, (0, missing)) if missing else heads).transpose(0, 1))
    packed.store(layer, wide[1], wide[2])
    output = packed.attend(layer, wide[0], scale, windows[layer])
    return output[None, :, :, : value.shape[-1]], None


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


def _alike(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return all segments, in order, in as few batches as possible."""
    groups: list[list[Segment]] = []
    for segment in segments:
        last = groups[-1] if groups else []
        is_alike = bool(last) and batch_shape(segment) == batch_shape(last[-1])
        if is_alike and (
            len(last) == 1 or segment.region - last[-1].region == last[1].region - last[0].region
        ):
            last.append(segment)
        else:
            groups.append([segment])
    return groups
