"""KL divergence from a reference: estimates, the penalty on rewards, and its controller."""

from collections.abc import Callable

import torch

from turnwise.algo.masked import as_mask, keep, wide
from turnwise.errors import ConfigError, did_you_mean

# Estimates of KL(π ‖ ref) from d = log π − log ref of the sampled token.
# Schulman, "Approximating KL divergence", 2020, http://joschu.net/blog/kl-approx.html
KL_ESTIMATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda d: d,
    "k2": lambda d: 0.5 * d.square(),
    # Clamped: one token that the reference finds impossible would otherwise dominate the mean.
    "k3": lambda d: (torch.exp(-d.clamp(-20, 20)) + d.clamp(-20, 20) - 1).clamp(-10, 10),
    "abs": lambda d: d.abs(),
}

# What packing changes in log-probs, as a root mean square over tokens, at most.
_ROUNDING = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}


def estimate_kl(
    log_probs: torch.Tensor, ref_log_probs: torch.Tensor, kind: str = "k1"
) -> torch.Tensor:
    """Estimate KL(π ‖ ref), token by token: [B, T] -> [B, T].

    k1 = d is unbiased with high variance, k2 = d²/2 biased with low variance, k3 = e^(−d) + d − 1
    unbiased and never negative, abs = |d|; d = log π − log ref.

    With a "+" ("k3+") the value is the same but the gradient is that of k2, whose expectation is
    the true gradient of the KL; those of k1 (zero) and k3 (of the reversed KL) are not. Use it
    when the KL is a term of the loss.
    """
    name = kind.removesuffix("+")
    if name not in KL_ESTIMATES:
        known = [*KL_ESTIMATES, *(f"{k}+" for k in KL_ESTIMATES)]
        raise ConfigError(f"there is no KL estimate {kind!r}. {did_you_mean(kind, known)}")
    difference = wide(log_probs) - ref_log_probs
    value = KL_ESTIMATES[name](difference)
    if not kind.endswith("+"):
        return value
    gradient = KL_ESTIMATES["k2"](difference)
    # In this order: g − g is exactly 0, so the value stays as it is to the last bit.
    return gradient - gradient.detach() + value.detach()


@torch.no_grad()
def without_rounding(
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    response_mask: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return `ref_log_probs`; `log_probs` if a model in this precision gives both up to rounding.

    A policy that is the reference has a KL of 0, but not to the last digit if the two were computed
    in other packs. Adam would make full steps of the gradient of that.
    """
    mask = as_mask(response_mask)
    difference = keep(wide(log_probs) - ref_log_probs, mask)
    mean_square = difference.square().sum() / mask.sum().clamp(min=1)
    is_rounding = mean_square.sqrt() <= _ROUNDING.get(dtype, 0.0)
    return torch.where(is_rounding, log_probs, ref_log_probs)


@torch.no_grad()
def apply_kl_penalty(
    token_level_rewards: torch.Tensor,
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    response_mask: torch.Tensor,
    kl_coef: float,
    kind: str = "k1",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Subtract the KL from the rewards (Ziegler et al., https://arxiv.org/abs/1909.08593).

    Returns the rewards [B, T], r − β · KL on the policy's tokens, and the KL as one number: the
    mean over episodes of their mean over tokens. Episodes without a token do not count (VERL counts
    them as 0, which makes the KL look smaller than it is).
    """
    mask = as_mask(response_mask)
    kl = keep(estimate_kl(log_probs, ref_log_probs, kind), mask)
    lengths = mask.sum(1)
    per_episode = kl.sum(1) / lengths.clamp(min=1)
    mean = per_episode.sum() / (lengths > 0).sum().clamp(min=1)
    return token_level_rewards - kl_coef * kl, mean


class KLController:
    """The coefficient of the KL penalty: fixed, or adapted towards a target KL.

    Adaptive (https://arxiv.org/abs/1909.08593): β ← β · (1 + clip(KL / target − 1, ±0.2) · n / h).
    """

    def __init__(
        self,
        init_kl_coef: float,
        target_kl: float | None = None,
        adaptive: bool = False,
        horizon: float = 10_000,
    ) -> None:
        if adaptive and not (target_kl and target_kl > 0 and horizon > 0):
            raise ConfigError(
                f"an adaptive KLController got {target_kl=} and {horizon=}, expected more than 0"
            )
        self.value = float(init_kl_coef)
        self.target_kl = target_kl
        self.adaptive = adaptive
        self.horizon = horizon

    def update(self, current_kl: float | torch.Tensor, n_steps: int) -> float:
        """Adapt to the KL measured over `n_steps` samples; return the new coefficient."""
        if self.adaptive:
            assert self.target_kl is not None
            error = min(max(float(current_kl) / self.target_kl - 1.0, -0.2), 0.2)
            self.value *= 1.0 + error * n_steps / self.horizon
        return self.value

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = float(state["value"])
