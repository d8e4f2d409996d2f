"""A fused forward for models of Llama's architecture, on the same weights.

At decode sizes a model spends more time launching operations than computing them. For Llama, Qwen2,
Qwen3 and Mistral, norms, rotation, cache writes and gates are one operation each here, and
projections of the same input one product. LoRA adapters are merged into a copy of the projections,
anew for each version of the weights. Other models run on their own modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from turnwise.inference.local.attention import Packed
from turnwise.models.adapters import is_adapted, is_mergeable, merged_weight
from turnwise.models.probing import rotary_limit

VECTOR = 64
"""A multiple of the elements that torch computes at once, on any processor and in any data type."""
GRAIN = 32768
"""Elements that torch does not split among threads (`at::internal::GRAIN_SIZE`)."""
_FAMILIES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def is_supported(model: Any) -> bool:
    """Return whether a model is of a supported family; adapters must be mergeable."""
    return (
        type(model).__name__ in _FAMILIES
        and model.config.hidden_act == "silu"
        and type(model.lm_head) is nn.Linear
        and all(is_mergeable(x) for layer in model.model.layers for x in _linears(layer))
    )


def _linears(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    first = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*first, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


class FusedLinear:
    """Linear layers with the same input, computed as one matrix product.

    For a few dozen tokens, CPU libraries are up to half again as fast at weight × tokens as at
    tokens × weightᵀ, and its rounding rarely depends on the number of tokens. The output is then
    transposed in memory, and the operations between two products keep it so.

    Their parameters become views of one block, so that an optimizer step changes it in place. If
    one of them has adapters, the block is a copy with the adapters merged in, see `merge`. They are
    given with their names in the model.
    """

    def __init__(self, layers_by_name: Mapping[str, Any]) -> None:
        layers = list(layers_by_name.values())
        bases = [layer.get_base_layer() if is_adapted(layer) else layer for layer in layers]
        self.merged = layers_by_name if any(map(is_adapted, layers)) else {}
        """The layers whose adapters are merged into a copy of their weights."""
        weights = [base.weight for base in bases]
        self.weight = torch.cat([w.data for w in weights]) if self.merged else _block(weights)
        biases = [base.bias for base in bases if base.bias is not None]
        self.bias = _block(biases) if biases else None
        self.merge()

    def merge(self) -> None:
        """Merge the adapters as they are now, in the same memory; without adapters, do nothing."""
        row = 0
        for name, layer in self.merged.items():
            block = self.weight[row : row + layer.out_features]
            # Rounded to nearest, what small adapters add would be lost.
            block.copy_(merged_weight(layer, name) if is_adapted(layer) else layer.weight.detach())
            row += layer.out_features

    def __call__(self, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Map hidden [N, in] to [N, out], which is stored as [out, N] if transposed."""
        if not transposed:
            return F.linear(hidden, self.weight, self.bias)
        tokens = hidden.t()
        if self.bias is None:
            return torch.mm(self.weight, tokens).t()
        return torch.addmm(self.bias[:, None], self.weight, tokens).t()


def _block(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(parameters) == 1:
        return parameters[0].detach()
    block = torch.cat([parameter.data for parameter in parameters])
    row = 0
    for parameter in parameters:
        parameter.data = block[row : row + len(parameter)]
        row += len(parameter)
    return block


class _Layer:
    """A layer's weights, read from its modules once: attribute lookups cost more than a norm."""

    def __init__(self, layer: Any, window: int | None, names: Mapping[Any, str]) -> None:
        def fused(*layers: Any) -> FusedLinear:
            return FusedLinear({names[layer]: layer for layer in layers})

        query, key, value, output, gate, up, down = _linears(layer)
        attention = layer.self_attn
        has_norms = hasattr(attention, "q_norm")  # Qwen3
        self.attention_norm: torch.Tensor = layer.input_layernorm.weight
        self.attention_inputs = fused(query, key, value)
        self.query_norm: torch.Tensor | None = attention.q_norm.weight if has_norms else None
        self.key_norm: torch.Tensor | None = attention.k_norm.weight if has_norms else None
        self.attention_output = fused(output)
        self.mlp_norm: torch.Tensor = layer.post_attention_layernorm.weight
        self.mlp_inputs = fused(gate, up)
        self.mlp_output = fused(down)
        self.window = window


class FusedForward:
    """Computes the logits of packed tokens, as `Runner.forward_packed` does.

    `windows` are the layers' sliding windows. `deterministic`: the computation does not depend on
    the number of tokens.
    """

    def __init__(self, model: Any, windows: Sequence[int | None], *, deterministic: bool) -> None:
        self._body = model.model
        self._head = FusedLinear({"lm_head": model.lm_head})
        self._is_deterministic = deterministic
        layers = zip(model.model.layers, windows, strict=True)
        names = {module: name for name, module in model.named_modules()}
        self.layers = [_Layer(layer, window, names) for layer, window in layers]
        attention = model.model.layers[0].self_attn
        self._width, self._scale = attention.head_dim, attention.scaling
        self._num_kv = attention.k_proj.out_features // attention.head_dim
        norm = model.model.norm
        self._ops: Any = _TorchOps
        self._epsilon: Any = norm.weight.detach().new_full((1,), norm.variance_epsilon)
        if model.device.type == "cuda":
            from turnwise.inference.local.kernels import KernelOps

            self._ops, self._epsilon = KernelOps, norm.variance_epsilon
        self._rotations: tuple[torch.Tensor, torch.Tensor] | None = None
        """Cosines and sines of every position, if there are not too many."""
        length = rotary_limit(model.config) or model.config.max_position_embeddings
        if length <= 2**17:
            self._rotations = self._rotate(norm.weight, torch.arange(length, device=model.device))
        self._scratch = torch.empty(0)
        weight = self._head.weight
        self.can_be_transposed = weight.device.type == "cpu" and weight.shape[1] >= 256
        """Whether products may be transposed; in a small model the other operations prefer rows."""

    def _rotate(
        self, stream: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of these positions, for the rotation of `rotate_and_store`."""
        if self._rotations is not None:
            cos, sin = self._rotations
            return cos.index_select(0, positions), sin.index_select(0, positions)
        cos, sin = (x[0] for x in self._body.rotary_emb(stream, position_ids=positions[None]))
        if not cos.is_cuda:  # (a cos − b sin, b cos + a sin), with an axis for the heads
            half = sin.shape[-1] // 2
            cos = cos[:, None]
            sin = torch.cat((-sin[:, :half], sin[:, half:]), 1)[:, None]
        return cos, sin

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, packed: Packed, rows: torch.Tensor | None
    ) -> torch.Tensor:
        ops, epsilon = self._ops, self._epsilon
        is_few = 8 <= len(ids) <= 64
        transposed = self.can_be_transposed and (self._is_deterministic or is_few)
        stream = F.embedding(ids, self._body.embed_tokens.weight)
        cos, sin = self._rotate(stream, positions)
        if transposed:
            stream = _as_columns(stream)
        change: torch.Tensor | None = None
        for index, layer in enumerate(self.layers):
            hidden = ops.add_and_norm(stream, change, layer.attention_norm, epsilon)
            change = self._attention(layer, index, hidden, cos, sin, packed, transposed)
            if rows is not None and index == len(self.layers) - 1:
                # After the last attention, only the requested rows are needed.
                stream, change = stream[rows], change[rows]
                if transposed:  # selected rows are rows, and a norm of rows rounds differently
                    stream, change = _as_columns(stream), _as_columns(change)
            hidden = ops.add_and_norm(stream, change, layer.mlp_norm, epsilon)
            wide = self._wide(layer.mlp_inputs, hidden, transposed)
            change = layer.mlp_output(ops.gate(wide), transposed)
        last = ops.add_and_norm(stream, change, self._body.norm.weight, epsilon)
        return self._head(last, transposed).contiguous()

    def is_invariant_at(self, num_tokens: int) -> bool:
        """Whether the operations between the products give a token the same bits in any batch.

        They do with tokens as rows. As columns, a single one is stored like a row, and all of them
        must leave no remainder.
        """
        if not self.can_be_transposed:
            return True
        inner = len(self.layers[0].mlp_inputs.weight) // 2
        return num_tokens > 1 and num_tokens * inner % VECTOR == 0

    def _wide(self, product: FusedLinear, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Compute the widest product into a reused buffer: fresh pages for every layer are slow.

        On a GPU the allocator reuses memory itself.
        """
        if hidden.is_cuda or product.bias is not None:
            return product(hidden, transposed)
        num_tokens, width = len(hidden), len(product.weight)
        if len(self._scratch) < num_tokens * width:
            self._scratch = hidden.new_empty(num_tokens * width)
        buffer = self._scratch[: num_tokens * width]
        if transposed:
            return torch.mm(product.weight, hidden.t(), out=buffer.view(width, num_tokens)).t()
        return torch.mm(hidden, product.weight.t(), out=buffer.view(num_tokens, width))

    @property
    def products(self) -> list[FusedLinear]:
        """All matrix products of the forward."""
        kinds = ("attention_inputs", "attention_output", "mlp_inputs", "mlp_output")
        return [*(getattr(layer, kind) for layer in self.layers for kind in kinds), self._head]

    def _attention(
        self,
        layer: _Layer,
        index: int,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
        transposed: bool,
    ) -> torch.Tensor:
        ops, num_kv = self._ops, self._num_kv
        heads = layer.attention_inputs(hidden, transposed).view(len(hidden), -1, self._width)
        if layer.query_norm is not None and layer.key_norm is not None:
            sizes = [heads.shape[1] - 2 * num_kv, num_kv, num_kv]
            query, key, value = torch.split(heads, sizes, 1)
            query = ops.add_and_norm(query.contiguous(), None, layer.query_norm, self._epsilon)
            key = ops.add_and_norm(key.contiguous(), None, layer.key_norm, self._epsilon)
            heads = torch.cat((query, key, value), 1)
        query = ops.rotate_and_store(heads, num_kv, cos, sin, packed, index)
        attended = packed.attend(index, query, self._scale, layer.window)
        return layer.attention_output(attended.reshape(len(hidden), -1), transposed)


def _as_columns(rows: torch.Tensor) -> torch.Tensor:
    """Return the same [N, width], stored as [width, N]."""
    return rows.t().contiguous().t()


def _unsplit(hidden: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return [N, width] in pieces that torch does not split among its threads.

    Where it splits a tensor depends on N, and the elements before a split are a remainder.
    """
    if hidden.numel() <= GRAIN or torch.get_num_threads() == 1:
        return [hidden]
    if hidden.stride(0) == 1:  # columns, which lie one after the other
        return torch.split(hidden.t().reshape(-1), GRAIN)
    return torch.split(hidden, max(1, GRAIN // hidden.shape[1]))


class _TorchOps:
    """The operations between the products, in torch."""

    @staticmethod
    def add_and_norm(
        stream: torch.Tensor,
        change: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: torch.Tensor,
    ) -> torch.Tensor:
        """Add a layer's output to the stream in place; return the stream, normed."""
        if change is not None:
            stream += change
        # torch's own rms_norm is a dozen operations on a CPU; this is five.
        length = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
        scale = torch.addcmul(epsilon, length, length, value=1.0 / stream.shape[-1]).rsqrt_()
        normed: torch.Tensor = stream * scale
        return normed.mul_(weight)

    @staticmethod
    def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, -1)
        for piece in _unsplit(gate):
            F.silu(piece, inplace=True)
        return gate.mul_(up)

    @staticmethod
    def rotate_and_store(
        heads: torch.Tensor,
        num_kv: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
        layer: int,
    ) -> torch.Tensor:
        """Rotate queries and keys, store keys and values in the cache, return the queries.

        `heads` [N, H + 2 K, D] are queries, keys and values, in this order.
        """
        both = heads.narrow(1, 0, heads.shape[1] - num_kv)
        low, high = both.chunk(2, -1)
        turned = torch.cat((high, low), -1)
        turned.mul_(sin).addcmul_(both, cos)
        num_heads = heads.shape[1] - 2 * num_kv
        packed.store(
            layer, turned.narrow(1, num_heads, num_kv), heads.narrow(1, num_heads + num_kv, num_kv)
        )
        return turned.narrow(1, 0, num_heads)
