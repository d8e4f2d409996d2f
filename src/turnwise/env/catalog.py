"""From a name, a class, a factory or an instance to as many fresh environments as are needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.user_code import import_object, require_code

EnvironmentFactory: TypeAlias = Callable[[], BaseEnvironment]
EnvironmentSource: TypeAlias = (
    str | BaseEnvironment | type[BaseEnvironment] | Callable[..., BaseEnvironment]
)

# The one line where a built-in environment is named.
BUILT_IN: dict[str, str] = {
    "guess-number": "turnwise.env.games.guess_number:GuessNumberEnvironment",
    "grid-world": "turnwise.env.games.grid_world:GridWorldEnvironment",
    "alphabet-sort": "turnwise.env.games.alphabet_sort:AlphabetSortEnvironment",
    "shop": "turnwise.env.games.shop:ShopEnvironment",
    "simple-game": "turnwise.env.games.simple:SimpleGameEnvironment",
    "custom-game": "turnwise.env.games.custom:CustomGameEnvironment",
}

PROMPTS = "prompts"
"""The environment of a dataset of prompts: it cannot be played without one."""

# "gym:CartPole-v1" is CartPole-v1 of the adapter named gym; the rest of the name goes to it.
ADAPTERS: dict[str, str] = {
    "gym": "turnwise.env.adapters.gymnasium:GymnasiumEnvironment",
    "textarena": "turnwise.env.adapters.textarena:TextArenaEnvironment",
    "reasoning-gym": "turnwise.env.adapters.reasoning_gym:ReasoningGymEnvironment",
}


def environment_factory(
    source: EnvironmentSource,
    config: EnvironmentConfig | Mapping[str, Any] | None = None,
) -> EnvironmentFactory:
    """A function that makes a fresh environment each time it is called.

    `source` is a name from the catalogue, `path.py:Class`, `module:Class`, a class, a factory
    (a function without arguments, or one that takes the config), or an instance, which stays
    untouched: each call spawns a copy of it.
    """
    config = EnvironmentConfig.of(config)
    if isinstance(source, str):
        return _factory_by_name(source, config)
    if isinstance(source, BaseEnvironment):
        return source.spawn
    if not callable(source):
        raise ConfigError(
            f"an environment must be a name, a class, a factory or an instance, "
            f"got {type(source).__name__}"
        )
    takes_config = isinstance(source, type) or bool(inspect.signature(source).parameters)

    def make() -> BaseEnvironment:
        env = source(config) if takes_config else source()
        if not isinstance(env, BaseEnvironment):
            raise EnvironmentFault(
                f"the environment factory {_name_of(source)} returned {type(env).__name__}, "
                "expected a BaseEnvironment. Derive the class from turnwise.BaseEnvironment."
            )
        return env

    return make


def make_environment(
    source: EnvironmentSource,
    config: EnvironmentConfig | Mapping[str, Any] | None = None,
) -> BaseEnvironment:
    """One fresh environment."""
    return environment_factory(source, config)()


def _factory_by_name(name: str, config: EnvironmentConfig) -> EnvironmentFactory:
    source = source_by_name(name)
    prefix, colon, rest = name.partition(":")
    if colon and prefix in ADAPTERS:
        if ":" in rest:  # Gymnasium imports the module in `gym:module:Name-v0`
            require_code(rest)
        return lambda: source(rest, config)
    return environment_factory(source, config)


def source_by_name(name: str) -> Callable[..., BaseEnvironment]:
    """The class or factory that a name means: `guess-number`, `gym:CartPole-v1`, `file.py:Maze`."""
    prefix, colon, _ = name.partition(":")
    target = ADAPTERS.get(prefix) if colon else BUILT_IN.get(name)
    if name == PROMPTS:
        target = "turnwise.env.prompts:PromptEnvironment"
    if target is None and not colon:
        raise ConfigError(
            f"there is no environment {name!r}. {did_you_mean(name, BUILT_IN)} "
            "An own one is written path/to/file.py:ClassName, a Gymnasium one gym:CartPole-v1."
        )
    found: Callable[..., BaseEnvironment] = import_object(
        target or name, option="--env or environment.name", is_built_in=target is not None
    )
    return found


def _name_of(source: object) -> str:
    return getattr(source, "__qualname__", type(source).__name__)
