"""The one place where an algorithm is chosen: by name from a plain dict, or as a function.

A record declares what an algorithm needs. A run looks at it, never at the names of a function's
parameters, to decide whether there is a critic, how many episodes a group has, or which settings a
loss gets.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import torch

from turnwise.algo.advantages import gae, outcome, turns
from turnwise.algo.correction import checked_bounds
from turnwise.algo.losses import covariance, policy
from turnwise.algo.masked import TensorMetrics
from turnwise.config import TrainingConfig
from turnwise.config.fields import answer_algorithm
from turnwise.errors import ConfigError, did_you_mean
from turnwise.user_code import import_object

EstimatorFunction: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Takes fields of a batch by keyword, returns (advantages, returns), both [B, T]."""
LossFunction: TypeAlias = Callable[..., tuple[torch.Tensor, TensorMetrics]]
"""(old_log_probs, log_probs, advantages, response_mask, **options) -> (loss, metrics)."""

ESTIMATOR_ARGUMENTS: Mapping[str, str | None] = {
    "token_level_rewards": None,
    "response_mask": None,
    "gamma": None,
    "lam": None,
    "turn_ids": None,
    "anchor_states": None,
    "reward_parts": None,
    "index": "needs_groups",
    "values": "needs_critic",
    "bootstrap_values": "needs_critic",
    "reward_baselines": "needs_greedy_episode",
    "old_log_probs": "needs_old_log_probs",
    "sum_pi_squared": "needs_sum_pi_squared",
}
"""What a run can pass to an estimator by keyword, and the field that must be set to get it."""

LOSS_ARGUMENTS = ("old_log_probs", "log_probs", "advantages", "response_mask")
CLIP_RANGE = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
_MANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True)
class AdvantageEstimator:
    """An advantage estimator, and what a run must provide for it.

    >>> def centered(token_level_rewards, response_mask, index):
    ...     ...
    >>> AdvantageEstimator(centered, needs_groups=True).name
    'centered'
    """

    function: EstimatorFunction
    """Called with those of `ESTIMATOR_ARGUMENTS` that it takes, by keyword."""
    needs_critic: bool = False
    """Train a value head, and pass `values` [B, T] and `bootstrap_values` [B]."""
    needs_groups: bool = False
    """Play several episodes from each start; `index` is the group of each episode."""
    needs_greedy_episode: bool = False
    """Play one more, greedy episode from each start; `reward_baselines` [B] is its reward."""
    needs_old_log_probs: bool = False
    """Pass `old_log_probs` [B, T], the log-probs of the policy that sampled."""
    needs_sum_pi_squared: bool = False
    """Compute `sum_pi_squared` [B, T], the sum over the vocabulary of squared probabilities."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name of the function."""
        return _name(self.function)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return the same estimator with keyword arguments of its own, such as norm_by_std."""
        if not options:
            return self
        parameters = inspect.signature(self.function).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            known = [name for name in parameters if name not in ESTIMATOR_ARGUMENTS]
            check_options(f"the advantage estimator {self.name!r}", options, known)
        return replace(self, function=functools.partial(self.function, **options))

    def check(self) -> None:
        """Raise unless a run can call the function with what is declared here."""
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.default is not parameter.empty or parameter.kind in _MANY:
                continue
            if name not in ESTIMATOR_ARGUMENTS:
                raise ConfigError(
                    f"the advantage estimator {self.name!r} takes {name!r}, which a run cannot "
                    f"pass. Expected some of: {', '.join(ESTIMATOR_ARGUMENTS)}."
                )
            need = ESTIMATOR_ARGUMENTS[name]
            if need is not None and not getattr(self, need):
                raise ConfigError(
                    f"the advantage estimator {self.name!r} takes {name!r}, and has to declare it: "
                    f"AdvantageEstimator({self.name}, {need}=True)"
                )


@dataclass(frozen=True)
class TokenSelection:
    """How a loss picks some tokens of a whole batch, before the batch is split into packs."""

    function: Callable[..., torch.Tensor]
    """(old_log_probs, log_probs, advantages, **options) of N policy tokens -> [N] bool."""
    options: tuple[str, ...] = ()
    """The options of the loss that the function takes too."""
    is_random: bool = False
    """Whether the function takes a `generator`."""


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss, and which settings it takes.

    The function is called with `(old_log_probs, log_probs, advantages, response_mask)`, all [B, T],
    and as keywords `totals`, `training.policy_loss_options`, and where they are set
    `loss_agg_mode` and `importance_weights`. It returns a scalar and a dict of metrics.
    """

    function: LossFunction
    has_clip_range: bool = False
    """Pass `clip_ratio`, `clip_ratio_low` and `clip_ratio_high` from the settings."""
    selection: TokenSelection | None = None
    """For a loss that picks tokens of a whole batch; it is passed the choice as `selected`."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, TensorMetrics]:
        output = self.function(*args, **kwargs)
        if not isinstance(output, tuple) or len(output) != 2 or not torch.is_tensor(output[0]):
            raise ConfigError(
                f"the policy loss {self.name!r} returned {type(output).__name__}, expected (loss, "
                "metrics): a scalar tensor and a dict"
            )
        return output

    @property
    def name(self) -> str:
        """The name of the function."""
        return _name(self.function)

    def check(self, options: Mapping[str, Any] | None = None) -> None:
        """Raise unless the function can be called as a run calls it, with these options."""
        signature = inspect.signature(self.function)
        if self.function.__module__.startswith("turnwise.algo."):  # of others `options` may be any
            names = [name for name, p in signature.parameters.items() if p.kind not in _MANY]
            known = [n for n in names if n not in (*LOSS_ARGUMENTS, "selected", "generator")]
            check_options(f"the policy loss {self.name!r}", options or {}, known)
        given = dict.fromkeys([*(options or {}), *policy.LossOptions.__annotations__])
        if self.has_clip_range:
            given |= dict.fromkeys(CLIP_RANGE)
        try:
            signature.bind(*LOSS_ARGUMENTS, **given)
        except TypeError as error:
            raise ConfigError(
                f"the policy loss {self.name!r} cannot be called: {error}. Expected "
                f"({', '.join(LOSS_ARGUMENTS)}, **options) -> (loss, metrics); the options are "
                f"{', '.join(given)}."
            ) from None


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def check_options(what: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Refuse an option that is not known, with the nearest one that is."""
    for name in options:
        if name not in known:
            raise ConfigError(f"{what} has no option {name!r}. {did_you_mean(name, known)}")


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

_CLIP_COV = TokenSelection(
    covariance.select_clip_cov_tokens,
    (*CLIP_RANGE, "clip_cov_ratio", "clip_cov_lower", "clip_cov_upper"),
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
    "clip_cov": PolicyLoss(covariance.compute_clip_cov_loss, True, _CLIP_COV),
    "kl_cov": PolicyLoss(covariance.compute_kl_cov_loss, selection=_KL_COV),
    "dppo_tv": PolicyLoss(policy.compute_dppo_tv_loss, has_clip_range=True),
    "dppo_kl": PolicyLoss(policy.compute_dppo_kl_loss, has_clip_range=True),
    "reinforce": PolicyLoss(policy.compute_reinforce_loss),
}

EstimatorChoice: TypeAlias = str | AdvantageEstimator | EstimatorFunction
"""A name of `ADVANTAGE_ESTIMATORS`, `file.py:name`, a record, or a function without needs."""
LossChoice: TypeAlias = str | PolicyLoss | LossFunction
"""A name of `POLICY_LOSSES`, `file.py:name`, a record, or a function that takes no clip range."""


def look_up(setting: str, choice: Any, table: Mapping[str, Any]) -> Any:
    """Return what a setting chooses: from a table, as `file.py:name`, or as an object."""
    if isinstance(choice, str):
        if choice in table:
            return table[choice]
        if ":" not in choice:
            what = setting.replace("adv_", "advantage_").replace("_", " ")
            name = choice.lower()
            if (hint := answer_algorithm(name)) is None:
                hint = did_you_mean(name, table)
                if setting == "adv_estimator" and name in POLICY_LOSSES:
                    hint = f"Take policy_loss: {name} with adv_estimator: grpo."
                elif setting == "policy_loss" and name in ADVANTAGE_ESTIMATORS:
                    hint = f"Take adv_estimator: {name} with policy_loss: ppo."
            raise ConfigError(
                f"there is no {what} {choice!r}. {hint} A function of your own: file.py:name."
            )
        choice = import_object(choice, option=f"training.{setting}")
    if not callable(choice):
        raise ConfigError(
            f"training.{setting} got {choice!r} ({type(choice).__name__}), expected a function"
        )
    return choice


def get_advantage_estimator(choice: EstimatorChoice) -> AdvantageEstimator:
    """Return the estimator of that name; a function becomes one that declares no needs."""
    estimator = look_up("adv_estimator", choice, ADVANTAGE_ESTIMATORS)
    return estimator if isinstance(estimator, AdvantageEstimator) else AdvantageEstimator(estimator)


def get_policy_loss(choice: LossChoice) -> PolicyLoss:
    """Return the policy loss of that name; a function becomes one without a clip range."""
    loss = look_up("policy_loss", choice, POLICY_LOSSES)
    return loss if isinstance(loss, PolicyLoss) else PolicyLoss(loss)


@dataclass(frozen=True)
class Algorithm:
    """The estimator and the policy loss of a run, checked against the settings when it is made."""

    estimator: AdvantageEstimator
    policy_loss: PolicyLoss

    @classmethod
    def from_settings(
        cls,
        training: TrainingConfig,
        adv_estimator: EstimatorChoice | None = None,
        policy_loss: LossChoice | None = None,
    ) -> Self:
        """Return the algorithm given in Python, completed by the one that the settings name."""
        estimator = get_advantage_estimator(adv_estimator or training.adv_estimator)
        estimator = estimator.with_options(training.adv_options)
        estimator.check()
        loss = get_policy_loss(policy_loss or training.policy_loss)
        loss.check(training.policy_loss_options)
        clip_range = (training.clip_ratio_low, training.clip_ratio_high)
        if clip_range != (None, None) and not loss.has_clip_range:
            raise ConfigError(
                f"training.clip_ratio_low and clip_ratio_high got {clip_range}, expected null: the "
                f"policy loss {loss.name!r} has no clip range. training.policy_loss=ppo has one."
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
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    output = estimator(**{key: batch[key] for key in batch if takes_all or key in parameters})
    expected = tuple(batch["response_mask"].shape)
    shapes = [tuple(getattr(x, "shape", ())) for x in output] if isinstance(output, tuple) else None
    if shapes != [expected, expected]:
        raise ConfigError(
            f"advantage estimator {estimator.name!r} returned {shapes or type(output).__name__}, "
            f"expected (advantages, returns), both of the shape of response_mask, {expected}. One "
            "number per episode becomes advantages[:, None] * response_mask."
        )
    return output
