"""The policy losses, and what they share: inputs and options, the ratio, and the clip range.

A policy loss takes log-probs [B, T] and gives (loss, metrics), the loss to be minimised:

    old_log_probs: [B, T], log-probs at rollout time.
    log_probs: [B, T], log-probs now; the gradient flows here and nowhere else.
    advantages, response_mask: [B, T].

Metrics are means over the policy's tokens: `kl` is the k1 estimate of KL(old ‖ now), `ratio` the
mean of r = π_now / π_old, `clip_fraction` the share of tokens whose gradient was cut.
"""

from typing import TypedDict, Unpack

import torch

from turnwise.algo.masked import (
    BatchTotals,
    TensorMetrics,
    aggregate_loss,
    as_mask,
    keep,
    masked_mean,
    wide,
)
from turnwise.config.sections import LossAggregation
from turnwise.errors import ConfigError

# Ratios are bounded by exp(±20): beyond that a single token would dominate the sum.
MAX_LOG_RATIO = 20.0
_MAX_SEQUENCE_LOG_RATIO = 10.0


class LossOptions(TypedDict, total=False):
    """Keyword arguments that every policy loss takes."""

    loss_agg_mode: LossAggregation
    """How token losses become one number; see `masked.row_weights`."""
    importance_weights: torch.Tensor | None
    """[B, T], learner against sampler (`correction.py`); multiplies the token losses."""
    totals: BatchTotals | None
    """Sizes of the whole batch, when the loss is computed on one part of it."""


class PolicyTokens:
    """The inputs of a policy loss, all [B, T]: in one precision, and 0 on masked tokens.

    The gradient flows to `log_probs` alone; the values of masked tokens have no effect.
    """

    def __init__(
        self,
        old_log_probs: torch.Tensor,
        log_probs: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
    ) -> None:
        self.mask = as_mask(response_mask)
        now = wide(log_probs)
        self.log_probs = torch.where(self.mask, now, 0.0)
        self.old_log_probs = keep(old_log_probs.to(now.dtype), self.mask)
        self.advantages = keep(advantages.to(now.dtype), self.mask)

    @property
    def log_ratio(self) -> torch.Tensor:
        """log r, with r = π_now / π_old."""
        return self.log_probs - self.old_log_probs

    @property
    def bounded_log_ratio(self) -> torch.Tensor:
        """log r within ±20, so that r stays a usable number."""
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def lengths(self) -> torch.Tensor:
        """[B, 1], the number of policy tokens, at least 1."""
        return self.mask.sum(1, keepdim=True).clamp(min=1)

    def aggregate(
        self, losses: torch.Tensor, metrics: TensorMetrics, options: LossOptions
    ) -> tuple[torch.Tensor, TensorMetrics]:
        """Return one loss, as the options say, and the means of the metrics; all are [B, T]."""
        weights = options.get("importance_weights")
        if weights is not None:
            losses = losses * torch.where(self.mask, weights.detach(), 0.0)
        means = {name: masked_mean(x.detach(), self.mask) for name, x in metrics.items()}
        mode = options.get("loss_agg_mode", "token-mean")
        totals = options.get("totals")
        return aggregate_loss(losses, self.mask, mode, totals), means


def clip_range(both: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return (ε_low, ε_high); each defaults to `both`."""
    low = both if low is None else low
    high = both if high is None else high
    if low < 0 or high < 0:
        raise ConfigError(f"clip range got ({low}, {high}), expected numbers from 0 up")
    return low, high


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), and 1 where the clip applies, else 0."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(unclipped, clipped), is_above(clipped, unclipped)


def is_above(x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    """Return x > y as 0 and 1 of x's own type, which can be multiplied and averaged."""
    return (x > y).to(x.dtype)


def compute_policy_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 3.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO (Schulman et al., https://arxiv.org/abs/1707.06347).

        L = −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A),   and at most −c A where A < 0

    ε_low and ε_high default to `clip_ratio` and may differ (clip-higher of DAPO,
    https://arxiv.org/abs/2503.14476). The bound c is dual clip (https://arxiv.org/abs/1912.09729):
    one bad token that has become very likely cannot dominate the batch; `clip_fraction_lower` is
    the share of tokens that it bounds.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    if clip_ratio_c <= 1.0:
        raise ConfigError(f"clip_ratio_c got {clip_ratio_c}, expected a number above 1")
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    log_ratio = tokens.bounded_log_ratio
    ratio = log_ratio.exp()
    pessimistic, is_clipped = clipped_surrogate(ratio, tokens.advantages, low, high)
    # Where A ≥ 0 the loss is at most 0, so this bound touches A < 0 alone.
    bound = clip_ratio_c * (-tokens.advantages).relu()
    metrics = {
        "clip_fraction": is_clipped,
        "clip_fraction_lower": is_above(pessimistic, bound),
        "kl": -log_ratio,
        "ratio": ratio,
    }
    return tokens.aggregate(torch.minimum(pessimistic, bound), metrics, options)


def compute_sapo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """SAPO (Gao et al., https://arxiv.org/abs/2511.20347).

        L = −(4 / τ) σ(τ (r − 1)) · A,    τ = τ_pos where A > 0, τ_neg elsewhere

    The gradient fades smoothly as r leaves 1, a little faster for tokens with A ≤ 0.
    """
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    log_ratio = tokens.bounded_log_ratio
    ratio = log_ratio.exp()
    tau = tau_neg + (tau_pos - tau_neg) * is_above(tokens.advantages, 0.0)
    gate = torch.sigmoid(tau * (ratio - 1.0))
    losses = -tokens.advantages * gate * (4.0 / tau)
    return tokens.aggregate(losses, {"kl": -log_ratio, "ratio": ratio}, options)


def compute_gspo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """GSPO (Zheng et al., https://arxiv.org/abs/2507.18071).

        s_i = exp(mean_t(log π_now − log π_old)),    L = −min(s A, clip(s) A)

    in its token form, s_it = sg(s_i) · π_now / sg(π_now), which allows token advantages. The paper
    clips far tighter than PPO (3e-4 and 4e-4) and averages per sequence, the default here.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    log_ratio = tokens.log_ratio
    sequence = log_ratio.sum(1, keepdim=True) / tokens.lengths
    # The value is the sequence's ratio, the gradient that of the token's own log-prob.
    token = sequence.detach() + tokens.log_probs - tokens.log_probs.detach()
    ratio = token.clamp(max=_MAX_SEQUENCE_LOG_RATIO).exp()
    losses, is_clipped = clipped_surrogate(ratio, tokens.advantages, low, high)
    metrics = {"clip_fraction": is_clipped, "kl": -log_ratio, "ratio": ratio}
    return tokens.aggregate(losses, metrics, options)


def compute_geo_mean_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.4,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """GMPO, the geometric mean of the token ratios (Zhao et al., https://arxiv.org/abs/2507.20673).

        L_i = −A_i · exp(mean_t c_it),   c = log r clipped to [−ε_low, ε_high] on the side that A
                                         would push it over

    A_i is the mean advantage of the row: the method is for one advantage a sequence. The range is
    that of log r. Sequences are averaged; rows without a token do not count (VERL counts them).
    Importance weights enter as their geometric mean over the row, too.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    weights = options.get("importance_weights")
    if weights is not None:
        logs = keep((weights.detach() + 1e-10).log(), tokens.mask)
        mean = logs.sum(1, keepdim=True) / tokens.lengths
        options["importance_weights"] = mean.exp().expand_as(weights)
    log_ratio = tokens.log_ratio
    sign = tokens.advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-low, high))
    ratio = (pessimistic.sum(1, keepdim=True) / tokens.lengths).exp()
    advantage = tokens.advantages.sum(1, keepdim=True) / tokens.lengths
    # Each token has the loss of its row, so that the mean over the row is that loss.
    losses = (-advantage * ratio).expand_as(tokens.mask)
    metrics = {
        "clip_fraction": is_above(log_ratio, high) * is_above(tokens.advantages, 0.0),
        "clip_fraction_lower": is_above(-log_ratio, low) * is_above(-tokens.advantages, 0.0),
        "kl": -log_ratio,
        "ratio": ratio.expand_as(tokens.mask),
    }
    return tokens.aggregate(losses, metrics, options)


def compute_reinforce_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """Plain REINFORCE (Williams, 1992): L = −A log π_now, summed over each sequence.

    It does not know how far π has moved, so it is for one update per rollout.
    """
    options.setdefault("loss_agg_mode", "seq-mean-token-sum")
    return compute_gpg_loss(old_log_probs, log_probs, advantages, response_mask, **options)


def compute_gpg_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """GPG (Chu et al., https://arxiv.org/abs/2504.02546): L = −A log π_now, a mean over tokens."""
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    losses = -tokens.advantages * tokens.log_probs
    return tokens.aggregate(losses, {"kl": -tokens.log_ratio}, options)


def compute_cispo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """CISPO (MiniMax, https://arxiv.org/abs/2506.13585): clip the weight, keep every gradient.

    L = −sg(clip(r, 1 − ε_low, 1 + ε_high)) · A · log π_now
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    log_ratio = tokens.bounded_log_ratio
    ratio = log_ratio.exp()
    weights = ratio.clamp(1.0 - low, 1.0 + high).detach()
    is_clipped = is_above(ratio, 1.0 + high) + is_above(-ratio, low - 1.0)
    metrics = {"clip_fraction": is_clipped, "kl": -log_ratio, "ratio": ratio}
    return tokens.aggregate(-weights * tokens.advantages * tokens.log_probs, metrics, options)


def compute_dppo_tv_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """DPPO with total variation (https://arxiv.org/abs/2602.04879).

        L = −sg(min(r, c)) · A · log π_now · [the token is inside the trust region]

    A token leaves the region when its probability has moved by more than ε in the direction that
    A pushes: π_now − π_old > ε_high where A > 0, < −ε_low elsewhere. The probability itself is
    bounded, not its ratio, so that rare tokens may move freely.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    moved = tokens.log_probs.exp() - tokens.old_log_probs.exp()
    up = is_above(tokens.advantages, 0.0)
    outside = up * is_above(moved, high) + (1.0 - up) * is_above(-moved, low)
    return _inside_trust_region(tokens, outside, clip_ratio_c, options)


def compute_dppo_kl_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """DPPO with KL (https://arxiv.org/abs/2602.04879): as `compute_dppo_tv_loss`.

    A token leaves the region when the KL divergence of "this token or another" exceeds ε and it
    has moved in the direction that A pushes.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, response_mask)
    new, old = tokens.log_probs.exp(), tokens.old_log_probs.exp()
    rest = ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).log()
    divergence = old * (tokens.old_log_probs - tokens.log_probs) + (1.0 - old) * rest
    up = is_above(tokens.advantages, 0.0)
    too_high = is_above(new, old) * is_above(divergence, high)
    too_low = is_above(old, new) * is_above(divergence, low)
    outside = up * too_high + (1.0 - up) * too_low
    return _inside_trust_region(tokens, outside, clip_ratio_c, options)


def _inside_trust_region(
    tokens: PolicyTokens, outside: torch.Tensor, ratio_bound: float, options: LossOptions
) -> tuple[torch.Tensor, TensorMetrics]:
    log_ratio = tokens.bounded_log_ratio
    ratio = log_ratio.exp()
    weights = ratio.clamp(max=ratio_bound).detach() * (1.0 - outside)
    metrics = {"clip_fraction": outside, "kl": -log_ratio, "ratio": ratio}
    return tokens.aggregate(-weights * tokens.advantages * tokens.log_probs, metrics, options)
