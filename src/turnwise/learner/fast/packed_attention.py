"""Attention over packed episodes with gradients, under a name that transformers knows.

The engine's own attention reads a cache and has no gradient; this one has neither cache nor
padding: each episode attends to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.autograd.function import once_differentiable

from turnwise.learner.context import Context
from turnwise.learner.fast.kernels import load_kernels
from turnwise.models.attention import configs_of

NAME = "turnwise_episodes"
"""The name of this attention in transformers."""


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length as rows, so that many short ones take few operations.

    They are padded on the right, where no token attends to, and their prefixes on the left.
    """

    tokens: torch.Tensor
    """[n, L], indices into the N tokens."""
    context: torch.Tensor
    """[n, P + L], the same after the tokens of a prefix."""
    is_prefix: torch.Tensor | None
    """[n, P], False where a prefix is padded; None if none is."""


@dataclass(frozen=True)
class Spans:
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
    _spans: dict[torch.device, Spans] = field(default_factory=dict)
    _buckets: dict[torch.device, tuple[list[Bucket], torch.Tensor]] = field(default_factory=dict)

    @property
    def has_prefixes(self) -> bool:
        return any(len(prefix) for prefix in self.prefixes)

    def spans(self, device: torch.device) -> Spans:
        """Return where each segment and what it attends to are."""
        if device not in self._spans:
            starts = list(accumulate(self.lengths, initial=0))
            before = [x.numpy() for x in self.prefixes] or [np.arange(0)] * len(self.lengths)
            own = [np.arange(a, b) for a, b in pairwise(starts)]
            both = list(zip(before, own, strict=True))
            numbers = [len(prefix) + len(segment) for prefix, segment in both]
            # By numpy, and without waiting for copies: the device has nothing to do meanwhile.
            at = torch.from_numpy(np.concatenate([part for each in both for part in each]))
            at = at.to(device, non_blocking=True)
            offsets = torch.tensor([starts, list(accumulate(numbers, initial=0))]).int()
            offsets = offsets.to(device, non_blocking=True)
            tokens, copies = at.sort(stable=True)
            self._spans[device] = Spans(
                offsets[0],
                offsets[1],
                max(self.lengths),
                max(numbers),
                at,
                copies,
                torch.searchsorted(tokens, torch.arange(starts[-1] + 1, device=device)),
            )
        return self._spans[device]

    def buckets(self, device: torch.device) -> tuple[list[Bucket], torch.Tensor]:
        """Return the segments in buckets, and the index of each of the N tokens in them [N]."""
        if device not in self._buckets:
            starts = torch.tensor([0, *accumulate(self.lengths)])[:-1]
            lengths = torch.tensor(list(self.lengths))
            num_before = torch.tensor([len(p) for p in self.prefixes] or [0] * len(lengths))
            unit = torch.where(lengths <= 128, 16, 64)
            sizes = -(-lengths // unit) * unit
            prefix_sizes = -(-num_before // 64) * 64
            buckets, owners = [], []
            for size, prefix_size in torch.unique(torch.stack([sizes, prefix_sizes], 1), dim=0):
                chosen = ((sizes == size) & (prefix_sizes == prefix_size)).nonzero().squeeze(1)
                at = torch.arange(int(lengths[chosen].max()))
                is_real = at < lengths[chosen, None]
                tokens = torch.where(is_real, starts[chosen, None] + at, 0)
                context, is_prefix = tokens, None
                if prefix_size:
                    number = int(num_before[chosen].max())
                    before = [
                        F.pad(x, (number - len(x), 0))
                        for x in map(self.prefixes.__getitem__, chosen.tolist())
                    ]
                    context = torch.cat([torch.stack(before), tokens], 1)
                    if int(num_before[chosen].min()) < number:
                        is_prefix = torch.arange(number) >= number - num_before[chosen, None]
                        is_prefix = is_prefix.to(device)
                buckets.append(Bucket(tokens.to(device), context.to(device), is_prefix))
                owners.append(torch.where(is_real, tokens, -1).flatten())
            owner = torch.cat(owners)
            num_padding = int((owner < 0).sum())
            places = owner.argsort(stable=True)[num_padding:].to(device)
            self._buckets[device] = (buckets, places)
        return self._buckets[device]


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
    query, key, value = (episodes.context.to_heads(x) for x in (query, key, value))
    attend = _by_kernel if _has_kernel(query) else _by_torch
    output = attend(query, key, value, episodes, scale, sliding_window)
    return episodes.context.to_tokens(output), None


def _by_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    episodes: Episodes,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """[1, H, N, D], and keys and values [1, K, N, D] -> [1, N, H, D]."""
    queries, keys, values = (_by_token(x) for x in (query, key, value))
    buckets, places = episodes.buckets(query.device)
    pieces = []
    for bucket in buckets:
        output = _attend(
            _rows(queries, bucket.tokens),
            _rows(keys, bucket.context),
            _rows(values, bucket.context),
            scale,
            window,
            bucket.is_prefix,
        )
        pieces.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).index_select(0, places)[None]


def _by_token(heads: torch.Tensor) -> torch.Tensor:
    """[1, H, N, D] -> [N, H, D], not by `[0]`, whose backward fills a tensor and copies to it."""
    return heads.squeeze(0).transpose(0, 1)


def _rows(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[N, H, D] -> [n, H, L, D], by `index_select`, whose backward takes half the time of `[]`."""
    found = tokens.index_select(0, places.flatten())
    return found.view(*places.shape, *tokens.shape[1:]).transpose(1, 2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    is_prefix: torch.Tensor | None,
) -> torch.Tensor:
    length, context_length = query.shape[2], key.shape[2]
    mask = None
    if context_length > length or (window is not None and window < length):
        at = torch.arange(context_length, device=query.device)
        distance = at[context_length - length :, None] - at[None]
        mask = distance >= 0
        if window is not None:
            mask &= distance < window
        if is_prefix is not None:
            is_key = F.pad(is_prefix, (0, length), value=True)
            mask = mask & is_key[:, None, None]
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _has_kernel(query: torch.Tensor) -> bool:
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
    )


def _by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    episodes: Episodes,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    spans = episodes.spans(query.device)
    # The kernel counts the tokens before a token, a sliding window counts the token itself too.
    left = -1 if window is None or window >= spans.longest_key else window - 1
    query, key, value = (_by_token(x) for x in (query, key, value))
    if not episodes.has_prefixes:
        return _flash(query, key, value, spans, scale, left)[0][None]
    output: torch.Tensor = _PrefixAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, spans, scale, left
    )
    return output[None]


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
        to_query, keys, values = _flash_backward(
            *(gradient, query, key[at], value[at], output, log_sums, seed, unused),
            *(spans, scale, left),
        )
        return to_query, *_sum_copies(keys, values, spans), None, None, None


def _sum_copies(
    keys: torch.Tensor, values: torch.Tensor, spans: Spans
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the gradients of gathered keys and values: [copies, K, D] -> [N, K, D], twice.

    Several segments add to the keys of a prefix: in bfloat16 every sum would be rounded.
    """
    kernels = load_kernels("prefix_kernels", keys.dtype, keys.device) if keys.is_cuda else None
    if kernels is not None:
        found: tuple[torch.Tensor, torch.Tensor]
        found = kernels.sum_copies(keys, values, spans.copies, spans.copy_offsets)
        return found
    shape = (len(spans.copy_offsets) - 1, *keys.shape[1:])
    key_sums, value_sums = (
        x.new_zeros(shape, dtype=torch.float32).index_add_(0, spans.keys, x.float()).to(x.dtype)
        for x in (keys, values)
    )
    return key_sums, value_sums


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans: Spans,
    scale: float,
    left: int,
) -> tuple[torch.Tensor, ...]:
    """Call torch's flash attention directly: the public `varlen_attn` around it takes half a
    millisecond more per layer. The last query of a block is at the place of its last key."""
    found: tuple[torch.Tensor, ...] = torch.ops.aten._flash_attention_forward(
        *(query, key, value),
        *(spans.query_offsets, spans.key_offsets, spans.longest_query, spans.longest_key),
        0.0,  # dropout
        left < 0,  # causal, unless a window is given
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=0,
    )
    return found


def _flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    seed: torch.Tensor,
    unused: torch.Tensor,
    spans: Spans,
    scale: float,
    left: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    found = torch.ops.aten._flash_attention_backward(
        *(gradient, query, key, value, output, log_sums),
        *(spans.query_offsets, spans.key_offsets, spans.longest_query, spans.longest_key),
        0.0,
        left < 0,
        *(seed, unused),
        scale=scale,
        window_size_left=left,
        window_size_right=0,
    )
    return found


def attention_configs(model: Any) -> list[Any]:
    """Return every config of a model that names its attention, and register this attention."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, episode_attention)
    return configs_of(model)
