"""Any registered Gymnasium environment as a text environment."""

from __future__ import annotations

import copy
import difflib
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters.gymnasium.descriptions import (
    Env,
    describe_environment,
    is_uncertain,
    solve_table,
    transition_table,
)
from turnwise.env.adapters.gymnasium.spaces import (
    InvalidActionError,
    Names,
    check_action_space,
    check_names,
    describe_answers,
    describe_observation,
    describe_observations,
    has_large_part,
    parse_action,
    render_action,
    spaces,
)
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, MissingExtraError, import_extra

gymnasium: Any = import_extra("gymnasium", "gym")

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


class GymnasiumEnvironment(BaseEnvironment):
    """A Gymnasium environment whose observations and actions are text.

    >>> env = GymnasiumEnvironment("FrozenLake-v1", is_slippery=False)
    >>> print(env.reset(seed=1))
    You are on ice, row 1, column 1.
    @ F F F
    F H F H
    F F F H
    H F F G
    >>> env.step("I go right.")[0].splitlines()[0]
    'You are on ice, row 1, column 2.'

    `source` is a registered id, a function or class that makes a `gymnasium.Env`, or one such.
    `action_names` and `observation_names` name the elements of the two spaces: a list, or a
    mapping from each name to its meaning. `describe` turns a whole observation into text, `task`
    states the task. All other options go to `gymnasium.make`. Each can also be set in the config's
    `params`.

    A text that is no action, or a number out of bounds, gets a message that says so; it takes a
    turn but no step of the environment, and earns `invalid_reward`. Where the environment gives an
    `action_mask`, only its actions are offered. `info` keeps `terminated` and `truncated` apart.
    """

    max_steps = 1000

    def __init__(
        self,
        source: str | Env | Callable[..., Env],
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        *,
        action_names: Names = None,
        observation_names: Names = None,
        describe: Callable[[Any], str] | None = None,
        task: str | None = None,
        invalid_reward: float | None = None,
        **make_kwargs: Any,
    ) -> None:
        super().__init__(config)
        options = dict(self.config.params)
        given: dict[str, Any] = {
            "action_names": action_names,
            "observation_names": observation_names,
            "describe": describe,
            "task": task,
            "invalid_reward": invalid_reward,
        }
        for name, value in given.items():
            configured = options.pop(name, None)
            given[name] = configured if value is None else value
        options = {**options.pop("make_kwargs", {}), **options, **make_kwargs}
        if isinstance(source, str) and self.config.max_steps is not None:
            options.setdefault("max_episode_steps", self.config.max_steps)
        self._make = _maker(source, options)
        self._adopt(source if isinstance(source, gymnasium.Env) else self._make())
        self._choose_description(**given)

    def _adopt(self, env: Env) -> None:
        """Uses a Gymnasium environment that has not started an episode yet."""
        check_action_space(env.action_space)
        self._env = env
        # A copy, so that sampling actions does not affect the environment's random state.
        self._action_space = copy.deepcopy(env.action_space)
        if env.spec is not None and env.spec.max_episode_steps is not None:
            limit = env.spec.max_episode_steps
            self.max_steps = min(self.config.max_steps or limit, limit)
        self._observation: Any = None
        self._text: str | None = None
        self._allowed: list[int] | None = None
        self._policy: Any = None
        self._closed = False

    def _choose_description(
        self,
        action_names: Any,
        observation_names: Any,
        describe: Any,
        task: str | None,
        invalid_reward: float | None,
    ) -> None:
        """Combines the built-in description with the user's own options, which take precedence."""
        chosen = describe_environment(self._env)
        space = self._env.observation_space
        if observation_names is not None:
            check_names(space, observation_names, "observation_names")
            chosen = replace(chosen, observation=observation_names, describe=None)
        if action_names is not None:
            check_names(self._action_space, action_names, "action_names")
            chosen = replace(chosen, actions=action_names)
        if task is not None:
            chosen = replace(chosen, task=task)
        if invalid_reward is not None:
            chosen = replace(chosen, invalid_reward=invalid_reward)
        if describe is not None:
            if not callable(describe):
                raise ConfigError(
                    f"describe must be a function of an observation, got {describe!r}"
                )
            chosen = replace(chosen, describe=lambda env, observation: describe(observation))
        if chosen.describe is None and has_large_part(space):
            warnings.warn(
                f"an observation of {space} is too large to be read as numbers and is only "
                "summarised. Say what matters in it: describe=lambda observation: ...",
                stacklevel=3,
            )
        self._description = chosen

    def reset(self, seed: int | None = None) -> str:
        self._done = False
        self.step_count = 0
        # Never None: copies of one environment would all have the same random numbers.
        seed = self.rng.randrange(2**31) if seed is None else seed
        observation, info = self._env.reset(seed=seed)
        return self._see(_numpy(observation), _plain(info))

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._text is None:
            raise EnvironmentFault("step() was called before reset(). Begin with reset().")
        if self.is_done():
            return "The episode is over.", 0.0, True, {}
        self.step_count += 1
        try:
            value = parse_action(self._action_space, action, self._description.actions)
            is_possible = self._allowed is None or value in self._allowed
            if not is_possible and not self._description.mask_is_advice:
                raise InvalidActionError(f"{self._render(value)} is not possible now.")
        except InvalidActionError as error:
            info = {"invalid_action": True, "terminated": False, "truncated": False}
            text = f"Invalid action: {error}\n{self._text}"
            return text, self._description.invalid_reward, False, info
        observation, reward, terminated, truncated, info = self._env.step(value)
        terminated, truncated = bool(terminated), bool(truncated)
        self._done = terminated or truncated
        info = _plain(info)
        text = self._see(_numpy(observation), info)
        info = {**info, "terminated": terminated, "truncated": truncated and not terminated}
        if self._done:
            text += "\nThe episode is over." if terminated else "\nThe time is up."
            solved = {
                "at the end": terminated,
                "with a reward": terminated and bool(reward > 0),
                "at the limit": not terminated,
            }.get(self._description.success, info.get("is_success"))
            if solved is not None:
                text += f" You {'succeeded' if solved else 'did not succeed'}."
                info["success"] = bool(solved)
        return text, float(reward), self._done, info

    def _see(self, observation: Any, info: Mapping[str, Any]) -> str:
        self._observation = observation
        if self._description.describe is not None:
            text = self._description.describe(self._env.unwrapped, observation)
        else:
            space = self._env.observation_space
            text = describe_observation(space, observation, self._description.observation)
            if self._env.render_mode == "ansi":
                # Colour often marks where the player is; brackets can be read.
                text += "\n" + _COLOURED.sub(r"[\1]", str(self._env.render())).strip("\n")
        self._allowed = None
        mask = info.get("action_mask")
        if mask is not None and isinstance(self._action_space, spaces.Discrete) and np.any(mask):
            first = int(self._action_space.start)
            self._allowed = [first + int(index) for index in np.flatnonzero(mask)]
        if self._allowed is not None and not self._done:
            text += f"\nPossible now: {', '.join(map(self._render, self._allowed))}."
        self._text = text
        return text

    def get_state_description(self) -> str:
        return "The episode has not begun." if self._text is None else self._text

    def get_prompt_prefix(self) -> str:
        description = self._description
        parts = [description.task]
        table = transition_table(self._env)
        if table is not None and is_uncertain(table):
            parts[0] += f"\n{description.uncertainty}"
        if self.max_steps != GymnasiumEnvironment.max_steps:
            parts[0] += f"\nYou have at most {self.max_steps} actions."
        if description.describe is None:
            seen = describe_observations(self._env.observation_space, description.observation)
            parts.append(seen)
        parts.append(describe_answers(self._action_space, description.actions))
        return "\n\n".join(parts)

    def sample_action(self, rng: random.Random) -> str:
        self._action_space.seed(rng.randrange(2**31))
        if self._allowed is not None:
            return self._render(rng.choice(self._allowed))
        return self._render(self._action_space.sample())

    def expert_action(self) -> str | None:
        if self._text is None or self._done:
            return None
        if self._description.expert is not None:
            return self._render(self._description.expert(self._observation))
        table = transition_table(self._env)
        if self._policy is None and table is not None:
            self._policy = solve_table(table)
        return None if self._policy is None else self._render(self._policy[self._observation])

    def _render(self, value: Any) -> str:
        return render_action(self._action_space, value, self._description.actions)

    def spawn(self) -> Self:
        twin = copy.copy(self)
        twin._adopt(self._make())
        twin._rng = None
        twin._done = False
        twin.step_count = 0
        return twin

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


def _maker(source: Any, options: dict[str, Any]) -> Callable[[], Env]:
    """Returns a function that creates a fresh Gymnasium environment with each call."""
    if isinstance(source, str):
        return lambda: _make_registered(source, options)
    if not callable(source) and not isinstance(source, gymnasium.Env):
        raise ConfigError(
            f"GymnasiumEnvironment takes a registered id such as 'CartPole-v1', a gymnasium.Env "
            f"or a function that makes one, got {source!r}"
        )
    if isinstance(source, gymnasium.Env) and options:
        raise ConfigError(
            f"an environment that is made already takes no {', '.join(options)}. "
            "Give them where you make it, or pass its id instead."
        )

    def make() -> Env:
        if not isinstance(source, gymnasium.Env):
            env = source(**options)
            if isinstance(env, gymnasium.Env):
                return env
            raise ConfigError(
                f"the function given to GymnasiumEnvironment made an object of type "
                f"{type(env).__name__}, expected a gymnasium.Env"
            )
        try:
            return copy.deepcopy(source)
        except Exception as error:
            raise ConfigError(
                f"{source} cannot be copied for a second episode ({error}). "
                "Pass a function that makes it instead: GymnasiumEnvironment(lambda: ...)"
            ) from error

    return make


def _make_registered(name: str, options: dict[str, Any]) -> Env:
    try:
        return gymnasium.make(name, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        package = str(getattr(error, "name", None) or "").partition(".")[0]
        package = "'gymnasium[jax]'" if package in ("jax", "jaxlib", "flax") else package
        fix = f". Install it with: pip install {package}" if package else ""
        raise MissingExtraError(f"Gymnasium cannot make {name!r}: {error}{fix}") from error
    except gymnasium.error.UnregisteredEnv as error:
        known = {registered.lower(): registered for registered in gymnasium.registry}
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"Did you mean {known[near[0]]!r}?" if near else "See gymnasium.pprint_registry()."
        raise ConfigError(f"Gymnasium has no environment {name!r}. {hint}") from error
    except (gymnasium.error.Error, TypeError) as error:
        raise ConfigError(f"Gymnasium cannot make {name!r} with {options}: {error}") from error


def _numpy(value: Any) -> Any:
    """Returns an observation as numpy arrays, whatever library the environment uses."""
    if isinstance(value, np.ndarray | np.generic):
        return value
    if isinstance(value, Mapping):
        return {name: _numpy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_numpy(part) for part in value)
    return np.asarray(value)[()] if hasattr(value, "__array__") else value


def _plain(value: Any) -> Any:
    """Returns values of numpy and the like as Python values."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    value = _numpy(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
