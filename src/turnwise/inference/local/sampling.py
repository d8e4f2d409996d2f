"""Drawing tokens: one kernel where it can be, the plain functions where filters are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.turns import Turn


def draw_tokens(logits: torch.Tensor, turns: Sequence[Turn]) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each turn from its row of logits [B, V]: (ids [B], their log-probs [B]).

    Each turn draws from its own random stream. The kernel's numbers follow from the seed and the
    token's place in the turn, so that a GPU can go on without asking; a request draws from either
    stream, never from both.
    """
    params = [turn.request.sampling for turn in turns]
    if not logits.is_cuda or any(p.is_filtered for p in params):
        uniforms = [turn.rng.random() for turn in turns]
        return choose_tokens(sampling_log_probs(logits, params), params, uniforms)
    from turnwise.inference.local.kernels import sample_rows

    heat = torch.tensor([p.temperature for p in params]).to(logits.device, non_blocking=True)
    numbers = torch.tensor([[seed_of(turn), len(turn.ids)] for turn in turns])
    seeds, counts = numbers.T.contiguous().to(logits.device, non_blocking=True)
    return sample_rows(logits, heat, seeds, counts.int())


def seed_of(turn: Turn) -> int:
    """A request's seed as a kernel takes it."""
    return turn.request.seed & (2**62 - 1)
