"""Attention over packed episodes with gradients, under a name that transformers knows.

The engine's own attention reads a cache and has no gradient; this one has neither cache nor
padding: each episode attends to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.models.attention import configs_of

NAME = "turnwise_episodes"
"""The name of this attention in transformers."""


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length as rows, so that many short ones take few operations.

    They are padded on the right, where no token attends to.
    """

    tokens: torch.Tensor
    """[n, L], indices into the N tokens."""
    context: torch.Tensor
    """[n, P + L], the same after the tokens of a prefix."""


@dataclass
class Episodes:
    """The segments of one forward; offsets and buckets are made once for all layers."""

    lengths: Sequence[int]
    prefixes: Sequence[torch.Tensor] = ()
    """The indices of the tokens before each segment; empty if no segment has any."""
    _offsets: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _buckets: dict[torch.device, tuple[list[Bucket], torch.Tensor]] = field(default_factory=dict)

    @property
    def has_prefixes(self) -> bool:
        return any(len(prefix) for prefix in self.prefixes)

    def offsets(self, device: torch.device) -> torch.Tensor:
        """Return the start of each segment, and the end of the last one."""
        if device not in self._offsets:
            ends = list(accumulate(self.lengths, initial=0))
            self._offsets[device] = torch.tensor(ends, dtype=torch.int32).to(device)
        return self._offsets[device]

    def buckets(self, device: torch.device) -> tuple[list[Bucket], torch.Tensor]:
        """Return the segments in buckets, and the index of each of the N tokens in them [N]."""
        if device not in self._buckets:
            starts = torch.tensor([0, *accumulate(self.lengths)])[:-1]
            lengths = torch.tensor(list(self.lengths))
            num_before = torch.tensor([len(p) for p in self.prefixes] or [0] * len(lengths))
            unit = torch.where(lengths <= 128, 16, 64)
            sizes = -(-lengths // unit) * unit
            buckets, owners = [], []
            for size, number in torch.unique(torch.stack([sizes, num_before], 1), dim=0):
                chosen = ((sizes == size) & (num_before == number)).nonzero().squeeze(1)
                at = torch.arange(int(lengths[chosen].max()))
                is_real = at < lengths[chosen, None]
                tokens = torch.where(is_real, starts[chosen, None] + at, 0)
                context = tokens
                if number:
                    before = torch.stack([self.prefixes[i] for i in chosen.tolist()])
                    context = torch.cat([before, tokens], 1)
                buckets.append(Bucket(tokens.to(device), context.to(device)))
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
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the signature of transformers: query [1, H, N, D], key, value [1, K, N, D]."""
    unknown = {
        "a softcap": softcap,
        "attention sinks": s_aux,
        "a position bias": position_bias,
        "an attention mask": attention_mask,
    }
    for name, given in unknown.items():
        if given is not None:
            raise NotImplementedError(f"packed attention does not support {name}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if _has_kernel(query) and not episodes.has_prefixes:
        return _by_kernel(query, key, value, episodes, scale, sliding_window), None
    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    buckets, places = episodes.buckets(query.device)
    pieces = []
    for bucket in buckets:
        output = _attend(
            _rows(queries, bucket.tokens),
            _rows(keys, bucket.context),
            _rows(values, bucket.context),
            scale,
            sliding_window,
        )
        pieces.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).index_select(0, places)[None], None


def _rows(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[N, H, D] -> [n, H, L, D], by `index_select`, whose backward takes half the time of `[]`."""
    found = tokens.index_select(0, places.flatten())
    return found.view(*places.shape, *tokens.shape[1:]).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    length, context_length = query.shape[2], key.shape[2]
    mask = None
    if context_length > length or (window is not None and window < length):
        at = torch.arange(context_length, device=query.device)
        distance = at[context_length - length :, None] - at[None]
        mask = distance >= 0
        if window is not None:
            mask &= distance < window
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
    """Call torch's flash attention directly: the public `varlen_attn` around it takes half a
    millisecond more per layer."""
    offsets, longest = episodes.offsets(query.device), max(episodes.lengths)
    # The kernel counts the tokens before a token, a sliding window counts the token itself too.
    left = -1 if window is None or window >= longest else window - 1
    output: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        *(offsets, offsets, longest, longest),
        0.0,  # dropout
        left < 0,  # causal, unless a window is given
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=0,
    )[0]
    return output[None]


def attention_configs(model: Any) -> list[Any]:
    """Return every config of a model that names its attention, and register this attention."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, episode_attention)
    return configs_of(model)
