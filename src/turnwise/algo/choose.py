"""The one place where an algorithm is chosen: by name from a plain dict, or as a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import torch

from turnwise.algo.advantages.gae import compute_gae_advantage_return
from turnwise.algo.advantages.outcome import (
    compute_dr_grpo_advantage,
    compute_gdpo_advantage,
    compute_gpg_advantage,
    compute_grpo_advantage,
    compute_grpo_passk_advantage,
    compute_opo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_remax_advantage,
    compute_rloo_advantage,
)
from turnwise.algo.advantages.token_baseline import compute_optimal_token_baseline_advantage
from turnwise.algo.advantages.turns import (
    compute_gigpo_advantage,
    compute_turn_gae_advantage_return,
    compute_turn_grpo_advantage,
)
from turnwise.algo.losses.covariance import (
    compute_clip_cov_loss,
    compute_kl_cov_loss,
    select_clip_cov_tokens,
    select_kl_cov_tokens,
)
from turnwise.algo.losses.geo_mean import compute_geo_mean_loss
from turnwise.algo.losses.gspo import compute_gspo_loss
from turnwise.algo.losses.ppo import compute_policy_loss
from turnwise.algo.losses.sapo import compute_sapo_loss
from turnwise.algo.losses.weighted import (
    compute_cispo_loss,
    compute_dppo_kl_loss,
    compute_dppo_tv_loss,
    compute_gpg_loss,
    compute_reinforce_loss,
)
from turnwise.algo.types import Metrics
from turnwise.errors import ConfigError, did_you_mean

AdvantageEstimator: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Takes what it needs of the batch by name, gives (advantages, returns) [B, T]."""
PolicyLoss: TypeAlias = Callable[..., tuple[torch.Tensor, Metrics]]
"""(old_log_probs, log_probs, advantages, response_mask, **options) -> (loss, metrics)."""

TokenSelection: TypeAlias = Callable[..., torch.Tensor]
"""(old_log_probs, log_probs, advantages, **options) of N policy tokens -> [N] bool."""

F = TypeVar("F")

ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "gae": compute_gae_advantage_return,
    "turn_gae": compute_turn_gae_advantage_return,
    "grpo": compute_grpo_advantage,
    "dr_grpo": compute_dr_grpo_advantage,
    "grpo_passk": compute_grpo_passk_advantage,
    "turn_grpo": compute_turn_grpo_advantage,
    "gigpo": compute_gigpo_advantage,
    "gdpo": compute_gdpo_advantage,
    "rloo": compute_rloo_advantage,
    "reinforce_plus_plus": compute_reinforce_plus_plus_advantage,
    "reinforce_plus_plus_baseline": compute_reinforce_plus_plus_baseline_advantage,
    "remax": compute_remax_advantage,
    "opo": compute_opo_advantage,
    "gpg": compute_gpg_advantage,
    "optimal_token_baseline": compute_optimal_token_baseline_advantage,
}

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo": compute_policy_loss,
    "gspo": compute_gspo_loss,
    "cispo": compute_cispo_loss,
    "sapo": compute_sapo_loss,
    "gpg": compute_gpg_loss,
    "geo_mean": compute_geo_mean_loss,
    "clip_cov": compute_clip_cov_loss,
    "kl_cov": compute_kl_cov_loss,
    "dppo_tv": compute_dppo_tv_loss,
    "dppo_kl": compute_dppo_kl_loss,
    "reinforce": compute_reinforce_loss,
}

TOKEN_SELECTIONS: dict[PolicyLoss, TokenSelection] = {
    compute_clip_cov_loss: select_clip_cov_tokens,
    compute_kl_cov_loss: select_kl_cov_tokens,
}
"""Of the losses that pick some tokens of a whole batch: how they pick. Whoever computes such a loss
in parts picks first, and passes each part's share as `selected`."""


def get_advantage_estimator(choice: str | AdvantageEstimator) -> AdvantageEstimator:
    """The estimator of that name, or the function that was given."""
    return _chosen("advantage estimator", choice, ADVANTAGE_ESTIMATORS)


def get_policy_loss(choice: str | PolicyLoss) -> PolicyLoss:
    """The policy loss of that name, or the function that was given."""
    return _chosen("policy loss", choice, POLICY_LOSSES)


def compute_advantages(
    choice: str | AdvantageEstimator, batch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run an estimator on the parts of the batch that its signature asks for.

    >>> rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)
    >>> batch = {"token_level_rewards": rewards, "response_mask": mask, "index": [0, 0]}
    >>> compute_advantages("rloo", batch)[0]
    tensor([[ 1.,  1.],
            [-1., -1.]])
    """
    estimator = get_advantage_estimator(choice)
    parameters = inspect.signature(estimator).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in batch
    ]
    if missing:
        name = choice if isinstance(choice, str) else getattr(choice, "__name__", repr(choice))
        raise ConfigError(
            f"the advantage estimator {name!r} needs {', '.join(missing)}, which this batch does "
            f"not have. It has: {', '.join(sorted(batch))}."
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return estimator(**batch)
    return estimator(**{name: value for name, value in batch.items() if name in parameters})


def _chosen(what: str, choice: str | F, table: Mapping[str, F]) -> F:
    if not isinstance(choice, str):
        return choice
    if choice in table:
        return table[choice]
    raise ConfigError(
        f"there is no {what} {choice!r}. {did_you_mean(choice, table)} "
        "A function can be given instead of a name."
    )
