"""Forwards of a Hugging Face model over packed tokens and the arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from turnwise.errors import TurnwiseError
from turnwise.inference.local.arena import Arena
from turnwise.inference.local.attention import NAME, Packed, packed_attention
from turnwise.inference.local.fused import FusedForward, fits
from turnwise.inference.local.runs import Segment, packing_order
from turnwise.inference.local.stable import stable_sizes

_BUDGET = 2 * 2**30
"""Bytes of the cache on a CPU where nothing is said; the system hands them out as they are used."""
_FIRST_ON_GPU = 2**29
"""Bytes that it begins with on a GPU, where it grows."""


class UnsupportedModel(TurnwiseError, TypeError):
    """A model that cannot run on the local engine; the one on transformers takes it."""


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence to compute now."""

    ids: Sequence[int]
    past: int
    """Tokens of the sequence that are in the cache already."""
    region: int
    wants_logits: bool
    """Whether the logits after its last token are needed."""


class Runner:
    """Runs a model on our cache, unmodified, through transformers' own attention interface."""

    def __init__(
        self, model: Any, *, cache_tokens: int | None, max_tokens: int, deterministic: bool
    ) -> None:
        self.model = model
        self._configs = _configs(model)
        self.device: torch.device = model.device
        self.arena = _make_arena(model, cache_tokens, max_tokens)
        self._is_deterministic = deterministic
        self._fused = self._make_fused() if fits(model) else None
        self.sizes = self._stable_sizes()
        """Numbers of tokens that a forward may have, so that they do not change its bits."""
        try:
            if self._fused is not None and self._gap_to_plain_forward() > self._tolerance:
                self._fused = None  # a relative that differs in some point
                self.sizes = self._stable_sizes()
            gap = self._gap_to_plain_forward()
        except (NotImplementedError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} does not run on the local engine: {error}"
            ) from error
        self._addresses = [p.data_ptr() for p in model.parameters()]
        if not gap <= self._tolerance:
            raise UnsupportedModel(
                f"{type(model).__name__} does not run on the local engine: its logits there are "
                f"{gap:.2g} away from those of a plain forward"
            )

    @property
    def most_tokens(self) -> int | None:
        """Tokens that one forward takes; None: any number."""
        return None if self.sizes is None else self.sizes[-1]

    @torch.no_grad()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute chunks of different sequences together; logits [chunks that want them, V]."""
        segments = [Segment(c.region, c.past, len(c.ids)) for c in chunks]
        num_tokens = sum(segment.num_new for segment in segments)
        fill = self.filled(num_tokens) - num_tokens
        segments += [Segment(self.arena.spare, 0, 1)] * fill
        order = sorted(range(len(segments)), key=lambda i: packing_order(segments[i]))
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        kept: dict[int, int] = {}
        for i in order:
            segment = segments[i]
            end = segment.past + segment.num_new
            ids += chunks[i].ids if i < len(chunks) else [0]
            positions += range(segment.past, end)
            slots += range(segment.region + segment.past, segment.region + end)
            kept[i] = len(ids) - 1
        table = torch.tensor([ids, positions, slots]).to(self.device, non_blocking=True)
        packed = Packed([segments[i] for i in order], self.arena, table[2])
        wanted = [kept[i] for i, chunk in enumerate(chunks) if chunk.wants_logits]
        rows = wanted or [0]
        fill = self.filled(len(rows)) - len(rows)
        at = torch.tensor(rows + [0] * fill).to(self.device, non_blocking=True)
        return self.forward_packed(table[0], table[1], packed, at)[: len(wanted)]

    def forward_packed(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        packed: Packed,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [rows, V] after the tokens in these rows, or in all; all go into the cache."""
        if self._fused is not None:
            return self._fused(ids, positions, packed, rows)
        with self._attention():
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=0 if rows is None else rows,
                packed=packed,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def filled(self, number: int) -> int:
        """A number of rows, filled up to one that is known to be stable if that is asked for."""
        return number if self.sizes is None else next(s for s in self.sizes if s >= number)

    @contextmanager
    def _attention(self) -> Iterator[None]:
        """The model attends our way meanwhile; whoever trains it may have another."""
        before = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name

    def weights_moved(self) -> bool:
        """Whether the weights lie elsewhere than before; what reads them by address is void.

        Called when weights may have changed: a trainer may have put other tensors in their place.
        """
        before, now = self._addresses, [p.data_ptr() for p in self.model.parameters()]
        if now != before and self._fused is not None:
            self._fused = self._make_fused()
            now = [p.data_ptr() for p in self.model.parameters()]
        self._addresses = now
        return now != before

    def _make_fused(self) -> FusedForward:
        return FusedForward(self.model, deterministic=self._is_deterministic)

    def _stable_sizes(self) -> list[int] | None:
        if not self._is_deterministic:
            return None
        if self._fused is not None:
            way = self._fused.may_be_in_columns
            return stable_sizes(
                (partial(product, in_columns=way), product.weight, product.weight.shape[1])
                for product in self._fused.products
            )
        from transformers.pytorch_utils import Conv1D

        layers: list[tuple[Any, torch.Tensor, int]] = []
        for module in self.model.modules():
            if isinstance(module, nn.Linear):
                layers.append((module, module.weight, module.in_features))
            elif isinstance(module, Conv1D):
                layers.append((module, module.weight, module.weight.shape[0]))
        return stable_sizes(layers)

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.arena.storage.dtype == torch.float32 else 0.1

    @torch.no_grad()
    def _gap_to_plain_forward(self) -> float:
        """Of two sequences computed in chunks: believe numbers, not a model's name."""
        num_words = self.model.get_input_embeddings().num_embeddings
        first = [(7 * i + 3) % num_words for i in range(11)]
        other = [(5 * i + 1) % num_words for i in range(4)]
        a, b = self.arena.take(len(first)) or 0, self.arena.take(len(other)) or 0
        self.forward([Chunk(first[:6], 0, a, False), Chunk(other[:3], 0, b, False)])
        self.forward([Chunk(other[3:], 3, b, False), Chunk(first[6:10], 6, a, False)])
        got = self.forward([Chunk(first[10:], 10, a, True)])[0].float()
        self.arena.give_back(a)
        self.arena.give_back(b)
        plain = self.model(torch.tensor([first], device=self.device), use_cache=False)
        expected = plain.logits[0, -1].float()
        return float((got - expected).abs().max() / (1.0 + expected.abs().max()))


def _configs(model: Any) -> list[Any]:
    from transformers import AttentionInterface, PreTrainedConfig

    AttentionInterface.register(NAME, packed_attention)
    found = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            found[id(config)] = config
    return list(found.values())


def _make_arena(model: nn.Module, cache_tokens: int | None, max_tokens: int) -> Arena:
    try:
        config = model.config.get_text_config()  # type: ignore[union-attr, operator]
        num_layers = config.num_hidden_layers
        num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
    except AttributeError as error:
        raise UnsupportedModel(f"this model's config has no {error.name}") from error
    parameter = next(model.parameters())
    device, dtype = parameter.device, parameter.dtype
    most_tokens = None
    if cache_tokens is None:
        per_token = 2 * num_layers * num_heads * width * dtype.itemsize
        cache_tokens = min(max_tokens, _BUDGET // per_token)
        if device.type == "cuda":  # the rest is for the learner, which lives on the same device
            budget = int(0.3 * torch.cuda.mem_get_info(device)[0])
            most_tokens = min(max_tokens, budget // per_token)
            cache_tokens = min(most_tokens, _FIRST_ON_GPU // per_token)
    cache_tokens = max(cache_tokens, Arena.UNIT * 4)
    return Arena(cache_tokens, num_layers, num_heads, width, dtype, device, most_tokens)
