"""How many tokens fit into the memory of a GPU at once, and which layers must be checkpointed.

An estimate, made before the first forward from the memory that is free then. For the backward, a
decoder layer saves per token about 10 hidden states (norms, queries, keys, values, attention, the
residual stream) and 3 inner states of the MLP, or 4 with adapters; a checkpointed layer saves its
input alone, and one layer at a time is computed again. Half of the free memory is used: the other
half is for what the estimate does not know, such as the logits of a chunk, fragmentation and a KV
cache that grows. Where it is wrong, the update is computed again in smaller packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from turnwise.models.adapters import adapted_layers

CPU_TOKENS = 4096
_MAX_TOKENS = 65536
_USED_SHARE = 0.5


class LayerShape(NamedTuple):
    """The layers of a decoder, as far as their activations are concerned."""

    num_layers: int
    width: int
    inner: int
    """Width of the MLP; of a mixture of experts, the sum over the experts of a token."""
    has_adapters: bool = False

    @classmethod
    def from_model(cls, model: Any) -> LayerShape:
        config = model.config.get_text_config()
        width = getattr(config, "hidden_size", 0)
        inner = getattr(config, "intermediate_size", None) or 4 * width
        num_experts = getattr(config, "num_experts_per_tok", None) or 0
        if num_experts:
            inner = num_experts * (getattr(config, "moe_intermediate_size", None) or inner)
        num_layers = getattr(config, "num_hidden_layers", 0)
        return cls(num_layers, width, inner, bool(adapted_layers(model)))

    def bytes_per_token(self, itemsize: int, num_checkpointed: int = 0) -> int:
        """Return what all layers save per token, the first ones checkpointed."""
        num_saved = 10 * self.width + (4 if self.has_adapters else 3) * self.inner
        # The layer that is computed again saves everything for a moment.
        num_whole = self.num_layers - num_checkpointed + (num_checkpointed > 0)
        return itemsize * (num_whole * num_saved + num_checkpointed * self.width)


def plan_memory(
    free_bytes: int,
    shapes: Sequence[LayerShape],
    itemsize: int,
    *,
    longest: int = CPU_TOKENS,
    checkpointing: bool | None = None,
) -> tuple[int, int]:
    """Return how many tokens are computed at once, and with how many checkpointed layers.

    `shapes` are those of the models of one forward (the policy, and a separate critic), `longest`
    the tokens of the longest episode. `checkpointing` None checkpoints as few layers as it takes to
    compute that episode, or 4,096 tokens; True all of them; False none.

    >>> one_and_a_half_billion = LayerShape(num_layers=28, width=1536, inner=8960)
    >>> plan_memory(100 * 2**30, [one_and_a_half_billion], itemsize=2)
    (16384, 0)
    >>> plan_memory(20 * 2**30, [one_and_a_half_billion], itemsize=2, longest=16384)
    (16384, 23)
    """
    most_layers = max(shape.num_layers for shape in shapes)
    numbers = {None: range(most_layers + 1), True: [most_layers], False: [0]}[checkpointing]
    wanted = max(longest, CPU_TOKENS)
    tokens = number = 0
    for number in numbers:
        sizes = [s.bytes_per_token(itemsize, min(number, s.num_layers)) for s in shapes]
        tokens = int(free_bytes * _USED_SHARE) // sum(sizes)
        if tokens >= wanted:
            break
    # Down to 2ⁿ or 3 · 2ⁿ, so that a little more or less free memory changes nothing.
    sizes = [size << n for n in range(8, 17) for size in (1, 3)]
    rounded = max(size for size in sizes if size <= min(max(tokens, 256), _MAX_TOKENS))
    return rounded, number


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that new tensors can have, with torch's cached blocks."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached
