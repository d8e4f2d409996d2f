"""Samples one token for each turn, by torch on a CPU and by one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.worker import EngineTurn


def draw_tokens(
    logits: torch.Tensor, turns: Sequence[EngineTurn]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token for each turn from logits [B, V]: (ids [B], their log-probs [B]).

    Each turn has its own random stream, which does not depend on the other turns.
    """
    if logits.is_cuda:
        return _draw_by_kernel(logits, turns)
    params = [turn.request.sampling for turn in turns]
    uniforms = [turn.rng.random() for turn in turns]
    return choose_tokens(sampling_log_probs(logits, params), params, uniforms)


def seed_of(turn: EngineTurn) -> int:
    """Return a request's seed in the range of the kernel."""
    return turn.request.seed & (2**62 - 1)


def _draw_by_kernel(
    logits: torch.Tensor, turns: Sequence[EngineTurn]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample filtered rows and the others by one launch each.

    The kernel sums float32 and bfloat16 in different orders. So only filtered rows, whose filters
    need float32, are converted; the bits of the others must not depend on them.
    """
    params = [turn.request.sampling for turn in turns]
    filtered = [i for i, p in enumerate(params) if p.is_filtered]
    if not filtered:
        return _launch(logits, [p.temperature for p in params], turns)
    plain = [i for i, p in enumerate(params) if not p.is_filtered]
    # Log-probs after temperature and filters are logits at temperature 1.
    chosen = sampling_log_probs(logits[filtered], [params[i] for i in filtered])
    found = _launch(chosen, [1.0] * len(filtered), [turns[i] for i in filtered])
    if not plain:
        return found
    others = _launch(
        logits[plain], [params[i].temperature for i in plain], [turns[i] for i in plain]
    )
    order = torch.tensor([*filtered, *plain]).argsort().to(logits.device)
    ids, log_probs = (torch.cat(pair)[order] for pair in zip(found, others, strict=True))
    return ids, log_probs


def _launch(
    logits: torch.Tensor, temperatures: Sequence[float], turns: Sequence[EngineTurn]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; its random numbers depend on seed and token index, as in a graph."""
    from turnwise.inference.local.kernels import sample_rows

    numbers = torch.tensor([[seed_of(turn), len(turn.ids)] for turn in turns])
    seeds, counts = numbers.T.contiguous().to(logits.device, non_blocking=True)
    scales = torch.tensor(temperatures).to(logits.device, non_blocking=True)
    return sample_rows(logits, scales, seeds, counts.int())
