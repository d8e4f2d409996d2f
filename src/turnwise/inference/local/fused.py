"""A leaner forward for models of Llama's kind: the same weights, far fewer small steps.

At decode sizes a model spends more time starting operations than computing them. Llama, Qwen2,
Qwen3 and Mistral share one plan; here it is with norms, rotation, cache and gate each in one step,
and with projections of the same input in one product. `Runner` compares it with a plain forward
before it is used; other models run as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.weight, self.bias)


def _block(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    block = torch.cat([parameter.data for parameter in parameters])
    row = 0
    for parameter in parameters:
        parameter.data = block[row : row + len(parameter)]
        row += len(parameter)
    return block


class FusedForward:
    """Logits of packed tokens, as `Runner.forward_packed` gives them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._ops: Any = _TorchOps
        if model.device.type == "cuda":
            from turnwise.inference.local.kernels import KernelOps

            self._ops = KernelOps
        self.layers: list[tuple[Any, Together, Together]] = []
        for layer in model.model.layers:
            query, key, value, gate, up = _projections(layer)
            self.layers.append((layer, Together([query, key, value]), Together([gate, up])))

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, packed: Packed, rows: torch.Tensor
    ) -> torch.Tensor:
        body, ops = self._model.model, self._ops
        stream = body.embed_tokens(ids)
        cos, sin = body.rotary_emb(stream, position_ids=positions[None])
        cos, sin = ops.halves(cos[0], sin[0])
        change: torch.Tensor | None = None
        for index, (layer, attention_inputs, mlp_inputs) in enumerate(self.layers):
            hidden = ops.add_and_norm(stream, change, layer.input_layernorm)
            projected = attention_inputs(hidden)
            change = self._attention(layer.self_attn, index, projected, cos, sin, packed)
            hidden = ops.add_and_norm(stream, change, layer.post_attention_layernorm)
            change = layer.mlp.down_proj(ops.gate(mlp_inputs(hidden)))
        kept, last = stream[rows], change[rows] if change is not None else None
        logits: torch.Tensor = self._model.lm_head(ops.add_and_norm(kept, last, body.norm))
        return logits

    def _attention(
        self,
        attention: Any,
        index: int,
        projected: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
    ) -> torch.Tensor:
        ops, num_rows, width = self._ops, len(projected), attention.head_dim
        num_kv = attention.k_proj.out_features // width
        heads = projected.view(num_rows, -1, width)
        query, key, value = (
            heads[:, : -2 * num_kv],
            heads[:, -2 * num_kv : -num_kv],
            heads[:, -num_kv:],
        )
        if hasattr(attention, "q_norm"):  # Qwen3
            query = ops.add_and_norm(query.contiguous(), None, attention.q_norm)
            key = ops.add_and_norm(key.contiguous(), None, attention.k_norm)
        query = ops.rotate_and_store(query, key, value, cos, sin, packed, index)
        window = getattr(attention, "sliding_window", None)
        seen = packed.attend(index, query, attention.scaling, window)
        output: torch.Tensor = attention.o_proj(seen.reshape(num_rows, -1))
        return output


class _TorchOps:
    """The few steps in plain torch."""

    @staticmethod
    def add_and_norm(stream: torch.Tensor, change: torch.Tensor | None, norm: Any) -> torch.Tensor:
        """Add a layer's output to the stream, in place; the stream, normed."""
        if change is not None:
            stream += change
        return F.rms_norm(stream, norm.weight.shape, norm.weight, norm.variance_epsilon)

    @staticmethod
    def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def halves(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rotation (a cos − b sin, b cos + a sin), with its sign inside the sine."""
        half = sin.shape[-1] // 2
        return cos, torch.cat((-sin[:, :half], sin[:, half:]), 1)

    @staticmethod
    def rotate_and_store(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Packed,
        layer: int,
    ) -> torch.Tensor:
        """Rotate queries and keys by their positions; keep keys and values; the queries."""
        num_heads = query.shape[1]
        both = torch.cat((query, key), 1)
        low, high = both.chunk(2, -1)
        turned = torch.cat((high, low), -1)
        both.mul_(cos[:, None]).addcmul_(turned, sin[:, None])
        packed.store(layer, both[:, num_heads:], value)
        return both[:, :num_heads]
