"""The loss of some episodes, weighted so that the packs of a minibatch add up to the whole; and the
metrics of an update, accumulated on the device and read once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from turnwise.algo.choose import get_policy_loss
from turnwise.algo.correction import compute_importance_weights, measure_log_prob_gap
from turnwise.algo.kl import estimate_kl
from turnwise.algo.losses.policy import MAX_LOG_RATIO
from turnwise.algo.losses.value import compute_value_loss
from turnwise.algo.masked import BatchTotals, TensorMetrics, aggregate_loss, keep, masked_mean, wide
from turnwise.learner.batch import PPOBatch
from turnwise.learner.model import Outputs
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack
from turnwise.learner.workers import Workers

COUNTS = ("num_steps", "num_skipped_steps", "num_early_stops")
"""Reported even when they are 0."""
_MEAN_SQUARE = "is_mean_square"
"""What `is_ess` is computed from: a mean over tokens can be combined from those of workers."""


class Metrics:
    """Sums, weighted means and maxima of tensors, and counts, by name."""

    def __init__(self) -> None:
        self._sums: TensorMetrics = {}
        self._weighted: dict[str, tuple[torch.Tensor, float]] = {}
        """The sums of weighted values, and of their weights; of a maximum, itself and 1."""
        self.counts: Counter[str] = Counter()

    def add(self, values: TensorMetrics) -> None:
        """Add values to sums."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach().double()

    def average(self, values: Mapping[str, torch.Tensor | float], weight: float = 1.0) -> None:
        """Add values to weighted means; to maxima, if their names end in `_max`."""
        for name, given in values.items():
            value = torch.as_tensor(given, dtype=torch.float64).detach()
            known = self._weighted.get(name)
            if name.endswith("_max"):
                largest = value if known is None else torch.maximum(known[0], value)
                self._weighted[name] = (largest, 1.0)
            elif known is None:
                self._weighted[name] = (value * weight, weight)
            else:
                total = value * weight
                self._weighted[name] = (total + known[0].to(total.device), weight + known[1])

    def total(self, name: str) -> torch.Tensor:
        return self._sums.get(name, torch.zeros((), dtype=torch.float64))

    def mean(self, name: str) -> float:
        total, weight = self._weighted[name]
        return float(total / weight)

    def add_minibatch(self, minibatch: Metrics, num_tokens: int) -> None:
        """Add a minibatch of that many tokens, which are the weight of its sums."""
        self.average(minibatch._sums, num_tokens)
        self.add_means(minibatch)
        self.counts["num_trained_tokens"] += num_tokens

    def add_means(self, other: Metrics) -> None:
        """Add the means and maxima over other tokens."""
        for name, (total, weight) in other._weighted.items():
            self.average({name: total / (weight or 1.0)}, weight)

    def over_workers(self, workers: Workers) -> Metrics:
        """Return the sums, means and maxima over all workers, each of which calls this."""
        if workers.num_workers == 1:
            return self
        sent, total = Metrics(), Metrics()  # on the CPU, since workers have other devices
        sent._sums = {name: value.cpu() for name, value in self._sums.items()}
        sent._weighted = {name: (x.cpu(), weight) for name, (x, weight) in self._weighted.items()}
        for metrics in workers.gather(sent):
            total.add(metrics._sums)
            total.add_means(metrics)
        return total

    def as_floats(self) -> dict[str, float]:
        """Return all metrics as floats, in one transfer from the device."""
        means = {name: total / weight for name, (total, weight) in self._weighted.items()}
        device = next((x.device for x in means.values() if x.is_cuda), torch.device("cpu"))
        values = torch.stack([x.to(device) for x in means.values()]).tolist()
        metrics = dict(zip(means, values, strict=True))
        if (square := metrics.pop(_MEAN_SQUARE, None)) is not None:
            # (Σ w)² / (n Σ w²)
            metrics["is_ess"] = metrics["is_mean"] ** 2 / max(square, 1e-30)
        counts = {name: float(self.counts[name]) for name in {*COUNTS, *self.counts}}
        return metrics | dict(sorted(counts.items()))


def measure_gap(
    batch: PPOBatch, log_probs: torch.Tensor, num_tokens: int, measured: Metrics
) -> None:
    """Measure how far the learner's log-probs [B, T] are from the sampler's, if there are any.

    `num_tokens` is the number of policy tokens: counting them here would wait for the GPU.
    """
    if batch.sampler_log_probs is not None:
        gap = measure_log_prob_gap(batch.sampler_log_probs, log_probs, batch.response_mask)
        measured.average(gap, num_tokens)


def importance_weights(
    batch: PPOBatch, options: LearnerOptions, num_tokens: int, measured: Metrics
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
    measured.average(metrics, num_tokens)
    return weights


def batch_totals(packs: list[Pack], workers: Workers, horizon: float | None) -> BatchTotals:
    """Return the sizes of a minibatch over all workers, which each pack's loss is a share of."""
    counts = [torch.bincount(pack.target_rows) for pack in packs]
    sizes = [
        sum(pack.num_policy_tokens for pack in packs),
        sum(int((count > 0).sum()) for count in counts),
    ]
    sums = torch.tensor(sizes, dtype=torch.float64)
    workers.all_reduce(sums)
    if horizon is None:
        horizon = workers.maximum(max((int(count.max()) for count in counts), default=1))
    num_tokens, num_sequences = sums.tolist()
    return BatchTotals(num_tokens, num_sequences, horizon)


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
    loss = policy_loss
    terms = {"policy_loss": policy_loss.detach()}
    if options.entropy_coef:
        entropy = aggregate_loss(outputs.entropy, mask, mode, totals)
        loss = loss - options.entropy_coef * entropy
    if options.kl_loss_coef:
        kl = estimate_kl(outputs.log_probs, batch.need("ref_log_probs"), options.kl_loss_type)
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
    with torch.no_grad():
        # KL(old ‖ now) by the estimate k3, which is never negative, as early stopping needs.
        change = keep(wide(outputs.log_probs) - batch.behaviour_log_probs, mask)
        change = change.clamp_(max=MAX_LOG_RATIO)
        metrics["kl"] = masked_mean(change.expm1() - change, mask)
    terms["loss"] = loss.detach()
    return loss, terms, metrics


@torch.no_grad()
def select_tokens(
    batch: PPOBatch,
    rows: torch.Tensor,
    log_probs: torch.Tensor,
    options: LearnerOptions,
    workers: Workers,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return the tokens that a policy loss with a `TokenSelection` picks: [B, T] bool.

    They are picked of these rows and of the other workers'. The choice does not depend on how the
    minibatch is split: every worker picks of all, by a generator with the same seed.
    """
    rows = rows.to(log_probs.device)
    mask = torch.zeros_like(log_probs)
    mask[rows] = batch.response_mask[rows].to(mask.dtype)
    both = torch.stack([mask, mask * log_probs])
    workers.all_reduce(both)
    mask = both[0] > 0
    log_probs = both[1]
    old_log_probs = batch.old_log_probs
    if old_log_probs is None:
        old_log_probs = batch.need("sampler_log_probs") if batch.sampler_is_exact else log_probs
    selection = get_policy_loss(options.policy_loss).selection
    assert selection is not None
    settings = {k: v for k, v in options.policy_loss_options.items() if k in selection.options}
    if selection.is_random:
        settings["generator"] = generator
    tokens = (old_log_probs[mask], log_probs[mask], batch.need("advantages")[mask])
    selected = torch.zeros_like(mask)
    selected[mask] = selection.function(*tokens, **settings)
    return selected
