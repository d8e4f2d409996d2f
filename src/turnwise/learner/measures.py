"""What an update measures about its batch before its first step."""

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
"""What `is_ess` is computed from: a mean over tokens can be combined from those of workers."""


def measure_gap(
    batch: PPOBatch, log_probs: torch.Tensor, num_tokens: int, measured: MetricAccumulator
) -> None:
    """Measure how far the learner's log-probs [B, T] are from the sampler's, if there are any.

    `num_tokens` is the number of policy tokens: counting them here would wait for the GPU.
    """
    if batch.sampler_log_probs is not None:
        gap = measure_log_prob_gap(batch.sampler_log_probs, log_probs, batch.response_mask)
        measured.average_all(gap, num_tokens)


def importance_weights(
    batch: PPOBatch, options: LearnerOptions, num_tokens: int, measured: MetricAccumulator
) -> torch.Tensor | None:
    """Return the importance weights of the tokens [B, T], or None; measure them and the gap."""
    old, sampler = batch.old_log_probs, batch.sampler_log_probs
    if old is None or sampler is None:
        return None
    measure_gap(batch, old, num_tokens, measured)
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
    measured.average_all(metrics, num_tokens)
    return weights


def with_effective_share(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics with `is_ess`, (Σ w)² / (n Σ w²), where tokens had importance weights."""
    metrics = dict(metrics)
    square = metrics.pop(_MEAN_SQUARE, None)
    if square is not None:
        metrics["is_ess"] = metrics["is_mean"] ** 2 / max(square, 1e-30)
    return metrics


def measure_critic(batch: PPOBatch, workers: SingleProcess, metrics: MetricAccumulator) -> None:
    """Measure the explained variance of the returns, over all workers, if there are values."""
    if batch.values is None or batch.returns is None:
        return
    values, returns, mask = batch.values, batch.returns, batch.response_mask
    if workers.splits_batch:
        gathered = workers.gather((values[mask].cpu(), returns[mask].cpu()))
        values, returns = (torch.cat(column) for column in zip(*gathered, strict=True))
        mask = torch.ones_like(values, dtype=torch.bool)
    metrics.average("explained_variance", explained_variance(values, returns, mask))
