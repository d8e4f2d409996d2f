"""From a run's settings to a learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from turnwise.algo.choose import Algorithm
from turnwise.config import ConfigStore
from turnwise.learner.lora import add_configured_lora, has_adapters
from turnwise.learner.model import PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.update import Learner
from turnwise.models.empty import placeholder_weights


def make_learner(
    config: ConfigStore,
    model: Any,
    *,
    algorithm: Algorithm | None = None,
    reference: Any = None,
    total_steps: int | None = None,
    make: Callable[..., Learner] = Learner,
) -> Learner:
    """Return a learner that trains this model in place, with the options of the settings.

    `algorithm` defaults to the one that the settings name. Call this before an engine is made on
    the same modules: it may add adapters to them. Without `reference` a copy of the model becomes
    the reference, if a KL term needs one. `make` has the signature of `Learner`.
    """
    training = config.training
    algorithm = algorithm or Algorithm.of(training)
    add_first_adapters(config, model)
    needs_reference = training.use_kl_in_reward or training.kl_loss_coef > 0
    if needs_reference and reference is None and not has_adapters(model):
        reference = copy.deepcopy(model)
    options = LearnerOptions.from_config(config, total_steps, algorithm.policy_loss)
    policy = make_policy(config, model, algorithm)
    return make(policy, options, reference=reference if needs_reference else None)


def make_policy(config: ConfigStore, model: Any, algorithm: Algorithm) -> PolicyValueModel:
    """Return the policy that the settings describe, with a critic if the algorithm needs one."""
    add_first_adapters(config, model)
    return PolicyValueModel(
        model,
        config.training.critic if algorithm.estimator.needs_critic else None,
        temperature=config.inference.temperature,
        gradient_checkpointing=config.training.gradient_checkpointing,
    )


def add_first_adapters(config: ConfigStore, model: Any) -> None:
    """Add the adapters of the settings to a model that has none; they depend on the seed alone."""
    if not has_adapters(model):
        with torch.random.fork_rng(), placeholder_weights(model):
            torch.manual_seed(config.training.seed)
            add_configured_lora(model, config.training)
