"""Forwards of a Hugging Face model over packed tokens and the KV cache."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from turnwise.inference.local.attention import NAME, Packed, packed_attention, packing_order
from turnwise.inference.local.batch_invariant import batch_invariant_sizes, has_remainder
from turnwise.inference.local.fused_forward import FusedForward, is_supported
from turnwise.inference.local.kv_cache import KVCache, Segment
from turnwise.models.attention import (
    AttentionCall,
    UnsupportedAttention,
    attention_named,
    configs_of,
    probe_attention,
)
from turnwise.models.model_lock import lock_of
from turnwise.models.probing import (
    PROBE_ERRORS,
    UnsupportedModel,
    is_out_of_memory,
    largest_gap,
    relative_gap,
)

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
        self._configs = configs_of(model)
        self.device: torch.device = model.device
        layers = _probe_layers(model, context_length)
        self._windows = [layer.window for layer in layers]
        self.kv_cache = _make_kv_cache(model, layers, cache_tokens, max_tokens)
        self._is_deterministic = deterministic
        self._is_freed = False
        self._fused = self._make_fused() if is_supported(model) else None
        self.sizes = self._stable_sizes()
        """Batch-invariant numbers of tokens of a forward; None: any number."""
        if self._fused is not None and (reason := self._probe_error()) is not None:
            _log.warning(
                "the fused forward is not used for %s: %s. Its own modules are slower.",
                type(model).__name__,
                reason,
            )
            self._fused = None
            self.sizes = self._stable_sizes()
        if self._fused is None and (reason := self._probe_error()) is not None:
            raise _unsupported(model, reason)
        self._addresses = [p.data_ptr() for p in model.parameters()]

    @property
    def merges_adapters(self) -> bool:
        """Whether the forward has the adapters merged in, those of freed copies too."""
        return self._fused is not None or self._is_freed

    @property
    def max_forward_tokens(self) -> int | None:
        """Maximum number of tokens of one forward; None: any number."""
        return None if self.sizes is None else self.sizes[-1]

    @property
    def block(self) -> int | None:
        """The tokens of a sequence that attention computes together; None: those of a chunk.

        In batch-invariant mode a token's bits depend on the tokens before it, and on where its
        segment begins and ends. With segments that end where a block does, whole blocks at the
        beginning of two prompts have the same bits: one prompt can copy them from the other.
        """
        tile = self.max_forward_tokens
        if tile is None or self.device.type != "cpu":
            return None
        # A chunk of `tile` tokens must end where a block does.
        return _CPU_BLOCK if tile % _CPU_BLOCK == 0 else None

    @torch.no_grad()
    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Compute chunks of several sequences; return logits [chunks that want them, V]."""
        pieces: list[tuple[Segment, Sequence[int], int | None]] = []
        """Segments, their tokens, and the number of the chunk that ends with each."""
        for number, chunk in enumerate(chunks):
            start, length = chunk.past, chunk.past + len(chunk.ids)
            block = self.block or length
            while start < length:  # cut where a block of the sequence ends
                end = min(start - start % block + block, length)
                new_ids = chunk.ids[start - chunk.past : end - chunk.past]
                segment = Segment(chunk.region, start, end - start)
                pieces.append((segment, new_ids, number if end == length else None))
                start = end
        num_tokens = sum(len(chunk.ids) for chunk in chunks)
        fill = self.padded_size(num_tokens) - num_tokens
        pieces += [(Segment(self.kv_cache.scratch, 0, 1), [0], None)] * fill
        pieces.sort(key=lambda piece: packing_order(piece[0]))
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        last_rows: dict[int | None, int] = {}
        for segment, new_ids, chunk_that_ends in pieces:
            end = segment.past + segment.num_new
            ids += new_ids
            positions += range(segment.past, end)
            slots += range(segment.region + segment.past, segment.region + end)
            last_rows[chunk_that_ends] = len(ids) - 1
        table = torch.tensor([ids, positions, slots]).to(self.device, non_blocking=True)
        packed = Packed([segment for segment, _, _ in pieces], self.kv_cache, table[2])
        wanted = [last_rows[i] for i, chunk in enumerate(chunks) if chunk.wants_logits]
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
        with lock_of(self.model), attention_named(self._configs, NAME):
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
        before, now = self._addresses, [p.data_ptr() for p in self.model.parameters()]
        if self._is_freed or (now != before and self._fused is not None):
            self._fused = self._make_fused()
            now = [p.data_ptr() for p in self.model.parameters()]
        elif self._fused is not None:
            self._fused.merge()
        have_moved = now != before or self._is_freed
        self._addresses, self._is_freed = now, False
        return have_moved

    def free_merged(self) -> bool:
        """Free copies of weights with adapters until `take_new_weights`; whether there were any."""
        if self._fused is None or not self._fused.has_merged:
            return False
        self._fused, self._is_freed = None, True
        return True

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
                _log.warning(
                    "%s has %s layers, whose rounding depends on the other tokens of a forward: "
                    "in deterministic mode each token is computed by itself, which is slow. "
                    "deterministic=False computes them together.",
                    type(self.model).__name__,
                    type(module).__name__,
                )
                return [1]
        sizes = batch_invariant_sizes(layers)
        if self.device.type != "cpu":
            return sizes
        # The activation functions, of which we know only that a layer follows them.
        widths = {width for _, _, width in layers}
        return [n for n in sizes if not any(has_remainder(n * width) for width in widths)] or [1]

    def _probe_error(self) -> str | None:
        """Return why forwards over the cache differ from the model's; None if they do not."""
        try:
            gap = self._gap_to_plain_forward()
        except PROBE_ERRORS as error:
            if is_out_of_memory(error):  # not a property of the model
                raise
            return f"{type(error).__name__}: {error}"
        if gap <= largest_gap(self.kv_cache.storage.dtype):
            return None
        return f"its logits are {gap:.2g} away from those of a plain forward"

    @torch.no_grad()
    def _gap_to_plain_forward(self) -> float:
        """Compare two sequences computed in chunks with plain forwards."""
        vocab_size = self.model.get_input_embeddings().num_embeddings
        small = [window for window in self._windows if window is not None and window <= 32]
        first = [(7 * i + 3) % vocab_size for i in range(11 + max(small, default=0))]
        other = [(5 * i + 1) % vocab_size for i in range(4)]
        a, b = self.kv_cache.alloc(len(first)) or 0, self.kv_cache.alloc(len(other)) or 0
        cut, last = len(first) // 2, len(first) - 1
        steps = [
            [(a, first, 0, cut), (b, other, 0, 3)],
            [(b, other, 3, 4), (a, first, cut, last)],
            [(a, first, last, last + 1)],
        ]
        longest = self.max_forward_tokens
        if longest is not None and longest < len(first):  # token by token
            both = ((b, other), (a, first))
            steps = [[(at, ids, i, i + 1)] for at, ids in both for i in range(len(ids))]
        logits = [
            self.forward([Chunk(ids[i:j], i, at, j == len(ids)) for at, ids, i, j in step])
            for step in steps
        ]
        got = torch.cat(logits)
        self.kv_cache.free(a)
        self.kv_cache.free(b)
        plain = [
            self.model(torch.tensor([ids], device=self.device), use_cache=False).logits[0, -1]
            for ids in (other, first)
        ]
        return relative_gap(got, torch.stack(plain).float())


def _make_kv_cache(
    model: nn.Module, layers: Sequence[AttentionCall], cache_tokens: int | None, max_tokens: int
) -> KVCache:
    num_layers, num_heads, width = len(layers), layers[0].num_kv_heads, layers[0].width
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


def _unsupported(model: Any, reason: object) -> UnsupportedModel:
    kind = type(model).__name__
    error = UnsupportedModel(f"{kind} does not run on the local engine: {reason}.")
    error.add_note("Use backend='transformers'.")
    return error


def _probe_layers(model: Any, context_length: int) -> list[AttentionCall]:
    """Return the attention that each layer of a model needs, within a context of so many tokens.

    Raises `UnsupportedModel` unless each layer attends once, with keys and values of one shape,
    and tokens reach each other in no other way.
    """
    try:
        calls = probe_attention(model, context_length)
    except UnsupportedAttention as error:
        raise _unsupported(model, error) from error.__cause__
    number = model.config.get_text_config().num_hidden_layers
    layers = sorted(call.layer for call in calls)
    if missing := [index for index in range(number) if index not in layers]:
        raise _unsupported(
            model,
            f"{len(missing)} of its {number} layers (the first is layer {missing[0]}) have no "
            "attention that can be replaced",
        )
    if layers != list(range(number)):
        raise _unsupported(model, f"its {number} layers attend {len(layers)} times")
    if len({(call.num_kv_heads, call.width) for call in calls}) > 1:
        raise _unsupported(
            model, "its layers differ in the number or width of their key and value heads"
        )
    return sorted(calls, key=lambda call: call.layer)
