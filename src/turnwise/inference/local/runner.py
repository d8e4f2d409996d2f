"""Forwards of a Hugging Face model over packed tokens and the KV cache."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from turnwise.errors import describe_error
from turnwise.inference.local.attention import NAME, Packed, batch_shape, packed_attention
from turnwise.inference.local.batch_invariant import batch_invariant_sizes, has_remainder
from turnwise.inference.local.fused_forward import FusedForward, is_supported
from turnwise.inference.local.kv_cache import KVCache, Segment
from turnwise.models.attention import (
    AttentionCall,
    UnsupportedAttention,
    attention_named,
    model_configs,
    model_lock,
    probe_attention,
)
from turnwise.models.probing import UnsupportedModel, is_out_of_memory

_log = logging.getLogger(__name__)

_BUDGET = 2 * 2**30
"""Default bytes of the cache on a CPU; the system allocates pages when they are first used."""
_FIRST_ON_GPU = 2**29
"""Initial bytes on a GPU, where the cache grows."""
_CPU_BLOCK = 128
"""Tokens of a block on a CPU; the forwards of a small model hold 16 times as many."""


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
        self,
        model: Any,
        *,
        cache_tokens: int | None,
        max_tokens: int,
        context_length: int,
        deterministic: bool,
    ) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, packed_attention)
        self.model = model
        self._configs = model_configs(model)
        self.device: torch.device = model.device
        layers = _probe_layers(model, context_length)
        self._windows = [layer.window for layer in layers]
        self.kv_cache = _make_kv_cache(model, layers, cache_tokens, max_tokens)
        self._is_deterministic = deterministic
        self.is_fused = is_supported(model)
        """Whether the forward is fused, and has the adapters merged in."""
        self._fused = self._make_fused() if self.is_fused else None
        self._measure_sizes()
        while (reason := self._trial_error()) is not None:
            if self._fused is None:
                raise _unsupported(model, reason)
            name = type(model).__name__
            _log.warning("%s has no fused forward, and is slower: %s", name, reason)
            self._fused = None
            self.is_fused = False
            self._measure_sizes()
        self._addresses = [p.data_ptr() for p in model.parameters()]

    def _measure_sizes(self) -> None:
        self.sizes = self._stable_sizes()
        """Batch-invariant numbers of tokens of a forward; None: any number."""
        self.max_forward_tokens = None if self.sizes is None else self.sizes[-1]
        """Maximum number of tokens of one forward; None: any number."""
        # A chunk of so many tokens must end where a block does.
        is_whole = self.sizes is not None and self.sizes[-1] % _CPU_BLOCK == 0
        self.block = _CPU_BLOCK if is_whole and self.device.type == "cpu" else None
        """The tokens of a sequence that attention computes together; None: those of a chunk.

        In batch-invariant mode a token's bits depend on the tokens before it, and on where its
        segment begins and ends. With segments that end where a block does, whole blocks at the
        beginning of two prompts have the same bits: one prompt can copy them from the other.
        """

    @torch.no_grad()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute chunks of several sequences; return logits [chunks that want them, V]."""
        pieces: list[tuple[Segment, Sequence[int]]] = []
        for chunk in chunks:
            start, length = chunk.past, chunk.past + len(chunk.ids)
            block = self.block or length
            while start < length:  # cut where a block of the sequence ends
                end = min(start - start % block + block, length)
                segment = Segment(chunk.region, start, end - start)
                pieces.append((segment, chunk.ids[start - chunk.past : end - chunk.past]))
                start = end
        num_tokens = sum(len(chunk.ids) for chunk in chunks)
        fill = self.padded_size(num_tokens) - num_tokens
        pieces += [(Segment(self.kv_cache.scratch, 0, 1), [0])] * fill
        pieces.sort(key=lambda piece: (*batch_shape(piece[0]), piece[0].region))
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        last_rows: dict[tuple[int, int], int] = {}
        for segment, new_ids in pieces:
            end = segment.past + segment.num_new
            ids += new_ids
            positions += range(segment.past, end)
            slots += range(segment.region + segment.past, segment.region + end)
            last_rows[segment.region, end] = len(ids) - 1
        table = torch.tensor([ids, positions, slots]).to(self.device, non_blocking=True)
        packed = Packed([segment for segment, _ in pieces], self.kv_cache, table[2])
        wanted = [last_rows[c.region, c.past + len(c.ids)] for c in chunks if c.wants_logits]
        rows = wanted or [0]
        fill = self.padded_size(len(rows)) - len(rows)
        at = torch.tensor(rows + [0] * fill).to(self.device, non_blocking=True)
        return self.forward_packed(table[0], table[1], packed, at)[: len(wanted)]

    def forward_packed(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        packed: Packed,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute packed tokens into the cache; return logits [rows, V] of `rows`, or of all."""
        if self._fused is not None:
            return self._fused(ids, positions, packed, rows)
        with model_lock(self.model), attention_named(self._configs, NAME):
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=0 if rows is None else rows,
                packed=packed,
                windows=self._windows,
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def padded_size(self, number: int) -> int:
        """Return the next batch-invariant size, or the number itself if any is allowed."""
        return number if self.sizes is None else next(s for s in self.sizes if s >= number)

    def take_new_weights(self) -> bool:
        """Take weights that a trainer has changed or replaced; merge adapters into them.

        Returns whether tensors have new addresses, which invalidates captured graphs.
        """
        have_moved = self._addresses != [p.data_ptr() for p in self.model.parameters()]
        if self._fused is not None and have_moved:
            self._fused = self._make_fused()
        elif self._fused is not None:
            for product in self._fused.products:
                product.merge()
        self._addresses = [p.data_ptr() for p in self.model.parameters()]
        return have_moved

    def _trial_error(self) -> str | None:
        """Return why forwards fail, for instance where Triton finds no compiler; None if not."""
        try:
            self.forward([Chunk([0], 0, self.kv_cache.scratch, wants_logits=True)])
        except Exception as error:  # Triton, its compiler and the driver raise many kinds
            if is_out_of_memory(error):
                raise
            return describe_error(error)
        return None

    def _make_fused(self) -> FusedForward:
        return FusedForward(self.model, self._windows, deterministic=self._is_deterministic)

    def _stable_sizes(self) -> list[int] | None:
        if not self._is_deterministic:
            return None
        if self._fused is not None:
            way = self._fused.can_be_transposed
            sizes = batch_invariant_sizes(
                (partial(product, transposed=way), product.weight, product.weight.shape[1])
                for product in self._fused.products
            )
            return [size for size in sizes if self._fused.is_invariant_at(size)] or [1]
        from transformers.pytorch_utils import Conv1D

        layers: list[tuple[Any, torch.Tensor, int]] = []
        for module in self.model.modules():
            if isinstance(module, nn.Linear):
                layers.append((module, module.weight, module.in_features))
            elif isinstance(module, Conv1D):
                layers.append((module, module.weight, module.weight.shape[0]))
            elif not isinstance(module, nn.Embedding) and any(
                parameter.ndim > 1 for parameter in module.parameters(recurse=False)
            ):
                # Experts: the rows of each product depend on the routing of all tokens.
                text = (
                    "%s has %s layers, whose rounding depends on the other tokens of a forward: "
                    "in deterministic mode each token is computed by itself, which is slow. "
                    "deterministic=False computes them together."
                )
                _log.warning(text, type(self.model).__name__, type(module).__name__)
                return [1]
        sizes = batch_invariant_sizes(layers)
        if self.device.type != "cpu":
            return sizes
        # The activation functions, of which we know only that a layer follows them.
        widths = {width for _, _, width in layers}
        return [n for n in sizes if not any(has_remainder(n * width) for width in widths)] or [1]


def _make_kv_cache(
    model: nn.Module, layers: Sequence[AttentionCall], cache_tokens: int | None, max_tokens: int
) -> KVCache:
    num_layers = len(layers)
    num_heads, width = layers[0].num_kv_heads, layers[0].width
    parameter = next(model.parameters())
    device, dtype = parameter.device, parameter.dtype
    largest = None
    if cache_tokens is None:
        per_token = 2 * num_layers * num_heads * width * dtype.itemsize
        cache_tokens = min(max_tokens, _BUDGET // per_token)
        if device.type == "cuda":  # the rest is for the learner on the same device
            budget = int(0.3 * torch.cuda.mem_get_info(device)[0])
            largest = min(max_tokens, budget // per_token)
            cache_tokens = min(largest, _FIRST_ON_GPU // per_token)
    cache_tokens = max(cache_tokens, KVCache.UNIT * 4)
    return KVCache(cache_tokens, num_layers, num_heads, width, dtype, device, largest)


def _probe_layers(model: Any, context_length: int) -> list[AttentionCall]:
    """Return the attention that each layer of a model needs, within a context of so many tokens.

    Raises `UnsupportedModel` unless each layer attends once, with keys and values of one shape,
    and tokens reach each other in no other way.
    """
    try:
        calls = sorted(probe_attention(model, context_length), key=attrgetter("layer"))
        number = model.config.get_text_config().num_hidden_layers
        if [call.layer for call in calls] != list(range(number)):
            raise UnsupportedAttention(f"its {number} layers do not attend once each")
        if len({(call.num_kv_heads, call.width) for call in calls}) > 1:
            raise UnsupportedAttention("its key and value heads differ in number or width")
    except UnsupportedAttention as reason:
        raise _unsupported(model, reason) from reason.__cause__
    return calls


def _unsupported(model: Any, reason: object) -> UnsupportedModel:
    kind = type(model).__name__
    error = UnsupportedModel(f"{kind} does not run on the local engine: {reason}.")
    error.add_note("Use backend='transformers'.")
    return error
