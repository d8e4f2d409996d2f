"""Log-probs and entropy of chosen tokens."""

from __future__ import annotations

import torch

from turnwise.errors import ConfigError
from turnwise.learner.fast import log_probs as fast
from turnwise.learner.head import Head
from turnwise.plain_mode import is_plain


def chosen_log_probs(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = True,
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log π(target) after each hidden state, and the entropy: two [M], float32 or wider.

    hidden: [M, D]; targets: [M]. Without entropy the second is zeros. Both have gradients.
    """
    if not temperature > 0:
        raise ConfigError(
            f"temperature got {temperature}, expected a number above 0: a greedy policy has no "
            "log-probs to learn from"
        )
    if not is_plain("learner.log_probs"):
        return fast.chosen_log_probs(hidden, head, targets, temperature, with_entropy, chunk_tokens)
    log_probs = head.logits(hidden, temperature).log_softmax(1)
    chosen = log_probs.gather(1, targets[:, None]).squeeze(1)
    if not with_entropy:
        return chosen, torch.zeros_like(chosen)
    # A token that cannot be sampled has log p = −∞ and adds nothing.
    return chosen, -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(1)


@torch.no_grad()
def sum_squared_probs(
    hidden: torch.Tensor, head: Head, *, temperature: float = 1.0
) -> torch.Tensor:
    """Return Σ_v π(v)² after each hidden state: [M, D] -> [M]."""
    if not is_plain("learner.log_probs"):
        return fast.sum_squared_probs(hidden, head, temperature)
    return head.logits(hidden, temperature).softmax(1).square().sum(1)
