"""What an update measures about its batch, whoever computes which part of it."""

from __future__ import annotations

import torch

from turnwise.algo.correction import compute_importance_weights, measure_log_prob_gap
from turnwise.algo.losses.value import explained_variance
from turnwise.algo.masked import masked_mean
from turnwise.learner.batch import PPOBatch
from turnwise.learner.metric_accumulator import MetricAccumulator
from turnwise.learner.options import LearnerOptions
from turnwise.learner.workers import SingleProcess

_MEAN_SQUARE = "is_mean_square"
"""What `is_ess` is computed from: a mean over tokens can be put together from parts."""


def measure_gap(
    batch: PPOBatch,
    log_probs: torch.Tensor,
    measured: MetricAccumulator,
    num_tokens: int | None = None,
) -> None:
    """How far the learner's log-probs [B, T] are from the sampler's, where the batch has these."""
    sampler = batch.sampler_log_probs
    if sampler is not None:
        weight = batch.num_policy_tokens if num_tokens is None else num_tokens
        gap = measure_log_prob_gap(sampler, log_probs, batch.response_mask)
        measured.average_all(gap, weight)


def weigh_by_importance(
    batch: PPOBatch,
    options: LearnerOptions,
    measured: MetricAccumulator,
    num_tokens: int | None = None,
) -> torch.Tensor | None:
    """How much each token counts [B, T]; None: all alike. The gap is measured with it."""
    old, sampler = batch.old_log_probs, batch.sampler_log_probs
    if old is None or sampler is None:
        return None
    measure_gap(batch, old, measured, num_tokens)
    if options.importance_level is None:
        return None
    weights, metrics = compute_importance_weights(
        sampler,
        old,
        batch.response_mask,
        level=options.importance_level,
        bounds=options.importance_bounds,
    )
    metrics.pop("is_ess")
    metrics[_MEAN_SQUARE] = masked_mean(weights.square(), batch.response_mask)
    weight = batch.num_policy_tokens if num_tokens is None else num_tokens
    measured.average_all(metrics, weight)
    return weights


def with_effective_share(figures: dict[str, float]) -> dict[str, float]:
    """The figures with `is_ess`, (Σ w)² / (n Σ w²), where tokens were weighed."""
    figures = dict(figures)
    square = figures.pop(_MEAN_SQUARE, None)
    if square is not None:
        figures["is_ess"] = figures["is_mean"] ** 2 / max(square, 1e-30)
    return figures


def measure_critic(batch: PPOBatch, workers: SingleProcess, metrics: MetricAccumulator) -> None:
    """How much of the returns the values explain, where the batch has both: over all workers."""
    if batch.values is None or batch.returns is None:
        return
    values, returns, mask = batch.values, batch.returns, batch.response_mask
    if workers.splits_batch:
        parts = workers.gather((values[mask].cpu(), returns[mask].cpu()))
        values, returns = (torch.cat(column) for column in zip(*parts, strict=True))
        mask = torch.ones_like(values, dtype=torch.bool)
    metrics.note("explained_variance", explained_variance(values, returns, mask))
