"""Attention over packed episodes with gradients, under a name that transformers knows.

The engine's own attention reads a cache and has no gradient; this one has neither cache nor
padding: each episode sees itself.
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
"""What transformers knows this attention by."""


@dataclass(frozen=True)
class Bucket:
    """Episodes of like length as rows: few steps for many short ones.

    They are filled up at their ends, which no token before sees.
    """

    tokens: torch.Tensor
    """[n, L], which of the N tokens stands where."""
    seen: torch.Tensor
    """[n, P + L], the same behind the tokens of a shared opening."""


@dataclass
class Episodes:
    """Where the episodes of one forward begin and end; what follows from it is made once for all
    layers."""

    lengths: Sequence[int]
    openings: Sequence[tuple[int, int]] | None = None
    """Where the opening that an episode shares stands, and how long it is; None: none is shared."""
    _offsets: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _buckets: dict[torch.device, tuple[list[Bucket], torch.Tensor]] = field(default_factory=dict)

    @property
    def has_shared(self) -> bool:
        return any(length for _, length in self.openings or ())

    def offsets(self, device: torch.device) -> torch.Tensor:
        """Where each begins, and where the last one ends [b + 1]."""
        if device not in self._offsets:
            ends = list(accumulate(self.lengths, initial=0))
            self._offsets[device] = torch.tensor(ends, dtype=torch.int32).to(device)
        return self._offsets[device]

    def buckets(self, device: torch.device) -> tuple[list[Bucket], torch.Tensor]:
        """The episodes in buckets, and where in all their places each of the N tokens is [N]."""
        if device not in self._buckets:
            starts = torch.tensor([0, *accumulate(self.lengths)])[:-1]
            lengths = torch.tensor(list(self.lengths))
            openings = torch.tensor(list(self.openings or [(0, 0)] * len(lengths)))
            unit = torch.where(lengths <= 128, 16, 64)
            sizes = -(-lengths // unit) * unit
            buckets, owners = [], []
            for size, opening in torch.unique(torch.stack([sizes, openings[:, 1]], 1), dim=0):
                chosen = ((sizes == size) & (openings[:, 1] == opening)).nonzero().squeeze(1)
                at = torch.arange(int(lengths[chosen].max()))
                is_real = at < lengths[chosen, None]
                tokens = torch.where(is_real, starts[chosen, None] + at, 0)
                before = openings[chosen, :1] + torch.arange(int(opening))
                seen = torch.cat([before, tokens], 1)
                buckets.append(Bucket(tokens.to(device), seen.to(device)))
                owners.append(torch.where(is_real, tokens, -1).flatten())
            owner = torch.cat(owners)
            filled = int((owner < 0).sum())
            places = owner.argsort(stable=True)[filled:].to(device)
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
    """Attention of transformers' signature: query [1, H, N, D], key and value [1, K, N, D]."""
    unknown = {
        "a softcap": softcap,
        "attention sinks": s_aux,
        "a position bias": position_bias,
        "a mask of its own": attention_mask,
    }
    for name, given in unknown.items():
        if given is not None:
            raise NotImplementedError(f"packed attention does not know {name}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if _has_kernel(query) and not episodes.has_shared:
        return _by_kernel(query, key, value, episodes, scale, sliding_window), None
    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    buckets, places = episodes.buckets(query.device)
    pieces = []
    for bucket in buckets:
        seen = _attend(
            _rows(queries, bucket.tokens),
            _rows(keys, bucket.seen),
            _rows(values, bucket.seen),
            scale,
            sliding_window,
        )
        pieces.append(seen.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).index_select(0, places)[None], None


def _rows(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[N, H, D] -> [n, H, L, D]. `index_select`, whose gradient takes half the time of `[]`'s."""
    found = tokens.index_select(0, places.flatten())
    return found.view(*places.shape, *tokens.shape[1:]).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    length, num_seen = query.shape[2], key.shape[2]
    mask = None
    if num_seen > length or (window is not None and window < length):
        at = torch.arange(num_seen, device=query.device)
        distance = at[num_seen - length :, None] - at[None]
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
    """Torch's flash attention by its own name: the public `varlen_attn` around it takes half a
    millisecond longer to start, in each layer."""
    offsets, longest = episodes.offsets(query.device), max(episodes.lengths)
    # The kernel counts the tokens before this one, a window counts this one too.
    left = -1 if window is None or window >= longest else window - 1
    seen: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        *(offsets, offsets, longest, longest),
        0.0,  # dropout
        left < 0,  # causal, where no window says more
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=0,
    )[0]
    return seen[None]


def attention_configs(model: Any) -> list[Any]:
    """Every config in a model that says which attention its layers use; they may name this one."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, episode_attention)
    return configs_of(model)
