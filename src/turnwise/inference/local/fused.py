"""A leaner forward for models of Llama's kind: the same weights, far fewer small steps.

At decode sizes a model spends more time starting operations than computing them. Llama, Qwen2,
Qwen3 and Mistral share one plan; here it is with norms, rotation, cache and gate each in one step,
and with projections of the same input in one product. `Runner` compares it with a plain forward
before it is used; other models run as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from turnwise.inference.local.attention import Packed

_FAMILIES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def fits(model: Any) -> bool:
    """Whether a model is of a family that this forward was written for, without adapters."""
    return (
        type(model).__name__ in _FAMILIES
        and model.config.hidden_act == "silu"
        and all(type(x) is nn.Linear for layer in model.model.layers for x in _projections(layer))
    )


def _projections(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]


class Together:
    """Projections of the same input, laid side by side in memory, so that one product does all.

    Their parameters stay what they are, and become views of one block: whoever trains them changes
    what is read here. There is no second copy.
    """

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self.parts = list(parts)
        self.weight = _block([part.weight for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        self.bias = _block(biases) if biases else None

    def __call__(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None and self.bias is None:
            return torch.mm(hidden, self.weight.t(), out=out)
        return F.linear(hidden, self.weight, self.bias)


def _block(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    block = torch.cat([parameter.data for parameter in parameters])
    row = 0
    for parameter in parameters:
        parameter.data = block[row : row + len(parameter)]
        row += len(parameter)
    return block


@dataclass(frozen=True)
class _Layer:
    """A layer's weights, taken out of its modules once: looking them up costs more than a norm."""

    attention_norm: torch.Tensor
    attention_inputs: Together
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    attention_output: nn.Linear
    mlp_norm: torch.Tensor
    mlp_inputs: Together
    mlp_output: nn.Linear
    window: int | None

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        query, key, value, gate, up = _projections(layer)
        attention = layer.self_attn
        has_norms = hasattr(attention, "q_norm")  # Qwen3
        return cls(
            layer.input_layernorm.weight,
            Together([query, key, value]),
            attention.q_norm.weight if has_norms else None,
            attention.k_norm.weight if has_norms else None,
            attention.o_proj,
            layer.post_attention_layernorm.weight,
            Together([gate, up]),
            layer.mlp.down_proj,
            getattr(attention, "sliding_window", None),
        )


class FusedForward:
    """Logits of packed tokens, as `Runner.forward_packed` gives them."""

    def __init__(self, model: Any) -> None:
        self._body, self._head = model.model, model.lm_head
        self.layers = [_Layer.of(layer) for layer in model.model.layers]
        attention = model.model.layers[0].self_attn
        self._width, self._scale = attention.head_dim, attention.scaling
        self._num_kv = attention.k_proj.out_features // attention.head_dim
        self._ops: Any = _TorchOps
        if model.device.type == "cuda":
            from turnwise.inference.local.kernels import KernelOps

            self._ops = KernelOps
        norm = model.model.norm
        self._epsilon = self._ops.constant(norm.variance_epsilon, norm.weight.detach())
        self._rotations = self._make_rotations(model)
        self._room = torch.empty(0, 0)

    def _make_rotations(self, model: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Cosines and sines of every position, where they do not depend on the text's length."""
        config = model.config
        kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if kind in {"dynamic", "longrope"} or config.max_position_embeddings > 2**17:
            return None
        positions = torch.arange(config.max_position_embeddings, device=model.device)
        cos, sin = self._body.rotary_emb(self._body.norm.weight, position_ids=positions[None])
        cos, sin = self._ops.signed(cos[0], sin[0])
        return cos, sin

    def _rotation(
        self, stream: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._rotations is not None:
            cos, sin = self._rotations
            return cos[positions], sin[positions]
        cos, sin = self._body.rotary_emb(stream, position_ids=positions[None])
        cos, sin = self._ops.signed(cos[0], sin[0])
        return cos, sin

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        packed: Packed,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        ops, epsilon = self._ops, self._epsilon
        stream = F.embedding(ids, self._body.embed_tokens.weight)
        cos, sin = self._rotation(stream, positions)
        change: torch.Tensor | None = None
        for index, layer in enumerate(self.layers):
            hidden = ops.add_and_norm(stream, change, layer.attention_norm, epsilon)
            change = self._attention(layer, index, hidden, cos, sin, packed)
            hidden = ops.add_and_norm(stream, change, layer.mlp_norm, epsilon)
            wide = self._workspace(len(hidden), len(layer.mlp_inputs.weight))
            change = layer.mlp_output(ops.gate(layer.mlp_inputs(hidden, wide)))
        if rows is not None:
            stream, change = stream[rows], change[rows] if change is not None else None
        last = ops.add_and_norm(stream, change, self._body.norm.weight, epsilon)
        logits: torch.Tensor = self._head(last)
        return logits

    def _workspace(self, num_rows: int, width: int) -> torch.Tensor | None:
        """Room for the widest product, kept: a thread that allocates it anew for every layer pays
        for fresh pages each time. On a GPU the allocator keeps it."""
        if self._head.weight.is_cuda:
            return None
        if self._room.shape[1] != width or len(self._room) < num_rows:
            self._room = self._head.weight.new_empty(num_rows, width)
        return self._room[:num_rows]

    def _attention(
        self,
        layer: _Layer,
        index: int,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
    ) -> torch.Tensor:
        ops, num_kv = self._ops, self._num_kv
        heads = layer.attention_inputs(hidden).view(len(hidden), -1, self._width)
        if layer.query_norm is not None and layer.key_norm is not None:
            parts = [heads.shape[1] - 2 * num_kv, num_kv, num_kv]
            query, key, value = torch.split(heads, parts, 1)
            query = ops.add_and_norm(query.contiguous(), None, layer.query_norm, self._epsilon)
            key = ops.add_and_norm(key.contiguous(), None, layer.key_norm, self._epsilon)
            heads = torch.cat((query, key, value), 1)
        query = ops.rotate_and_store(heads, num_kv, cos, sin, packed, index)
        seen = packed.attend(index, query, self._scale, layer.window)
        output: torch.Tensor = layer.attention_output(seen.reshape(len(hidden), -1))
        return output


class _TorchOps:
    """The few steps in plain torch."""

    @staticmethod
    def constant(value: float, like: torch.Tensor) -> torch.Tensor:
        return like.new_full((1,), value)

    @staticmethod
    def add_and_norm(
        stream: torch.Tensor,
        change: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: torch.Tensor,
    ) -> torch.Tensor:
        """Add a layer's output to the stream, in place; the stream, normed."""
        if change is not None:
            stream += change
        # torch's own rms_norm is a dozen steps on a CPU; this is five.
        length = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
        scale = torch.addcmul(epsilon, length, length, value=1.0 / stream.shape[-1]).rsqrt_()
        normed: torch.Tensor = stream * scale
        return normed.mul_(weight)

    @staticmethod
    def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate, inplace=True).mul_(up)

    @staticmethod
    def signed(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For the rotation (a cos − b sin, b cos + a sin): its sign goes into the sine.

        With an axis for the heads.
        """
        half = sin.shape[-1] // 2
        return cos[:, None], torch.cat((-sin[:, :half], sin[:, half:]), 1)[:, None]

    @staticmethod
    def rotate_and_store(
        heads: torch.Tensor,
        num_kv: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
        layer: int,
    ) -> torch.Tensor:
        """Rotate queries and keys by their positions; keep keys and values; the queries.

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
