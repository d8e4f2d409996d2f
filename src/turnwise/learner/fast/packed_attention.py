"""Attention over packed episodes with gradients, under a name that transformers knows.

The engine's own attention reads a cache and has no gradient; this one has neither cache nor
padding: each episode attends to itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from turnwise.learner.fast import load_kernels
from turnwise.learner.workers import Context
from turnwise.models.rounding import HALF

NAME = "turnwise_episodes"
"""The name of this attention in transformers."""


class Bucket(NamedTuple):
    """Segments of similar length as rows, so that many short ones take few operations.

    They are padded on the right, where no token attends to, and their prefixes on the left.
    """

    tokens: torch.Tensor
    """[n, L], indices into the N tokens."""
    context: torch.Tensor
    """[n, P + L], the same after the tokens of a prefix."""
    is_prefix: torch.Tensor | None
    """[n, P], False where a prefix is padded; None if none is."""


class Spans(NamedTuple):
    """What a kernel computes at once: block i of the queries attends to block i of the keys."""

    query_offsets: torch.Tensor
    """The start of each segment, and the end of the last one."""
    key_offsets: torch.Tensor
    """The same for what each segment attends to: its prefix and itself."""
    longest_query: int
    longest_key: int
    keys: torch.Tensor
    """The tokens that the segments attend to, those of one after those of another."""
    copies: torch.Tensor
    """Indices into `keys`, those of the first token first, then those of the next one."""
    copy_offsets: torch.Tensor
    """The start of each of the N tokens in `copies`, and the end of the last one."""


@dataclass
class Episodes:
    """The segments of one forward; spans and buckets are made once for all layers."""

    lengths: Sequence[int]
    prefixes: Sequence[torch.Tensor] = ()
    """The indices of the tokens before each segment; empty if no segment has any."""
    context: Context = field(default_factory=Context)
    """The learners that have the tokens; the segments are those of all."""
    _spans: Spans | None = None
    _buckets: tuple[list[Bucket], torch.Tensor] | None = None

    def spans(self, device: torch.device) -> Spans:
        """Return where each segment and what it attends to are."""
        if self._spans is None:
            starts = list(accumulate(self.lengths, initial=0))
            before = [x.numpy() for x in self.prefixes] or [np.arange(0)] * len(self.lengths)
            segments = [np.arange(a, b) for a, b in pairwise(starts)]
            both = list(zip(before, segments, strict=True))
            numbers = [len(prefix) + len(segment) for prefix, segment in both]
            # By numpy, and without waiting for copies: the device has nothing to do meanwhile.
            at = torch.from_numpy(np.concatenate([part for each in both for part in each]))
            at = at.to(device, non_blocking=True)
            offsets = torch.tensor([starts, list(accumulate(numbers, initial=0))]).int()
            offsets = offsets.to(device, non_blocking=True)
            tokens, copies = at.sort(stable=True)
            first = torch.searchsorted(tokens, torch.arange(starts[-1] + 1, device=device))
            longest = max(self.lengths), max(numbers)
            self._spans = Spans(offsets[0], offsets[1], *longest, at, copies, first)
        return self._spans

    def buckets(self, device: torch.device) -> tuple[list[Bucket], torch.Tensor]:
        """Return the segments in buckets, and the index of each of the N tokens in them [N]."""
        if self._buckets is None:
            segments = torch.split(torch.arange(sum(self.lengths)), list(self.lengths))
            prefixes = self.prefixes or [torch.arange(0)] * len(segments)
            similar: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
            for number, (segment, prefix) in enumerate(zip(segments, prefixes, strict=True)):
                unit = 16 if len(segment) <= 128 else 64
                size = -(-len(segment) // unit) * unit
                similar[size, -(-len(prefix) // 64)].append(number)
            buckets, owners = [], []
            for _, numbers in sorted(similar.items()):
                tokens = pad_sequence([segments[n] for n in numbers], True, -1)
                before = pad_sequence([prefixes[n] for n in numbers], True, -1, "left")
                context = torch.cat([before, tokens], 1)
                is_prefix = before >= 0
                buckets.append(
                    Bucket(
                        tokens.clamp(min=0).to(device),
                        context.clamp(min=0).to(device),
                        None if bool(is_prefix.all()) else is_prefix.to(device),
                    )
                )
                owners.append(tokens.flatten())
            owner = torch.cat(owners)
            num_padding = int((owner < 0).sum())
            self._buckets = buckets, owner.argsort(stable=True)[num_padding:].to(device)
        return self._buckets


def episode_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    episodes: Episodes,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the signature of transformers: query [1, H, N, D], key, value [1, K, N, D].

    `probe_attention` refuses models that ask for more.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # By token, [N, H, D]; not by `[0]`, whose backward fills a tensor and copies to it.
    queries, keys, values = (
        episodes.context.to_heads(x.squeeze(0)).transpose(0, 1) for x in (query, key, value)
    )
    width = query.shape[-1]
    if not (query.is_cuda and query.dtype in HALF and width % 8 == 0 and width <= 256):
        output = _by_torch(queries, keys, values, episodes, scale, sliding_window)
        return episodes.context.exchange(output)[None], None
    spans = episodes.spans(query.device)
    # The kernel counts the tokens before a token, a sliding window counts the token itself too.
    left = -1
    if sliding_window is not None and sliding_window < spans.longest_key:
        left = sliding_window - 1
    if any(len(prefix) for prefix in episodes.prefixes):
        output = _PrefixAttention.apply(queries, keys, values, spans, scale, left)  # type: ignore[no-untyped-call]
    else:
        output = _flash(queries, keys, values, spans, scale, left)[0]
    return episodes.context.exchange(output)[None], None


def _by_torch(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    episodes: Episodes,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """[N, H, D], and keys and values [N, K, D] -> [N, H, D]."""

    def rows(tokens: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        # [n, H, L, D], by `index_select`, whose backward takes half the time of `[]`
        selected = tokens.index_select(0, indices.flatten())
        return selected.view(*indices.shape, *tokens.shape[1:]).transpose(1, 2)

    buckets, order = episodes.buckets(queries.device)
    pieces = []
    for bucket in buckets:
        length, context_length = bucket.tokens.shape[1], bucket.context.shape[1]
        mask = None
        if context_length > length or (window is not None and window < length):
            at = torch.arange(context_length, device=queries.device)
            distance = at[context_length - length :, None] - at[None]
            mask = distance >= 0
            if window is not None:
                mask &= distance < window
            if bucket.is_prefix is not None:
                mask = mask & F.pad(bucket.is_prefix, (0, length), value=True)[:, None, None]
        output = F.scaled_dot_product_attention(
            rows(queries, bucket.tokens),
            rows(keys, bucket.context),
            rows(values, bucket.context),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        pieces.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).index_select(0, order)


class _PrefixAttention(torch.autograd.Function):
    """Gathers the keys of each segment for the kernel, in the forward and again in the backward.

    Autograd would keep what was gathered: a prompt of 8 episodes 8 times, in each layer. Two calls
    of the kernel, one for segments and one for prefixes, merged by their log-sum-exps, gather less
    and are no faster.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spans: Spans,
        scale: float,
        left: int,
    ) -> torch.Tensor:
        at = spans.keys
        output, *others = _flash(query, key[at], value[at], spans, scale, left)[:4]
        ctx.save_for_backward(query, key, value, output, *others)
        ctx.settings = spans, scale, left
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, log_sums, seed, unused = ctx.saved_tensors
        spans, scale, left = ctx.settings
        at = spans.keys
        to_query, keys, values = torch.ops.aten._flash_attention_backward(
            gradient,
            query,
            key[at],
            value[at],
            output,
            log_sums,
            *spans[:4],
            0.0,  # dropout
            left < 0,  # causal, unless a window is given
            seed,
            unused,
            scale=scale,
            window_size_left=left,
            window_size_right=0,
        )
        # Several segments add to the keys of a prefix: in bfloat16 every sum would be rounded.
        kernels = load_kernels("kernels") if keys.is_cuda else None
        if kernels is not None:
            sums = kernels.sum_copies(keys, values, spans.copies, spans.copy_offsets)
        else:
            wide = torch.zeros(2, *key.shape, dtype=torch.float32, device=key.device)
            sums = (
                total.index_add_(0, at, x.float()).to(x.dtype)
                for total, x in zip(wide, (keys, values), strict=True)
            )
        return to_query, *sums, None, None, None


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans: Spans,
    scale: float,
    left: int,
) -> tuple[torch.Tensor, ...]:
    """Call torch's flash attention directly: the public `varlen_attn` around it takes half a
    millisecond more per layer. The last query of a block is at the position of its last key."""
    outputs: tuple[torch.Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        *spans[:4],
        0.0,  # dropout
        left < 0,  # causal, unless a window is given
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=0,
    )
    return outputs
