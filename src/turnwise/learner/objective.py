"""The loss of a few episodes, weighed so that the parts of a batch add up to the whole."""

from __future__ import annotations

import math
from typing import Any

import torch

from turnwise.algo.choose import get_policy_loss
from turnwise.algo.kl import estimate_kl
from turnwise.algo.losses.policy import MAX_LOG_RATIO
from turnwise.algo.losses.value import compute_value_loss
from turnwise.algo.masked import BatchTotals, aggregate_loss, keep, masked_mean, wide
from turnwise.algo.types import Metrics
from turnwise.learner.batch import PPOBatch
from turnwise.learner.model import Outputs
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack
from turnwise.learner.workers import SingleProcess


def batch_totals(packs: list[Pack], workers: SingleProcess, horizon: float | None) -> BatchTotals:
    """Return the sizes of a minibatch over all workers, which each pack's loss is a share of."""
    num_tokens = sum(pack.num_policy_tokens for pack in packs)
    counts = [torch.bincount(pack.row_of[pack.targets]) for pack in packs]
    num_sequences = sum(int((count > 0).sum()) for count in counts)
    tokens, sequences = workers.total(num_tokens, num_sequences)
    longest = max((int(count.max()) for count in counts), default=1)
    return BatchTotals(tokens, sequences, workers.largest(longest) if horizon is None else horizon)


def compute_objective(
    outputs: Outputs,
    batch: PPOBatch,
    options: LearnerOptions,
    totals: BatchTotals,
    importance_weights: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics, Metrics]:
    """L = L_policy − c_H · H + c_KL · KL(π ‖ ref) + c_V · L_value over these episodes.

    `selected` are the tokens that the policy loss picked of the whole batch, if it is one that
    does. Returns the loss, its terms, and figures about the policy's tokens. The terms are shares
    of the whole batch's and are to be added up; the figures are means over these tokens.
    """
    mask = batch.response_mask
    mode = options.loss_agg_mode or "token-mean"
    policy_loss, figures = _policy_loss(
        outputs, batch, options, totals, importance_weights, selected
    )
    loss, terms = policy_loss, {"policy_loss": policy_loss.detach()}
    entropy = aggregate_loss(outputs.entropy, mask, mode, totals)
    if options.entropy_coef:
        loss = loss - options.entropy_coef * entropy
    if options.kl_loss_coef:
        kl = estimate_kl(outputs.log_probs, batch.need("ref_log_probs"), options.kl_estimate)
        kl_loss = aggregate_loss(kl, mask, mode, totals)
        loss = loss + options.kl_loss_coef * kl_loss
        figures["kl_ref"] = masked_mean(kl.detach(), mask)
    if outputs.values is not None and batch.returns is not None:
        value_loss, value_figures = compute_value_loss(
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
        figures["value_clip_fraction"] = value_figures["value_clip_fraction"]
    figures["entropy"] = masked_mean(outputs.entropy.detach(), mask)
    figures["kl"] = _moved(outputs.log_probs, batch.behaviour_log_probs, mask)
    terms["loss"] = loss.detach()
    return loss, terms, figures


def _policy_loss(
    outputs: Outputs,
    batch: PPOBatch,
    options: LearnerOptions,
    totals: BatchTotals,
    importance_weights: torch.Tensor | None,
    selected: torch.Tensor | None,
) -> tuple[torch.Tensor, Metrics]:
    settings: dict[str, Any] = {**options.policy_loss_options, "totals": totals}
    if options.loss_agg_mode is not None:
        settings["loss_agg_mode"] = options.loss_agg_mode
    if importance_weights is not None:
        settings["importance_weights"] = importance_weights
    if selected is not None:
        settings["selected"] = selected
    return get_policy_loss(options.policy_loss)(
        batch.behaviour_log_probs,
        outputs.log_probs,
        batch.need("advantages"),
        batch.response_mask,
        **settings,
    )


@torch.no_grad()
def _moved(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """KL(old ‖ now) by k3, which is never negative: what an early stop can go by."""
    change = keep(wide(log_probs) - old_log_probs, mask).clamp_(max=MAX_LOG_RATIO)
    return masked_mean(change.expm1() - change, mask)
