"""A mix of environments, as a user passes it to the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnwise.config import ConfigStore, EnvironmentItem
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import EnvironmentSource
from turnwise.errors import ConfigError, did_you_mean
from turnwise.tools import ToolRegistry
from turnwise.trainer.checks import check_curriculum
from turnwise.trainer.components import MixEnvironment, UserComponents
from turnwise.trainer.curriculum import Curriculum, evaluation_tasks
from turnwise.user_code import code_name

GivenEnvironment: TypeAlias = (
    EnvironmentSource | tuple[EnvironmentSource, float] | Mapping[str, Any]
)
"""An environment of a mix: alone, with a weight, or as a dict with the keys of the YAML."""

_SETTINGS = ("weight", "name", "max_steps", "params")
_OBJECTS = ("reward", "dataset", "eval_dataset", "tools", "system_prompt", "curriculum")


@dataclass(frozen=True)
class GivenMixEnvironment:
    """One environment of a mix as it was passed in Python."""

    item: EnvironmentItem
    """Its settings."""
    objects: UserComponents
    """Its code and rows."""
    curriculum: Curriculum | None = None

    @classmethod
    def of(cls, given: GivenEnvironment) -> GivenMixEnvironment:
        """Return it from an environment, a pair with its weight, or a dict with the YAML keys."""
        if isinstance(given, tuple):
            if len(given) != 2:
                raise ConfigError(
                    f"environments got a tuple of {len(given)}, expected (environment, weight)"
                )
            given = {"environment": given[0], "weight": given[1]}
        if not isinstance(given, Mapping):
            given = {"environment": given}
        known = ("environment", *_SETTINGS, *_OBJECTS)
        if odd := next((key for key in given if key not in known), None):
            raise ConfigError(
                f"an environment of a mix has no setting {odd!r}. {did_you_mean(odd, known)}"
            )
        if "environment" not in given:
            raise ConfigError(f"environments got {dict(given)!r:.200}, expected an 'environment'")
        source = given["environment"]
        named = {key for key in _OBJECTS if _is_named(key, given.get(key))}
        objects = {key: given.get(key) for key in _OBJECTS if key not in named}
        tools = objects.get("tools")
        if tools is not None and not isinstance(tools, ToolRegistry):
            tools = ToolRegistry(tools)
        if isinstance(source, BaseEnvironment) and {"max_steps", "params"} & set(given):
            raise ConfigError(
                f"an environment of a mix got max_steps or params, and {type(source).__name__} is "
                "an instance, which has its settings already. Pass the class, or only the instance."
            )
        curriculum = objects.get("curriculum")
        check_curriculum(curriculum)
        if curriculum is not None and not {"dataset", "eval_dataset"} & set(given):
            objects["eval_dataset"] = evaluation_tasks(curriculum)
        label = source if isinstance(source, str) else code_name(source)
        own = {key: given[key] for key in (*_SETTINGS, *named) if given.get(key) is not None}
        return cls(
            EnvironmentItem(label, **own),
            UserComponents(
                source,
                objects.get("reward"),
                objects.get("dataset"),
                objects.get("eval_dataset"),
                tools,
                system_prompt=objects.get("system_prompt"),
            ),
            curriculum,
        )


def _is_named(key: str, value: Any) -> bool:
    """Whether a value is written as in YAML: the name of code, or a mapping of settings."""
    if key in ("dataset", "eval_dataset"):
        return isinstance(value, Mapping)
    if isinstance(value, list) and key in ("reward", "tools"):
        return all(isinstance(entry, str | Mapping) for entry in value)
    return key == "reward" and isinstance(value, str)


def given_environments(
    environments: Iterable[GivenEnvironment] | Mapping[str, GivenEnvironment],
) -> list[GivenMixEnvironment]:
    """Return the environments of a mix, from a list or from a dict with their names."""
    if isinstance(environments, str) or not isinstance(environments, Iterable):
        raise ConfigError(
            f"environments got {environments!r:.200}, expected a list of environments, of "
            "(environment, weight), or of dicts"
        )
    if not isinstance(environments, Mapping):
        return [GivenMixEnvironment.of(given) for given in environments]
    found = {name: GivenMixEnvironment.of(given) for name, given in environments.items()}
    return [
        dataclasses.replace(one, item=dataclasses.replace(one.item, name=name))
        for name, one in found.items()
    ]


def with_mix(
    config: ConfigStore,
    given: UserComponents,
    environments: Iterable[GivenEnvironment] | Mapping[str, GivenEnvironment] | None,
) -> tuple[ConfigStore, UserComponents]:
    """Return the settings and the user's components with the mix that one of them has."""
    mix: list[GivenMixEnvironment] = []
    if environments is not None:
        mix = given_environments(environments)
        items = [environment.item for environment in mix]
        config = dataclasses.replace(config, environments=items).validate()
    if config.environments is None:
        return config, given
    for name in ("environment", "agent", "dataset", "eval_dataset"):
        if getattr(given, name) is not None:
            raise ConfigError(
                f"{name}= and a mix of environments are both given. "
                + (
                    "Keep one of them."
                    if name in ("environment", "agent")
                    else "Rows are tasks of one environment: "
                    f"environments=[{{'environment': ..., '{name}': ...}}]"
                )
            )
    return config, dataclasses.replace(given, mix=mix_of(config, mix, given))


def mix_of(
    config: ConfigStore, given: Sequence[GivenMixEnvironment], shared: UserComponents
) -> tuple[MixEnvironment, ...]:
    """Return the environments of a mix, each with its own and the shared components.

    `given` are those passed in Python; without them the mix is that of the settings.
    """
    items = config.environments or []
    found = []
    for number, (name, settings) in enumerate(config.parts().items()):
        item, own = items[number], given[number].objects if given else UserComponents()
        objects = dataclasses.replace(
            shared,
            environment=_first(own.environment, item.environment),
            dataset=own.dataset,
            eval_dataset=own.eval_dataset,
            # A component that is None is taken from the settings of the environment.
            reward_fn=_first(own.reward_fn, None if item.reward else shared.reward_fn),
            tools=_first(own.tools, shared.tools if item.tools is None else None),
            system_prompt=_first(
                own.system_prompt, shared.system_prompt if item.system_prompt is None else None
            ),
        )
        found.append(
            MixEnvironment(
                name,
                item.weight,
                settings,
                own,
                objects.filled_from(settings),
                has_own_tools=own.tools is not None or item.tools is not None,
                curriculum=given[number].curriculum if given else None,
            )
        )
    return tuple(found)


def _first(own: Any, other: Any) -> Any:
    return other if own is None else own
