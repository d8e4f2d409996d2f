"""Slow references in plain Python: policy losses and the critic's loss.

`held` stands for the log-probs inside a stop-gradient. They equal `log_probs` in value; finite
differences move `log_probs` and leave `held` where it is.
"""

import math
from collections.abc import Callable
from typing import Any

from algo.reference_tokens import (
    Mask,
    Rows,
    aggregate_loss,
    all_tokens,
    masked_mean,
    mean,
    on_tokens,
    policy_tokens,
)

Result = tuple[float, dict[str, float]]
TokenNumber = Callable[[int, int], float]


def clip(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


def finish(
    mask: Mask, loss: TokenNumber, metrics: dict[str, TokenNumber], options: dict[str, Any]
) -> Result:
    """Weigh and aggregate the token losses, average the metrics."""
    weights = options.get("importance_weights")
    losses = on_tokens(mask, lambda i, t: loss(i, t) * (weights[i][t] if weights else 1.0))
    total = aggregate_loss(losses, mask, options["loss_agg_mode"], options.get("totals"))
    return total, {name: masked_mean(on_tokens(mask, x), mask) for name, x in metrics.items()}


class Tokens:
    """What every policy loss is given."""

    def __init__(self, old_log_probs, log_probs, advantages, response_mask, held=None, **options):
        self.old, self.new, self.held = old_log_probs, log_probs, held or log_probs
        self.advantages, self.mask, self.options = advantages, response_mask, options

    def clip_range(self, both: float = 0.2) -> tuple[float, float]:
        both = self.options.get("clip_ratio", both)
        return tuple(self.options.get(f"clip_ratio_{side}", both) for side in ("low", "high"))

    def log_ratio(self, i: int, t: int) -> float:
        return self.new[i][t] - self.old[i][t]

    def bounded_log_ratio(self, i: int, t: int) -> float:
        return clip(self.log_ratio(i, t), -20, 20)

    def row_mean(self, number: TokenNumber, i: int) -> float:
        return mean([number(i, t) for t in policy_tokens(self.mask[i])])

    def finish(self, mode: str, loss: TokenNumber, metrics: dict[str, TokenNumber]) -> Result:
        return finish(self.mask, loss, metrics, {"loss_agg_mode": mode, **self.options})


def compute_policy_loss(clip_ratio_c: float = 3.0, **given: Any) -> Result:
    b = Tokens(**given)
    low, high = b.clip_range()

    def parts(i: int, t: int) -> tuple[float, float, float]:
        r, a = math.exp(b.bounded_log_ratio(i, t)), b.advantages[i][t]
        plain, clipped = r * a, clip(r, 1 - low, 1 + high) * a
        return plain, clipped, min(plain, clipped)

    def loss(i: int, t: int) -> float:
        a, objective = b.advantages[i][t], parts(i, t)[2]
        return -max(objective, clip_ratio_c * a) if a < 0 else -objective

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: parts(i, t)[1] < parts(i, t)[0],
        "clip_fraction_lower": lambda i, t: (
            b.advantages[i][t] < 0 and parts(i, t)[2] < clip_ratio_c * b.advantages[i][t]
        ),
        "kl": lambda i, t: -b.bounded_log_ratio(i, t),
        "ratio": lambda i, t: math.exp(b.bounded_log_ratio(i, t)),
    }
    return b.finish("token-mean", loss, metrics)


def compute_ppo_loss(config: Any = None, **given: Any) -> Result:
    given["log_probs"] = given.pop("new_log_probs")
    return compute_policy_loss(clip_ratio=config["clip_ratio"] if config else 0.2, **given)


def compute_gspo_loss(**given: Any) -> Result:
    b = Tokens(**given)
    low, high = b.clip_range()

    def ratio(i: int, t: int) -> float:
        sequence = math.exp(b.row_mean(lambda i, s: b.held[i][s] - b.old[i][s], i))
        return sequence * math.exp(b.new[i][t]) / math.exp(b.held[i][t])

    def objectives(i: int, t: int) -> tuple[float, float]:
        s, a = ratio(i, t), b.advantages[i][t]
        return s * a, clip(s, 1 - low, 1 + high) * a

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: objectives(i, t)[1] < objectives(i, t)[0],
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": ratio,
    }
    return b.finish("seq-mean-token-mean", lambda i, t: -min(objectives(i, t)), metrics)


def compute_geo_mean_loss(**given: Any) -> Result:
    b = Tokens(**given)
    low, high = b.clip_range(0.4)

    def bounded(i: int, t: int) -> float:
        """A > 0 pushes up, so only the upper bound holds; A < 0 the other way round."""
        if b.advantages[i][t] > 0:
            return min(b.log_ratio(i, t), high)
        return max(b.log_ratio(i, t), -low)

    def row_ratio(i: int, t: int) -> float:
        return math.exp(b.row_mean(bounded, i))

    def loss(i: int, t: int) -> float:
        return -b.row_mean(lambda i, s: b.advantages[i][s], i) * row_ratio(i, t)

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: b.advantages[i][t] > 0 and b.log_ratio(i, t) > high,
        "clip_fraction_lower": lambda i, t: b.advantages[i][t] < 0 and b.log_ratio(i, t) < -low,
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": row_ratio,
    }
    if weights := b.options.get("importance_weights"):
        b.options["importance_weights"] = [
            [math.exp(b.row_mean(lambda i, t: math.log(weights[i][t]), i))] * len(row)
            for i, row in enumerate(b.mask)
        ]
    return b.finish("seq-mean-token-mean", loss, metrics)


def compute_sapo_loss(tau_pos: float = 1.0, tau_neg: float = 1.05, **given: Any) -> Result:
    b = Tokens(**given)

    def loss(i: int, t: int) -> float:
        a = b.advantages[i][t]
        tau = tau_pos if a > 0 else tau_neg
        gate = 1 / (1 + math.exp(-min(tau * (math.exp(b.bounded_log_ratio(i, t)) - 1), 700)))
        return -4 / tau * gate * a

    metrics: dict[str, TokenNumber] = {
        "kl": lambda i, t: -b.bounded_log_ratio(i, t),
        "ratio": lambda i, t: math.exp(b.bounded_log_ratio(i, t)),
    }
    return b.finish("seq-mean-token-mean", loss, metrics)


def compute_reinforce_loss(mode: str = "seq-mean-token-sum", **given: Any) -> Result:
    b = Tokens(**given)
    metrics: dict[str, TokenNumber] = {"kl": lambda i, t: -b.log_ratio(i, t)}
    return b.finish(mode, lambda i, t: -b.advantages[i][t] * b.new[i][t], metrics)


def compute_gpg_loss(**given: Any) -> Result:
    return compute_reinforce_loss("token-mean", **given)


def compute_cispo_loss(**given: Any) -> Result:
    b = Tokens(**given)
    low, high = b.clip_range()

    def ratio(i: int, t: int) -> float:
        return math.exp(clip(b.held[i][t] - b.old[i][t], -20, 20))

    def loss(i: int, t: int) -> float:
        return -clip(ratio(i, t), 1 - low, 1 + high) * b.advantages[i][t] * b.new[i][t]

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: not 1 - low <= ratio(i, t) <= 1 + high,
        "kl": lambda i, t: -math.log(ratio(i, t)),
        "ratio": ratio,
    }
    return b.finish("token-mean", loss, metrics)


def compute_dppo_tv_loss(**given: Any) -> Result:
    low, high = Tokens(**given).clip_range()

    def is_inside(new: float, old: float, advantage: float) -> bool:
        return new - old <= high if advantage > 0 else new - old >= -low

    return _dppo(is_inside, **given)


def compute_dppo_kl_loss(**given: Any) -> Result:
    low, high = Tokens(**given).clip_range()

    def is_inside(new: float, old: float, advantage: float) -> bool:
        divergence = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
        if advantage > 0:
            return new <= old or divergence <= high
        return new >= old or divergence <= low

    return _dppo(is_inside, **given)


def _dppo(
    is_inside: Callable[[float, float, float], bool], clip_ratio_c: float = 20.0, **given: Any
) -> Result:
    b = Tokens(**given)

    def inside(i: int, t: int) -> bool:
        return is_inside(math.exp(b.held[i][t]), math.exp(b.old[i][t]), b.advantages[i][t])

    def ratio(i: int, t: int) -> float:
        return math.exp(b.held[i][t] - b.old[i][t])

    def loss(i: int, t: int) -> float:
        bounded = min(ratio(i, t), clip_ratio_c)
        return -bounded * b.advantages[i][t] * b.new[i][t] * inside(i, t)

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: not inside(i, t),
        "kl": lambda i, t: -math.log(ratio(i, t)),
        "ratio": ratio,
    }
    return b.finish("token-mean", loss, metrics)


def covariances(log_probs: Rows, advantages: Rows, mask: Mask) -> Rows:
    """(log π − mean) (A − mean) of each token."""
    middle, centre = masked_mean(log_probs, mask), masked_mean(advantages, mask)
    return on_tokens(mask, lambda i, t: (log_probs[i][t] - middle) * (advantages[i][t] - centre))


def clip_cov_candidates(
    clip_ratio: float, clip_cov_lower: float, clip_cov_upper: float, **given: Any
) -> list[tuple[int, int]]:
    """The tokens from which Clip-Cov draws."""
    b = Tokens(**given)
    covariance = covariances(b.held, b.advantages, b.mask)

    def is_clipped(i: int, t: int) -> bool:
        r, a = math.exp(b.held[i][t] - b.old[i][t]), b.advantages[i][t]
        return clip(r, 1 - clip_ratio, 1 + clip_ratio) * a < r * a

    return [
        (i, t)
        for i, t in all_tokens(b.mask)
        if clip_cov_lower < covariance[i][t] < clip_cov_upper and not is_clipped(i, t)
    ]


def compute_clip_cov_loss(
    clip_cov_lower: float, clip_cov_upper: float, clip_cov_ratio: float, **given: Any
) -> Result:
    """Only where no draw is needed: when all candidates are dropped."""
    b = Tokens(**given)
    candidates = clip_cov_candidates(0.2, clip_cov_lower, clip_cov_upper, **given)
    num_tokens = len(list(all_tokens(b.mask)))
    assert len(candidates) <= max(1, int(clip_cov_ratio * num_tokens))

    def ratio(i: int, t: int) -> float:
        return math.exp(b.log_ratio(i, t))

    def objectives(i: int, t: int) -> tuple[float, float]:
        r, a = ratio(i, t), b.advantages[i][t]
        return r * a, clip(r, 0.8, 1.2) * a

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: objectives(i, t)[1] < objectives(i, t)[0],
        "cov_fraction": lambda i, t: (i, t) in candidates,
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": ratio,
    }
    return b.finish(
        "token-mean", lambda i, t: 0.0 if (i, t) in candidates else -min(objectives(i, t)), metrics
    )


def compute_kl_cov_loss(
    kl_cov_ratio: float = 0.0002, kl_cov_coef: float = 1.0, **given: Any
) -> Result:
    b = Tokens(**given)
    covariance = covariances(b.held, b.advantages, b.mask)
    tokens = sorted(all_tokens(b.mask), key=lambda it: -covariance[it[0]][it[1]])
    top = tokens[: max(1, int(kl_cov_ratio * len(tokens)))]

    def loss(i: int, t: int) -> float:
        penalty = kl_cov_coef * abs(b.log_ratio(i, t)) if (i, t) in top else 0.0
        return -b.advantages[i][t] * math.exp(b.log_ratio(i, t)) + penalty

    metrics: dict[str, TokenNumber] = {
        "cov_fraction": lambda i, t: (i, t) in top,
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": lambda i, t: math.exp(b.log_ratio(i, t)),
    }
    return b.finish("token-mean", loss, metrics)


def compute_value_loss(
    vpreds: Rows,
    returns: Rows,
    old_values: Rows,
    response_mask: Mask,
    cliprange_value: float = 0.2,
    loss_agg_mode: str = "token-mean",
    totals: Any = None,
) -> Result:
    def errors(i: int, t: int) -> tuple[float, float]:
        v, v_old, r = vpreds[i][t], old_values[i][t], returns[i][t]
        moved = clip(v, v_old - cliprange_value, v_old + cliprange_value)
        return (v - r) ** 2, (moved - r) ** 2

    metrics: dict[str, TokenNumber] = {
        "value_clip_fraction": lambda i, t: errors(i, t)[1] > errors(i, t)[0],
        "value_mean": lambda i, t: vpreds[i][t],
        "return_mean": lambda i, t: returns[i][t],
    }
    options = {"loss_agg_mode": loss_agg_mode, "totals": totals}
    loss, averages = finish(response_mask, lambda i, t: max(errors(i, t)) / 2, metrics, options)
    averages["explained_variance"] = explained_variance(vpreds, returns, response_mask)
    return loss, averages


def explained_variance(values: Rows, returns: Rows, response_mask: Mask) -> float:
    def variance(numbers: list[float]) -> float:
        centre = mean(numbers)
        return mean([(x - centre) ** 2 for x in numbers])

    wanted = [returns[i][t] for i, t in all_tokens(response_mask)]
    missed = [returns[i][t] - values[i][t] for i, t in all_tokens(response_mask)]
    if not wanted or min(wanted) == max(wanted):
        return 0.0
    return 1 - variance(missed) / variance(wanted)
