"""The output layer of a language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


@dataclass(frozen=True)
class Head:
    """The map from the last hidden state to logits: s · c · tanh((x W + b) / c)."""

    weight: torch.Tensor
    """[V, D]."""
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    """c; None means no bound."""

    def logits(self, hidden: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        """Return the logits [n, V], in float32 at least, as a new tensor."""
        raw = F.linear(hidden, self.weight, self.bias)
        x = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.softcap is not None:
            x = self.softcap * (x / self.softcap).tanh()
        factor = self.scale / temperature
        return x if factor == 1.0 else x * factor
