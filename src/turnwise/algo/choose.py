"""The one place where an algorithm is chosen: by name from a plain dict, or as a function."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import torch

from turnwise.algo.advantages import gae, outcome, turns
from turnwise.algo.correction import checked_bounds
from turnwise.algo.losses import covariance, policy
from turnwise.algo.records import (
    AdvantageEstimator,
    EstimatorFunction,
    LossFunction,
    PolicyLoss,
    TokenSelection,
)
from turnwise.config import TrainingConfig
from turnwise.config.fields import answer_algorithm
from turnwise.errors import ConfigError, did_you_mean
from turnwise.user_code import import_object

ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "gae": AdvantageEstimator(gae.compute_gae_advantage_return, needs_critic=True),
    "turn_gae": AdvantageEstimator(turns.compute_turn_gae_advantage_return, needs_critic=True),
    "grpo": AdvantageEstimator(outcome.compute_grpo_advantage, needs_groups=True),
    "dr_grpo": AdvantageEstimator(outcome.compute_dr_grpo_advantage, needs_groups=True),
    "grpo_passk": AdvantageEstimator(outcome.compute_grpo_passk_advantage, needs_groups=True),
    "turn_grpo": AdvantageEstimator(turns.compute_turn_grpo_advantage, needs_groups=True),
    "gigpo": AdvantageEstimator(turns.compute_gigpo_advantage, needs_groups=True),
    "gdpo": AdvantageEstimator(outcome.compute_gdpo_advantage, needs_groups=True),
    "rloo": AdvantageEstimator(outcome.compute_rloo_advantage, needs_groups=True),
    "reinforce_plus_plus": AdvantageEstimator(outcome.compute_reinforce_plus_plus_advantage),
    "reinforce_plus_plus_baseline": AdvantageEstimator(
        outcome.compute_reinforce_plus_plus_baseline_advantage, needs_groups=True
    ),
    "remax": AdvantageEstimator(outcome.compute_remax_advantage, needs_greedy_episode=True),
    "opo": AdvantageEstimator(outcome.compute_opo_advantage, needs_groups=True),
    "gpg": AdvantageEstimator(outcome.compute_gpg_advantage, needs_groups=True),
    "optimal_token_baseline": AdvantageEstimator(
        outcome.compute_optimal_token_baseline_advantage,
        needs_groups=True,
        needs_old_log_probs=True,
        needs_sum_pi_squared=True,
    ),
}

_CLIP_RANGE = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
_CLIP_COV = TokenSelection(
    covariance.select_clip_cov_tokens,
    (*_CLIP_RANGE, "clip_cov_ratio", "clip_cov_lower", "clip_cov_upper"),
    is_random=True,
)
_KL_COV = TokenSelection(covariance.select_kl_cov_tokens, ("kl_cov_ratio",))

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo": PolicyLoss(policy.compute_policy_loss, has_clip_range=True),
    "gspo": PolicyLoss(policy.compute_gspo_loss, has_clip_range=True),
    "cispo": PolicyLoss(policy.compute_cispo_loss, has_clip_range=True),
    "sapo": PolicyLoss(policy.compute_sapo_loss),
    "gpg": PolicyLoss(policy.compute_gpg_loss),
    "geo_mean": PolicyLoss(policy.compute_geo_mean_loss, has_clip_range=True),
    "clip_cov": PolicyLoss(
        covariance.compute_clip_cov_loss, has_clip_range=True, selection=_CLIP_COV
    ),
    "kl_cov": PolicyLoss(covariance.compute_kl_cov_loss, selection=_KL_COV),
    "dppo_tv": PolicyLoss(policy.compute_dppo_tv_loss, has_clip_range=True),
    "dppo_kl": PolicyLoss(policy.compute_dppo_kl_loss, has_clip_range=True),
    "reinforce": PolicyLoss(policy.compute_reinforce_loss),
}

EstimatorChoice: TypeAlias = str | AdvantageEstimator | EstimatorFunction
"""A name of `ADVANTAGE_ESTIMATORS`, `file.py:name`, a record, or a function without needs."""
LossChoice: TypeAlias = str | PolicyLoss | LossFunction
"""A name of `POLICY_LOSSES`, `file.py:name`, a record, or a function that takes no clip range."""


def get_advantage_estimator(choice: EstimatorChoice) -> AdvantageEstimator:
    """Return the estimator of that name; a function becomes one that declares no needs."""
    found = _chosen("adv_estimator", choice, ADVANTAGE_ESTIMATORS)
    return found if isinstance(found, AdvantageEstimator) else AdvantageEstimator(found)


def get_policy_loss(choice: LossChoice) -> PolicyLoss:
    """Return the policy loss of that name; a function becomes one without a clip range."""
    found = _chosen("policy_loss", choice, POLICY_LOSSES)
    return found if isinstance(found, PolicyLoss) else PolicyLoss(found)


@dataclass(frozen=True)
class Algorithm:
    """The estimator and the policy loss of a run, checked against the settings when it is made."""

    estimator: AdvantageEstimator
    policy_loss: PolicyLoss

    @classmethod
    def of(
        cls,
        training: TrainingConfig,
        adv_estimator: EstimatorChoice | None = None,
        policy_loss: LossChoice | None = None,
    ) -> Self:
        """Return the algorithm given in Python, completed by the one that the settings name."""
        estimator = get_advantage_estimator(adv_estimator or training.adv_estimator)
        loss = get_policy_loss(policy_loss or training.policy_loss)
        estimator = estimator.with_options(training.adv_options)
        estimator.check()
        loss.check(training.policy_loss_options)
        has_own_range = training.clip_ratio_low is not None or training.clip_ratio_high is not None
        if has_own_range and not loss.has_clip_range:
            raise ConfigError(
                f"training.clip_ratio_low and clip_ratio_high got ({training.clip_ratio_low}, "
                f"{training.clip_ratio_high}), and the policy loss {loss.name!r} has no clip "
                "range. Leave them at null, or take training.policy_loss=ppo."
            )
        checked_bounds(training.importance_bounds)
        return cls(estimator, loss)


def compute_advantages(
    choice: EstimatorChoice, batch: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run an estimator on the fields of the batch that its signature names.

    >>> rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)
    >>> batch = {"token_level_rewards": rewards, "response_mask": mask, "index": [0, 0]}
    >>> compute_advantages("rloo", batch)[0]
    tensor([[ 1.,  1.],
            [-1., -1.]])
    """
    estimator = get_advantage_estimator(choice)
    parameters = inspect.signature(estimator.function).parameters
    name = choice if isinstance(choice, str) else estimator.name
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in batch
    ]
    if missing:
        raise ConfigError(
            f"the advantage estimator {name!r} needs {', '.join(missing)}, which this batch does "
            f"not have. It has: {', '.join(sorted(batch))}."
        )
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    found = estimator(**{key: batch[key] for key in batch if takes_all or key in parameters})
    if not isinstance(found, tuple) or len(found) != 2 or not all(map(torch.is_tensor, found)):
        raise ConfigError(
            f"the advantage estimator {name!r} returned {type(found).__name__}, expected "
            "(advantages, returns): two tensors of the shape of response_mask"
        )
    expected = tuple(batch["response_mask"].shape)
    for what, tensor in zip(("advantages", "returns"), found, strict=True):
        if tuple(tensor.shape) != expected:
            raise ConfigError(
                f"the advantage estimator {name!r} returned {what} of shape "
                f"{tuple(tensor.shape)}, expected {expected}, that of response_mask. One number "
                f"per episode becomes {what}[:, None] * response_mask."
            )
    return found


def _chosen(setting: str, choice: Any, table: Mapping[str, Any]) -> Any:
    """Look a name up in the table or import it from a user's file; return other values as given."""
    what = setting.replace("adv_", "advantage_").replace("_", " ")
    if isinstance(choice, str):
        if choice in table:
            return table[choice]
        if ":" not in choice:
            raise ConfigError(
                f"there is no {what} {choice!r}. {_hint(setting, choice, table)} "
                "A function of your own: file.py:name."
            )
        choice = import_object(choice, option=f"training.{setting}")
    if not callable(choice):
        raise ConfigError(
            f"training.{setting} got {choice!r} ({type(choice).__name__}), expected a function"
        )
    return choice


def _hint(setting: str, choice: str, table: Mapping[str, Any]) -> str:
    """Return what to write instead of a name that is not in the table."""
    name = choice.lower()
    if (answer := answer_algorithm(name)) is not None:
        return answer
    if setting == "adv_estimator" and name in POLICY_LOSSES:
        return f"{choice} is a policy loss: policy_loss: {name} with adv_estimator: grpo."
    if setting == "policy_loss" and name in ADVANTAGE_ESTIMATORS:
        return f"{choice} is an advantage estimator: adv_estimator: {name} with policy_loss: ppo."
    return did_you_mean(name, table)
