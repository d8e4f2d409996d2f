"""Any registered Gymnasium environment as a text environment."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters.gymnasium.actions import (
    InvalidActionError,
    how_to_answer,
    parse_action,
    render_action,
)
from turnwise.env.adapters.gymnasium.descriptions import description_of
from turnwise.env.adapters.gymnasium.experts import is_uncertain, solve_table, transition_table
from turnwise.env.adapters.gymnasium.make import Env, maker_of
from turnwise.env.adapters.gymnasium.spaces import (
    Names,
    check_action_space,
    check_names,
    describe_observation,
    has_large_part,
    spaces,
    what_is_seen,
)
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, import_extra

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
        own = {
            "action_names": action_names,
            "observation_names": observation_names,
            "describe": describe,
            "task": task,
            "invalid_reward": invalid_reward,
        }
        params = dict(self.config.params)
        for name, value in own.items():
            configured = params.pop(name, None)
            own[name] = configured if value is None else value
        make_kwargs = {**params.pop("make_kwargs", {}), **params, **make_kwargs}
        if isinstance(source, str) and self.config.max_steps is not None:
            make_kwargs.setdefault("max_episode_steps", self.config.max_steps)
        self._make = maker_of(source, make_kwargs)
        self._adopt(source if isinstance(source, gymnasium.Env) else self._make())
        self._choose_description({name: value for name, value in own.items() if value is not None})

    def _adopt(self, env: Env) -> None:
        """Uses a Gymnasium environment that has not started an episode yet."""
        check_action_space(env.action_space)
        self._env = env
        # A copy, so that sampling actions does not affect the environment's random state.
        self._action_space = copy.deepcopy(env.action_space)
        if env.spec is not None and env.spec.max_episode_steps is not None:
            own_limit = env.spec.max_episode_steps
            self.max_steps = min(self.config.max_steps or own_limit, own_limit)
        self._observation: Any = None
        self._text: str | None = None
        self._allowed: list[int] | None = None
        self._policy: Any = None
        self._closed = False

    def _choose_description(self, own: dict[str, Any]) -> None:
        """Combines the built-in description with the user's own options, which take precedence."""
        found = description_of(self._env)
        space = self._env.observation_space
        if "observation_names" in own:
            check_names(space, own["observation_names"], "observation_names")
            found = replace(found, observation=own["observation_names"], describe=None)
        if "action_names" in own:
            check_names(self._action_space, own["action_names"], "action_names")
            found = replace(found, actions=own["action_names"])
        changed = {name: own[name] for name in ("task", "invalid_reward") if name in own}
        self._description = replace(found, **changed)
        self._describe: Callable[[Any], str] | None = own.get("describe")
        if self._describe is not None and not callable(self._describe):
            raise ConfigError(
                f"describe must be a function of an observation, got {self._describe!r}"
            )
        if self._describe is None and found.describe is None and has_large_part(space):
            warnings.warn(
                f"an observation of {space} is too large to be read as numbers and is only "
                "summarised. Say what matters in it: describe=lambda observation: ...",
                stacklevel=3,
            )

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
            self._check_allowed(value)
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
            ending, outcome = self._ending(reward, terminated, info)
            text, info = f"{text}\n{ending}", info | outcome
        return text, float(reward), self._done, info

    def _see(self, observation: Any, info: Mapping[str, Any]) -> str:
        self._observation = observation
        if self._describe is not None:
            text = self._describe(observation)
        elif self._description.describe is not None:
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
            self._allowed = [first + int(place) for place in np.flatnonzero(mask)]
        if self._allowed is not None and not self._done:
            text += f"\nPossible now: {', '.join(map(self._render, self._allowed))}."
        self._text = text
        return text

    def _check_allowed(self, value: Any) -> None:
        if self._allowed is None or value in self._allowed or self._description.mask_is_advice:
            return
        raise InvalidActionError(f"{self._render(value)} is not possible now.")

    def _ending(
        self, reward: Any, terminated: bool, info: dict[str, Any]
    ) -> tuple[str, dict[str, bool]]:
        """Returns the last line of an episode, and whether it was a success if that is known."""
        text = "The episode is over." if terminated else "The time is up."
        if self._description.ending is not None:
            text = f"{self._description.ending(self._env.unwrapped)} {text}"
        solved = {
            "at the end": terminated,
            "with a reward": terminated and bool(reward > 0),
            "at the limit": not terminated,
        }.get(self._description.success, info.get("is_success"))
        if solved is None:
            return text, {}
        return f"{text} You {'succeeded' if solved else 'did not succeed'}.", {
            "success": bool(solved)
        }

    def get_state_description(self) -> str:
        return "The episode has not begun." if self._text is None else self._text

    def get_prompt_prefix(self) -> str:
        found = self._description
        parts = [found.task]
        table = transition_table(self._env)
        if table is not None and is_uncertain(table):
            parts[0] += f"\n{found.uncertainty}"
        if self.max_steps != GymnasiumEnvironment.max_steps:
            parts[0] += f"\nYou have at most {self.max_steps} actions."
        if self._describe is None and found.describe is None:
            parts.append(what_is_seen(self._env.observation_space, found.observation))
        parts.append(how_to_answer(self._action_space, found.actions))
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


@runtime_checkable
class _Array(Protocol):
    """An array of any library, such as JAX."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


def _numpy(value: Any) -> Any:
    """Returns an observation as numpy arrays, whatever library the environment uses."""
    if isinstance(value, np.ndarray | np.generic):
        return value
    if isinstance(value, Mapping):
        return {name: _numpy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_numpy(part) for part in value)
    return np.asarray(value)[()] if isinstance(value, _Array) else value


def _plain(value: Any) -> Any:
    """Returns values of numpy and the like as Python values."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    value = _numpy(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
