"""The loss of some episodes, weighted so that the packs of a minibatch add up to the whole."""

from __future__ import annotations

import math
from typing import Any

import torch

from turnwise.algo.choose import get_policy_loss
from turnwise.algo.kl import estimate_kl
from turnwise.algo.losses.policy import MAX_LOG_RATIO
from turnwise.algo.losses.value import compute_value_loss
from turnwise.algo.masked import BatchTotals, aggregate_loss, keep, masked_mean, wide
from turnwise.algo.types import TensorMetrics
from turnwise.learner.batch import PPOBatch
from turnwise.learner.model import Outputs
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack
from turnwise.learner.workers import SingleProcess


def batch_totals(packs: list[Pack], workers: SingleProcess, horizon: float | None) -> BatchTotals:
    """Return the sizes of a minibatch over all workers, which each pack's loss is a share of."""
    num_tokens = sum(pack.num_policy_tokens for pack in packs)
    counts = [torch.bincount(pack.target_rows) for pack in packs]
    num_sequences = sum(int((count > 0).sum()) for count in counts)
    tokens, sequences = workers.total(num_tokens, num_sequences)
    longest = max((int(count.max()) for count in counts), default=1)
    return BatchTotals(tokens, sequences, workers.maximum(longest) if horizon is None else horizon)


def compute_objective(
    outputs: Outputs,
    batch: PPOBatch,
    options: LearnerOptions,
    totals: BatchTotals,
    importance_weights: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TensorMetrics, TensorMetrics]:
    """L = L_policy − c_H · H + c_KL · KL(π ‖ ref) + c_V · L_value over these episodes.

    `selected` are the tokens that the policy loss picked of the whole minibatch, if it does so.
    Returns the loss, its terms, which add up over the packs of a minibatch, and metrics, which are
    means over the policy tokens of these episodes.
    """
    mask = batch.response_mask
    mode = options.loss_agg_mode or "token-mean"
    settings: dict[str, Any] = {**options.policy_loss_options, "totals": totals}
    if options.loss_agg_mode is not None:
        settings["loss_agg_mode"] = options.loss_agg_mode
    if importance_weights is not None:
        settings["importance_weights"] = importance_weights
    if selected is not None:
        settings["selected"] = selected
    policy_loss, metrics = get_policy_loss(options.policy_loss)(
        batch.behaviour_log_probs, outputs.log_probs, batch.need("advantages"), mask, **settings
    )
    loss, terms = policy_loss, {"policy_loss": policy_loss.detach()}
    if options.entropy_coef:
        entropy = aggregate_loss(outputs.entropy, mask, mode, totals)
        loss = loss - options.entropy_coef * entropy
    if options.kl_loss_coef:
        kl = estimate_kl(outputs.log_probs, batch.need("ref_log_probs"), options.kl_estimate)
        loss = loss + options.kl_loss_coef * aggregate_loss(kl, mask, mode, totals)
        metrics["kl_ref"] = masked_mean(kl.detach(), mask)
    if outputs.values is not None and batch.returns is not None:
        value_loss, value_metrics = compute_value_loss(
            outputs.values,
            batch.returns,
            batch.need("values"),
            mask,
            math.inf if options.value_clip is None else options.value_clip,
            loss_agg_mode=mode,
            totals=totals,
        )
        loss = loss + options.value_coef * value_loss
        terms["value_loss"] = value_loss.detach()
        metrics["value_clip_fraction"] = value_metrics["value_clip_fraction"]
    metrics["entropy"] = masked_mean(outputs.entropy.detach(), mask)
    metrics["kl"] = _kl_from_old(outputs.log_probs, batch.behaviour_log_probs, mask)
    terms["loss"] = loss.detach()
    return loss, terms, metrics


@torch.no_grad()
def _kl_from_old(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return KL(old ‖ now) by the estimate k3, which is never negative, as early stopping needs."""
    change = keep(wide(log_probs) - old_log_probs, mask).clamp_(max=MAX_LOG_RATIO)
    return masked_mean(change.expm1() - change, mask)


@torch.no_grad()
def select_tokens(
    batch: PPOBatch,
    rows: torch.Tensor,
    log_probs: torch.Tensor,
    options: LearnerOptions,
    workers: SingleProcess,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return the tokens that a policy loss with a `TokenSelection` picks: [B, T] bool.

    They are picked of these rows and of the other workers'. The choice does not depend on how the
    minibatch is split: tokens are in the order of the batch, and every worker draws from a
    generator with the same seed.
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
    # Workers that all have the same batch have divided its rows: back to the order of the batch.
    order = torch.arange(len(row_of)) if workers.splits_batch else row_of.argsort(stable=True)
    selection = get_policy_loss(options.policy_loss).selection
    assert selection is not None
    settings = {k: v for k, v in options.policy_loss_options.items() if k in selection.options}
    if selection.is_random:
        settings["generator"] = generator
    picked = torch.empty(len(row_of), dtype=torch.bool)
    picked[order] = selection.function(*(x[order] for x in tokens), **settings)
    start = sum(len(columns[0]) for columns in gathered[: workers.rank])
    selected = torch.zeros_like(mask)
    selected[mask] = picked[start : start + len(own[0])].to(mask.device)
    return selected
