"""Forwards of a Hugging Face model over packed tokens and the arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from turnwise.errors import TurnwiseError
from turnwise.inference.local.arena import Arena
from turnwise.inference.local.attention import NAME, Packed, Segment, packed_attention
from turnwise.inference.local.stable import stable_sizes

_BUDGET = 2 * 2**30
"""Bytes of the cache on a CPU where nothing is said; the system hands them out as they are used."""


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
        self.sizes = stable_sizes(model) if deterministic else None
        """Numbers of tokens that a forward may have, so that they do not change its bits."""
        try:
            self._check_against_plain_forward()
        except (NotImplementedError, TypeError, AttributeError, KeyError, RuntimeError) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} does not run on the local engine: {error}"
            ) from error

    @property
    def most_tokens(self) -> int | None:
        """Tokens that one forward takes; None: any number."""
        return None if self.sizes is None else self.sizes[-1]

    @torch.no_grad()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute chunks of different sequences together; logits [chunks that want them, V]."""
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        for chunk in chunks:
            end = chunk.past + len(chunk.ids)
            ids += chunk.ids
            positions += range(chunk.past, end)
            slots += range(chunk.region + chunk.past, chunk.region + end)
            if chunk.wants_logits:
                kept.append(len(ids) - 1)
        segments = [Segment(c.region, c.past, len(c.ids)) for c in chunks]
        num_kept = len(kept)
        if self.sizes is not None:  # filled up to a size that is known to be stable
            for _ in range(self._filled(len(ids)) - len(ids)):
                ids.append(0)
                positions.append(0)
                slots.append(self.arena.spare)
                segments.append(Segment(self.arena.spare, 0, 1))
            kept += [0] * (self._filled(max(num_kept, 1)) - num_kept)
        table = torch.tensor([ids, positions, slots]).to(self.device, non_blocking=True)
        packed = Packed(segments, self.arena.storage, table[2])
        rows = torch.tensor(kept or [0]).to(self.device, non_blocking=True)
        return self._forward(table[0], table[1], packed, rows)[:num_kept]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, packed: Packed, rows: torch.Tensor
    ) -> torch.Tensor:
        with self.attention():
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=rows,
                packed=packed,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _filled(self, number: int) -> int:
        assert self.sizes is not None
        return next(size for size in self.sizes if size >= number)

    @contextmanager
    def attention(self) -> Iterator[None]:
        """The model attends our way meanwhile; whoever trains it may have another."""
        before = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name

    @torch.no_grad()
    def _check_against_plain_forward(self) -> None:
        """Two sequences in chunks must get what a plain forward gives: numbers, not names."""
        vocabulary = self.model.get_input_embeddings().num_embeddings
        first = [(7 * i + 3) % vocabulary for i in range(11)]
        other = [(5 * i + 1) % vocabulary for i in range(4)]
        regions = [self.arena.take(len(first)), self.arena.take(len(other))]
        a, b = (region for region in regions if region is not None)
        self.forward([Chunk(first[:6], 0, a, False), Chunk(other[:3], 0, b, False)])
        self.forward([Chunk(other[3:], 3, b, False), Chunk(first[6:10], 6, a, False)])
        got = self.forward([Chunk(first[10:], 10, a, True)])[0].float()
        plain = self.model(torch.tensor([first], device=self.device), use_cache=False)
        expected = plain.logits[0, -1].float()
        gap = (got - expected).abs().max().item()
        scale = 1.0 + expected.abs().max().item()
        for region in (a, b):
            self.arena.give_back(region)
        if not gap <= scale * (1e-3 if self.arena.storage.dtype == torch.float32 else 0.1):
            raise NotImplementedError(
                f"its logits are {gap:.2g} away from those of a plain forward"
            )


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
    if cache_tokens is None:
        per_token = 2 * num_layers * num_heads * width * dtype.itemsize
        budget = _BUDGET
        if device.type == "cuda":  # the rest is for the learner, which lives on the same device
            budget = int(0.3 * torch.cuda.mem_get_info(device)[0])
        cache_tokens = min(max_tokens, budget // per_token)
    return Arena(max(cache_tokens, Arena.UNIT * 4), num_layers, num_heads, width, dtype, device)
