"""Records in which an algorithm declares what it needs of a run.

A run looks at these records, never at the names of a function's parameters, to decide whether there
is a critic, how many episodes a group has, or which settings a loss gets.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import torch

from turnwise.algo.losses.policy import LossOptions
from turnwise.algo.masked import TensorMetrics
from turnwise.errors import ConfigError, did_you_mean

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
_LOSS_SIGNATURE = f"({', '.join(LOSS_ARGUMENTS)}, **options) -> (loss, metrics)"


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
        parameters = _parameters(self.function)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            takes = [name for name in parameters if name not in ESTIMATOR_ARGUMENTS]
            check_options(f"the advantage estimator {self.name!r}", options, takes)
        return replace(self, function=functools.partial(self.function, **options))

    def check(self) -> None:
        """Raise unless a run can call the function with what is declared here."""
        for name, parameter in _parameters(self.function).items():
            if parameter.default is not parameter.empty or parameter.kind in _ANY:
                continue
            if name not in ESTIMATOR_ARGUMENTS:
                raise ConfigError(
                    f"the advantage estimator {self.name!r} takes {name!r}, which a run cannot "
                    f"pass. Expected some of: {', '.join(ESTIMATOR_ARGUMENTS)}."
                )
            need = ESTIMATOR_ARGUMENTS[name]
            if need is not None and not getattr(self, need):
                raise ConfigError(
                    f"the advantage estimator {self.name!r} takes {name!r}, which a run passes "
                    "only if the estimator declares it. Write "
                    f"AdvantageEstimator({self.name}, {need}=True)."
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
        found = self.function(*args, **kwargs)
        if not isinstance(found, tuple) or len(found) != 2 or not torch.is_tensor(found[0]):
            raise ConfigError(
                f"the policy loss {self.name!r} returned {type(found).__name__}, expected (loss, "
                "metrics): a scalar tensor and a dict"
            )
        return found

    @property
    def name(self) -> str:
        """The name of the function."""
        return _name(self.function)

    def check(self, options: Mapping[str, Any] | None = None) -> None:
        """Raise unless the function can be called as a run calls it, with these options."""
        options = options or {}
        if self.function.__module__.startswith("turnwise.algo."):  # of others `options` may be any
            own = [n for n, p in _parameters(self.function).items() if p.kind not in _ANY]
            known = [name for name in own if name not in (*LOSS_ARGUMENTS, "selected", "generator")]
            check_options(f"the policy loss {self.name!r}", options, known)
        given = {**options, **dict.fromkeys(LossOptions.__annotations__)}
        if self.has_clip_range:
            given |= dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
        try:
            inspect.signature(self.function).bind(*LOSS_ARGUMENTS, **given)
        except TypeError as error:
            raise ConfigError(
                f"the policy loss {self.name!r} cannot be called: {error}. Expected "
                f"{_LOSS_SIGNATURE}; the options are {', '.join(given)}."
            ) from None


_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def check_options(what: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Refuse an option that is not known, with the nearest one that is."""
    for name in options:
        if name not in known:
            raise ConfigError(f"{what} has no option {name!r}. {did_you_mean(name, known)}")
