"""The tokens that a policy loss picks of a whole minibatch, before it is computed in packs."""

from __future__ import annotations

import torch

from turnwise.algo.choose import get_policy_loss
from turnwise.learner.batch import PPOBatch
from turnwise.learner.options import LearnerOptions
from turnwise.learner.workers import SingleProcess


def selects_tokens(options: LearnerOptions) -> bool:
    """Whether the policy loss picks tokens by what it knows of all others."""
    return get_policy_loss(options.policy_loss).selection is not None


@torch.no_grad()
def select_tokens(
    batch: PPOBatch,
    rows: torch.Tensor,
    log_probs: torch.Tensor,
    options: LearnerOptions,
    workers: SingleProcess,
    generator: torch.Generator,
) -> torch.Tensor:
    """Which policy tokens the loss picks of these rows and of the other workers': [B, T] bool.

    The choice depends on the minibatch alone, not on how it is divided: tokens are in the order of
    the batch, and every worker draws from a generator with the same seed.
    """
    mask = torch.zeros_like(batch.response_mask)
    mask[rows.to(mask.device)] = batch.response_mask[rows.to(mask.device)]
    old_log_probs = batch.old_log_probs
    if old_log_probs is None:
        old_log_probs = batch.need("sampler_log_probs") if batch.sampler_is_exact else log_probs
    columns = (mask.nonzero()[:, 0], old_log_probs[mask], log_probs[mask])
    own = [x.cpu() for x in (*columns, batch.need("advantages")[mask])]
    gathered = workers.gather(own)
    row_of, *tokens = (torch.cat(column) for column in zip(*gathered, strict=True))
    # Where all have the same batch, whose rows are divided among them.
    order = torch.arange(len(row_of)) if workers.splits_batch else row_of.argsort(stable=True)
    selection = get_policy_loss(options.policy_loss).selection
    assert selection is not None
    settings = {k: v for k, v in options.policy_loss_options.items() if k in selection.options}
    if selection.is_random:
        settings["generator"] = generator
    picked = torch.empty(len(row_of), dtype=torch.bool)
    picked[order] = selection.function(*(x[order] for x in tokens), **settings)
    start = sum(len(part[0]) for part in gathered[: workers.rank])
    selected = torch.zeros_like(mask)
    selected[mask] = picked[start : start + len(own[0])].to(mask.device)
    return selected
