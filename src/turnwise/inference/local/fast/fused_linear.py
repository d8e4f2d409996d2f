"""The matrix products of a model's layers, with the tokens as rows or as columns.

For a few dozen tokens at once a CPU's library is up to half again as fast at weight × tokens as at
tokens × weightᵀ, though both are the same numbers; and it is the one in which more tokens beside
it rarely change a token's last bit. What comes out then lies in memory column by column, and the
steps between two products keep it so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn


class FusedLinear:
    """Layers with the same input, laid side by side in memory, so that one product does all.

    Their parameters become views of one block, so that an optimizer's step changes what is read
    here. There is no second copy.
    """

    def __init__(self, *parts: nn.Linear) -> None:
        self.weight = _block([part.weight for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        self.bias = _block(biases) if biases else None

    def __call__(self, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """hidden [N, in]; [N, out], which lies in memory as [out, N] if transposed."""
        if not transposed:
            return F.linear(hidden, self.weight, self.bias)
        tokens = hidden.t()
        if self.bias is None:
            return torch.mm(self.weight, tokens).t()
        return torch.addmm(self.bias[:, None], self.weight, tokens).t()

    def into(self, buffer: torch.Tensor, hidden: torch.Tensor, transposed: bool) -> torch.Tensor:
        """Write the same into a flat buffer that is large enough."""
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
