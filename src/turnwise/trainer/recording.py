"""What a run consists of, as names that a file can hold, so that the run can be played again.

`recorded` writes what Python gave into the settings; `identity` says by a hash what each piece of
it does, so that a changed reward function is noticed when the run is started again.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from typing import Any

from turnwise.algo.choose import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    EstimatorChoice,
    LossChoice,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.config import (
    ConfigStore,
    EnvironmentConfig,
    EnvironmentItem,
    LimitsConfig,
    RewardItem,
)
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import ADAPTERS, EnvironmentSource, source_by_name
from turnwise.env.driver import close_environment
from turnwise.episode import EpisodeLimits
from turnwise.episode.options import ParserChoice
from turnwise.reward import RewardFn, WeightedReward
from turnwise.reward.function import step_rewards
from turnwise.tools.by_name import uses_of
from turnwise.tools.parsers import PARSERS
from turnwise.trainer.components import MixEnvironment, UserComponents, environment_of
from turnwise.trainer.labels import algorithm_label, callable_label, is_made_alone, object_label
from turnwise.trainer.recorded_rows import dataset_hash, dataset_setting
from turnwise.trainer.recorded_tools import tool_entries, tools_description
from turnwise.user_code import fingerprint, reference_to, remember_code, remember_use

_UNLIMITED = 2**31 - 1


def recorded(config: ConfigStore, given: UserComponents) -> ConfigStore:
    """Return the settings with everything that Python gave written in by name.

    `given` is what the user passed to the trainer, before it was filled from the settings. What
    cannot be imported again stands there as `<notebook>:Name` or the like.
    """
    found = copy.deepcopy(config)
    for item, part in zip(found.environments or (), given.mix, strict=True):
        _record_part(item, part)
    environment = given.environment
    if environment is None and given.dataset is not None:
        environment = environment_of(given, config)  # prompts, if no other was named
    if environment is not None:
        found.environment = _environment(environment, config.environment)
    if given.reward_fn is not None:
        found.reward = _reward(given.reward_fn)
    if given.tools is not None:
        found.tools = tool_entries(given.tools)
    if given.parser is not None:
        found.parser = _parser(given.parser)
    if given.model is not None:
        found.model.model_name, found.model.local_path = object_label(given.model), None
    if given.system_prompt is not None:
        found.system_prompt = given.system_prompt
    if given.limits is not None:
        found.limits = _limits(given.limits)
    if given.adv_estimator is not None:
        found.training.adv_estimator = _estimator(given.adv_estimator)
    if given.policy_loss is not None:
        found.training.policy_loss = _loss(given.policy_loss)
    for name in ("dataset", "eval_dataset"):
        if getattr(given, name) is not None:
            setattr(found, name, dataset_setting(getattr(given, name)))
    for target in _targets(found):
        remember_code(target)  # a later command may then import it because this folder names it
    for entry in found.tools:
        for use in uses_of(entry):
            remember_use(use)
    return found


def _record_part(item: EnvironmentItem, part: MixEnvironment) -> None:
    """Write what Python gave for an environment of a mix into its settings."""
    own = recorded(part.config, part.given)
    item.environment = own.environment.name
    item.max_steps, item.params = own.environment.max_steps, own.environment.params
    if part.given.reward_fn is not None:
        item.reward = own.reward
    if part.given.tools is not None:
        item.tools = own.tools
    if part.given.system_prompt is not None:
        item.system_prompt = own.system_prompt
    item.dataset, item.eval_dataset = own.dataset, own.eval_dataset


def _limits(limits: EpisodeLimits) -> LimitsConfig:
    """The limits as settings, where null in these two means the section inference, not none."""
    found = LimitsConfig(**dataclasses.asdict(limits))
    found.max_turns = limits.max_turns or _UNLIMITED
    found.max_tokens_per_turn = limits.max_tokens_per_turn or _UNLIMITED
    return found


def _targets(config: ConfigStore) -> list[str]:
    """Code that the settings name and that can be imported."""
    named = [name for part in config.parts().values() for name in _named_code(part)]
    return [
        name
        for name in dict.fromkeys(named)
        if ":" in name and not name.startswith("<") and name.partition(":")[0] not in ADAPTERS
    ]


def _named_code(config: ConfigStore) -> list[str]:
    """What the settings of one environment name."""
    rewards = [config.reward] if isinstance(config.reward, str) else config.reward or []
    return [
        config.environment.name,
        config.parser,
        config.training.adv_estimator,
        config.training.policy_loss,
        *(item if isinstance(item, str) else item.function or "" for item in rewards),
        *(tool for tool in config.tools if isinstance(tool, str)),
    ]


def identity(user: UserComponents, config: ConfigStore) -> dict[str, str]:
    """Return a hash of what each piece of a run does, by its name in the settings.

    Of a mix, what an environment has of its own is named after it: `environment of maze`.
    """
    found = {
        "reward": _reward_code(user.reward_fn),
        "system_prompt": _hash(user.system_prompt or ""),
        "tools": _hash(tools_description(user.tools, config)),
    }
    if not user.mix:
        found = {"environment": _code_of(user.environment), **found}
    found |= _algorithm_code(user, config)
    if user.dataset is not None:
        found["dataset"] = dataset_hash(user.dataset)
    for part in user.mix:
        own = identity(part.components, part.config)
        found |= {
            f"{name} of {part.name}": value
            for name, value in own.items()
            if value != found.get(name)  # shared by all, and named once
        }
    return found


def _algorithm_code(user: UserComponents, config: ConfigStore) -> dict[str, str]:
    """Hashes of a user's own estimator and policy loss; those of turnwise have their names."""
    training = config.training
    estimator = user.adv_estimator or training.adv_estimator
    loss = user.policy_loss or training.policy_loss
    found = {}
    if estimator not in ADVANTAGE_ESTIMATORS:
        found["adv_estimator"] = fingerprint(get_advantage_estimator(estimator).function)
    if loss not in POLICY_LOSSES:
        found["policy_loss"] = fingerprint(get_policy_loss(loss).function)
    return found


def _environment(source: EnvironmentSource, config: EnvironmentConfig) -> EnvironmentConfig:
    if isinstance(source, str):
        return dataclasses.replace(config, name=source)
    reference = reference_to(source)
    if isinstance(source, BaseEnvironment):
        own = dataclasses.replace(source.config, name=reference.label, reward=config.reward)
        return own if _is_remade(source) else dataclasses.replace(own, name=object_label(source))
    return dataclasses.replace(config, name=reference.label)


def _is_remade(environment: BaseEnvironment) -> bool:
    """Whether the class and the config alone make the same environment again."""
    try:
        again = type(environment)(environment.config)
        is_same = fingerprint(again) == fingerprint(environment)
        close_environment(again)
    except Exception:  # the user's constructor wants more than a config
        return False
    return is_same


def _reward(function: RewardFn) -> str | list[RewardItem]:
    if isinstance(function, WeightedReward):
        return [
            RewardItem(None if part is step_rewards else callable_label(part), weight, name)
            for name, (part, weight) in function.functions.items()
        ]
    return callable_label(function)


def _estimator(choice: EstimatorChoice) -> str:
    if isinstance(choice, str):
        return choice
    record = get_advantage_estimator(choice)
    names = [name for name, known in ADVANTAGE_ESTIMATORS.items() if known == record]
    return names[0] if names else algorithm_label(record)


def _loss(choice: LossChoice) -> str:
    if isinstance(choice, str):
        return choice
    record = get_policy_loss(choice)
    names = [name for name, known in POLICY_LOSSES.items() if known == record]
    return names[0] if names else algorithm_label(record)


def _parser(parser: ParserChoice) -> str:
    if isinstance(parser, str):
        return parser
    known = next((name for name, kind in PARSERS.items() if kind is type(parser)), None)
    if known is not None:
        return known
    return reference_to(parser).label if is_made_alone(parser) else object_label(parser)


def _code_of(environment: EnvironmentSource | None) -> str:
    if isinstance(environment, str):
        return fingerprint(source_by_name(environment))
    if isinstance(environment, BaseEnvironment) and _is_remade(environment):
        return fingerprint(type(environment))  # as a command sees it, which has its name alone
    return fingerprint(environment)


def _reward_code(function: RewardFn | None) -> str:
    """A hash of the reward; of a weighted sum, of each function with its name and weight."""
    if not isinstance(function, WeightedReward):
        return fingerprint(function)
    return _hash(
        [[name, weight, fingerprint(fn)] for name, (fn, weight) in function.functions.items()]
    )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
