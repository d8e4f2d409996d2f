"""Fused linear layers, with the tokens as rows or as columns of the matrix product.

For a few dozen tokens, CPU libraries are up to half again as fast at weight × tokens as at tokens ×
weightᵀ, and its rounding rarely depends on the number of tokens. The output is then transposed in
memory, and the operations between two products keep it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.models.adapters import is_adapted, merged_weight
from turnwise.models.rounding import round_weight, threshold_key


class FusedLinear:
    """Linear layers with the same input, computed as one matrix product.

    Their parameters become views of one block, so that an optimizer step changes it in place. If
    one of them has adapters, the block is a copy with the adapters merged in, see `merge`. They are
    given with their names in the model.
    """

    def __init__(self, layers_by_name: Mapping[str, Any]) -> None:
        layers = list(layers_by_name.values())
        has_adapters = [is_adapted(layer) for layer in layers]
        bases = [
            layer.get_base_layer() if adapted else layer
            for layer, adapted in zip(layers, has_adapters, strict=True)
        ]
        self._merged = layers_by_name if any(has_adapters) else {}
        weights = [base.weight for base in bases]
        self.weight = torch.cat([w.data for w in weights]) if self._merged else _block(weights)
        biases = [base.bias for base in bases if base.bias is not None]
        self.bias = _block(biases) if biases else None
        self.merge()

    def merge(self) -> None:
        """Merge the adapters as they are now, in the same memory; without adapters, do nothing."""
        row = 0
        for name, layer in self._merged.items():
            block = self.weight[row : row + layer.out_features]
            merged = merged_weight(layer) if is_adapted(layer) else layer.weight.detach()
            # Rounded to nearest, what small adapters add would be lost.
            block.copy_(round_weight(merged, block.dtype, threshold_key(f"{name}.weight")))
            row += layer.out_features

    @property
    def is_merged(self) -> bool:
        """Whether the weight is a copy with adapters merged in."""
        return bool(self._merged)

    def __call__(self, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Map hidden [N, in] to [N, out], which is stored as [out, N] if transposed."""
        if not transposed:
            return F.linear(hidden, self.weight, self.bias)
        tokens = hidden.t()
        if self.bias is None:
            return torch.mm(self.weight, tokens).t()
        return torch.addmm(self.bias[:, None], self.weight, tokens).t()

    def into(self, buffer: torch.Tensor, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Compute the same into a flat buffer that is large enough."""
        if self.bias is not None:
            return self(hidden, transposed)
        num_tokens, width = len(hidden), len(self.weight)
        flat = buffer[: num_tokens * width]
        if transposed:
            return torch.mm(self.weight, hidden.t(), out=flat.view(width, num_tokens)).t()
        return torch.mm(hidden, self.weight.t(), out=flat.view(num_tokens, width))


def _block(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(parameters) == 1:
        return parameters[0].detach()
    block = torch.cat([parameter.data for parameter in parameters])
    row = 0
    for parameter in parameters:
        parameter.data = block[row : row + len(parameter)]
        row += len(parameter)
    return block
