"""Turns an id, a function or an instance into a factory of Gymnasium environments."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from turnwise.errors import ConfigError, MissingExtraError, import_extra

gymnasium: Any = import_extra("gymnasium", "gym")

Env: TypeAlias = Any
"""A `gymnasium.Env`."""


def maker_of(source: Any, kwargs: dict[str, Any]) -> Callable[[], Env]:
    """Returns a function that creates a fresh Gymnasium environment with each call."""
    if isinstance(source, str):
        return partial(_make_registered, source, kwargs)
    if isinstance(source, gymnasium.Env):
        if kwargs:
            raise ConfigError(
                f"an environment that is made already takes no {', '.join(kwargs)}. "
                "Give them where you make it, or pass its id instead."
            )
        return partial(_copy, source)
    if not callable(source):
        raise ConfigError(
            f"GymnasiumEnvironment takes a registered id such as 'CartPole-v1', a gymnasium.Env "
            f"or a function that makes one, got {source!r}"
        )
    return partial(_call, source, kwargs)


def _call(source: Callable[..., Env], kwargs: dict[str, Any]) -> Env:
    env = source(**kwargs)
    if isinstance(env, gymnasium.Env):
        return env
    raise ConfigError(
        f"the function given to GymnasiumEnvironment made an object of type {type(env).__name__}, "
        "expected a gymnasium.Env"
    )


def _copy(env: Env) -> Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(
            f"{env} cannot be copied for a second episode ({error}). "
            "Pass a function that makes it instead: GymnasiumEnvironment(lambda: ...)"
        ) from error


def _make_registered(name: str, kwargs: dict[str, Any]) -> Env:
    try:
        return gymnasium.make(name, **kwargs)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingExtraError(f"Gymnasium cannot make {name!r}: {_missing(error)}") from error
    except gymnasium.error.UnregisteredEnv as error:
        known = {registered.lower(): registered for registered in gymnasium.registry}
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"Did you mean {known[near[0]]!r}?" if near else "See gymnasium.pprint_registry()."
        raise ConfigError(f"Gymnasium has no environment {name!r}. {hint}") from error
    except (gymnasium.error.Error, TypeError) as error:
        raise ConfigError(f"Gymnasium cannot make {name!r} with {kwargs}: {error}") from error


def _missing(error: Exception) -> str:
    """Returns what is not installed, and the command that installs it."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return str(error)
    package = error.name.partition(".")[0]
    package = "'gymnasium[jax]'" if package in ("jax", "jaxlib", "flax") else package
    return f"{error}. Install it with: pip install {package}"
