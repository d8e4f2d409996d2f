"""From a run's settings to a learner."""

import contextlib
import copy
from typing import Any

import torch

from turnwise.algo.choose import Algorithm
from turnwise.config import ConfigStore
from turnwise.learner.lora import add_configured_lora, has_adapters
from turnwise.learner.model import PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.update import Learner
from turnwise.models import load_model
from turnwise.models.empty import is_empty, load_empty_model, model_device, placeholder_weights
from turnwise.models.weight_files import NotLoadableInParts
from turnwise.user_code import require_model_code


def make_learner(
    config: ConfigStore,
    model: Any,
    *,
    algorithm: Algorithm | None = None,
    total_steps: int | None = None,
    context_size: int | None = None,
) -> Learner:
    """Return a learner that trains this model in place, with the options of the settings.

    `algorithm` defaults to the one that the settings name. Call this before an engine is made on
    the same modules: it may add adapters to them. If a KL term needs a reference, it is the model
    of `model.reference`, or a copy of this one. `context_size` is that of `Learner`.
    """
    training = config.training
    algorithm = algorithm or Algorithm.from_settings(training)
    _add_first_adapters(config, model)  # before the reference: with adapters it is no copy
    name = config.model.reference
    reference = None
    if training.use_kl_in_reward or training.kl_loss_coef > 0:
        if name is not None:
            reference = _load_reference(name, model, config.model.trust_remote_code)
        elif not has_adapters(model):
            reference = copy.deepcopy(model)
    options = LearnerOptions.from_config(config, total_steps, algorithm.policy_loss)
    policy = make_policy(config, model, algorithm)
    learner = Learner(policy, options, reference=reference, context_size=context_size)
    learner.keeps_reference = name is not None
    return learner


def _load_reference(name: str, like: Any, trust_remote_code: bool) -> Any:
    if trust_remote_code:
        require_model_code(name)
    options: Any = {"dtype": like.dtype, "device": model_device(like)}
    if is_empty(like):  # learners read their shards
        with contextlib.suppress(NotLoadableInParts):
            return load_empty_model(name, **options, trust_remote_code=trust_remote_code)
    return load_model(name, **options, trust_remote_code=trust_remote_code).model


def make_policy(config: ConfigStore, model: Any, algorithm: Algorithm) -> PolicyValueModel:
    """Return the policy that the settings describe, with a critic if the algorithm needs one."""
    _add_first_adapters(config, model)
    return PolicyValueModel(
        model,
        config.training.critic if algorithm.estimator.needs_critic else None,
        temperature=config.inference.temperature,
        gradient_checkpointing=config.training.gradient_checkpointing,
    )


def _add_first_adapters(config: ConfigStore, model: Any) -> None:
    """Add the adapters of the settings to a model that has none; they depend on the seed alone."""
    if not has_adapters(model):
        with torch.random.fork_rng(), placeholder_weights(model):
            torch.manual_seed(config.training.seed)
            add_configured_lora(model, config.training)
