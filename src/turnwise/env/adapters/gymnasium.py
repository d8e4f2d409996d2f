"""Any registered Gymnasium environment as a text environment; needs the `gym` extra."""

import copy
import inspect
import random
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import yaml

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters import gymnasium_spaces as space_texts
from turnwise.env.adapters.gymnasium_spaces import InvalidActionError, Names, gymnasium, spaces
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, MissingExtraError, did_you_mean

Env: TypeAlias = Any
"""A `gymnasium.Env`."""

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
_TEXTS = ("action_names", "observation_names", "describe", "task", "invalid_reward")
_DISCOUNT = 0.99  # below 1, so that shorter ways to the goal are better


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
        **options: Any,
    ) -> None:
        super().__init__(config)
        options = {**self.config.params, **options}
        texts = {name: options.pop(name, None) for name in _TEXTS}
        if isinstance(source, str) and self.config.max_steps is not None:
            options.setdefault("max_episode_steps", self.config.max_steps)
        if isinstance(source, gymnasium.Env) and options:
            fix = "Give them where you make it, or pass its id."
            raise ConfigError(f"a gymnasium.Env takes no {', '.join(options)}. {fix}")
        self._source, self._options = source, options
        self._adopt(source if isinstance(source, gymnasium.Env) else self._make())
        self._description = _describe_environment(self._env, texts)

    def _make(self) -> Env:
        source, options = self._source, self._options
        if isinstance(source, str):
            try:
                return gymnasium.make(source, **options)
            except gymnasium.error.UnregisteredEnv as error:
                hint = did_you_mean(source, gymnasium.registry)
                raise ConfigError(f"Gymnasium has no environment {source!r}. {hint}") from error
            except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
                raise MissingExtraError(f"Gymnasium cannot make {source!r}: {error}") from error
            except (gymnasium.error.Error, TypeError) as error:
                message = f"Gymnasium cannot make {source!r} with {options}: {error}"
                raise ConfigError(message) from error
        if isinstance(source, gymnasium.Env):
            return copy.deepcopy(source)  # one that cannot be copied is passed as a function
        env = source(**options) if callable(source) else source
        if not isinstance(env, gymnasium.Env):
            takes = "a registered id such as 'CartPole-v1', a gymnasium.Env or a function"
            raise ConfigError(f"GymnasiumEnvironment takes {takes} that makes one, got {env!r}")
        return env

    def _adopt(self, env: Env) -> None:
        """Uses a Gymnasium environment that has not started an episode yet."""
        space_texts.check_action_space(env.action_space)
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
        self._done = False
        self.step_count = 0

    def reset(self, seed: int | None = None) -> str:
        self._done = False
        self.step_count = 0
        # Never None: copies of one environment would all have the same random numbers.
        seed = self.rng.randrange(2**31) if seed is None else seed
        observation, info = self._env.reset(seed=seed)
        return self._see(observation, info)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._text is None:
            raise EnvironmentFault("step() was called before reset(). Begin with reset().")
        if self.is_done():
            return "The episode is over.", 0.0, True, {}
        self.step_count += 1
        try:
            value = space_texts.parse_action(self._action_space, action, self._description.actions)
            is_possible = self._allowed is None or value in self._allowed
            if not is_possible and not self._description.mask_is_advice:
                raise InvalidActionError(f"{self._render(value)} is not possible now.")
        except InvalidActionError as error:
            info = {"invalid_action": True, "terminated": False, "truncated": False}
            text = f"Invalid action: {error}\n{self._text}"
            return text, self._description.invalid_reward, False, info
        observation, reward, terminated, truncated, info = self._env.step(value)
        self._done = bool(terminated or truncated)
        text = self._see(observation, info)
        info = {key: v.tolist() if hasattr(v, "tolist") else v for key, v in info.items()}
        info |= {"terminated": bool(terminated), "truncated": self._done and not terminated}
        if self._done:
            text += "\nThe episode is over." if terminated else "\nThe time is up."
            solved = {
                "at the end": terminated,
                "with a reward": terminated and reward > 0,
                "at the limit": not terminated,
            }.get(self._description.success, info.get("is_success"))
            if solved is not None:
                text += f" You {'succeeded' if solved else 'did not succeed'}."
                info["success"] = bool(solved)
        return text, float(reward), self._done, info

    def _see(self, observation: Any, info: Mapping[str, Any]) -> str:
        self._observation = observation
        description = self._description
        space = self._env.observation_space
        if description.describe is not None:
            text = description.describe(self._env.unwrapped, observation)
        else:
            text = space_texts.describe_observation(space, observation, description.observation)
            if self._env.render_mode == "ansi":
                # Colour often marks where the player is; brackets can be read.
                text += "\n" + _COLOURED.sub(r"[\1]", str(self._env.render())).strip("\n")
        self._allowed = None
        mask = np.asarray(info.get("action_mask", ()))
        if isinstance(self._action_space, spaces.Discrete) and mask.any():
            numbers = np.flatnonzero(mask) + int(self._action_space.start)
            self._allowed = [int(number) for number in numbers]
        if self._allowed and not self._done:
            text += f"\nPossible now: {', '.join(map(self._render, self._allowed))}."
        self._text = text
        return text

    def get_state_description(self) -> str:
        return "The episode has not begun." if self._text is None else self._text

    def get_prompt_prefix(self) -> str:
        description = self._description
        parts = [description.task]
        table = _transition_table(self._env)
        if any(len(outcomes) > 1 for row in table.values() for outcomes in row.values()):
            parts[0] += f"\n{description.uncertainty}"
        if self.max_steps != GymnasiumEnvironment.max_steps:
            parts[0] += f"\nYou have at most {self.max_steps} actions."
        if description.describe is None:
            space = self._env.observation_space
            parts.append(space_texts.describe_observations(space, description.observation))
        parts.append(space_texts.describe_answers(self._action_space, description.actions))
        return "\n\n".join(parts)

    def sample_action(self, rng: random.Random) -> str:
        self._action_space.seed(rng.randrange(2**31))
        sampled = self._action_space.sample()
        return self._render(sampled if self._allowed is None else rng.choice(self._allowed))

    def expert_action(self) -> str | None:
        if self._text is None or self._done:
            return None
        if self._policy is None and (table := _transition_table(self._env)):
            self._policy = _solve_table(table)
        return None if self._policy is None else self._render(self._policy[self._observation])

    def _render(self, value: Any) -> str:
        return space_texts.render_action(self._action_space, value, self._description.actions)

    def spawn(self) -> Self:
        twin = copy.copy(self)
        twin._adopt(self._make())
        twin._rng = None
        return twin

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._env.close()


# What is known about Gymnasium's own environments: their texts and drawings.


@dataclass(frozen=True)
class Description:
    """How one environment is described to a language model."""

    task: str
    """The task, its rewards, and how to read the drawings."""
    actions: Names = field(default_factory=dict)
    """Name and meaning of each action (of a Discrete) or of each number (of a Box)."""
    observation: Names = field(default_factory=dict)
    """Name and meaning of each number of the observation."""
    describe: Callable[[Env, Any], str] | None = None
    """Describes an observation, where names for its numbers are not enough."""
    uncertainty: str = "Beware: an action does not always have the effect that it names."
    """Added if an action can have more than one effect."""
    success: Literal["at the end", "with a reward", "at the limit", "unknown"] = "unknown"
    """When the task counts as solved."""
    invalid_reward: float = 0.0
    """The reward of an invalid action; where each step costs, it must not be cheaper."""
    mask_is_advice: bool = False
    """Whether actions outside the mask may be taken, at a price."""


def _describe_environment(env: Env, given: Mapping[str, Any]) -> Description:
    """Returns the description of an environment; the user's own options take precedence.

    The texts are in `gymnasium.yaml`. An environment without an entry there is described by its
    docstring and its spaces, and so is what a wrapper makes untrue.
    """
    plain = env.unwrapped
    space = env.observation_space
    kind = type(plain)
    texts = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    chosen: dict[str, Any] = {}
    if kind.__module__.startswith("gymnasium.envs."):
        chosen = texts.get(kind.__name__, {})
    if chosen:
        chosen["describe"] = _DRAWINGS.get(kind.__name__)
        # The same class may come with other spaces, as LunarLander does.
        is_usual = len(chosen["actions"]) == space_texts.count_names(plain.action_space)
        if env.action_space != plain.action_space or not is_usual:
            chosen["actions"] = {}
        if space != plain.observation_space:
            chosen |= {"observation": {}, "describe": None}
    else:
        paragraph = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        text = " ".join(paragraph.lstrip("# ").split())
        chosen["task"] = text or f"You act in {kind.__name__}."
    if given["observation_names"] is not None:
        names = space_texts.read_names(space, given["observation_names"], "observation_names")
        chosen |= {"observation": names, "describe": None}
    if given["action_names"] is not None:
        names = space_texts.read_names(env.action_space, given["action_names"], "action_names")
        chosen["actions"] = names
    chosen |= {name: given[name] for name in ("task", "invalid_reward") if given[name] is not None}
    if given["describe"] is not None:
        if not callable(given["describe"]):
            raise ConfigError(f"describe got {given['describe']!r:.80}, expected a function")
        chosen["describe"] = lambda env, observation: given["describe"](observation)
    if chosen.get("describe") is None and space_texts.has_large_part(space):
        warnings.warn(
            f"an observation of {space} is too large to be read as numbers and is only "
            "summarised. Say what matters in it: describe=lambda observation: ...",
            stacklevel=3,
        )
    return Description(**chosen)


def _transition_table(env: Env) -> dict[int, dict[int, list[Any]]]:
    """Returns `P[state][action] = [(chance, next, reward, end), ...]` of an environment.

    Empty if it has none, or if a wrapper changes its observations and actions.
    """
    plain = env.unwrapped
    table = getattr(plain, "P", None)
    if not isinstance(table, dict) or not isinstance(plain.observation_space, spaces.Discrete):
        return {}
    if env.observation_space != plain.observation_space or env.action_space != plain.action_space:
        return {}
    return table if table.keys() == set(range(plain.observation_space.n)) else {}


def _solve_table(table: dict[int, dict[int, list[Any]]]) -> Any:
    """Returns the best action of each state, by value iteration."""
    rows = [
        (state, action, chance, after, reward, not end)
        for state, actions in table.items()
        for action, outcomes in actions.items()
        for chance, after, reward, end in outcomes
    ]
    state, action, chance, after, reward, goes_on = map(np.array, zip(*rows, strict=True))
    num_states, num_actions = int(state.max()) + 1, int(action.max()) + 1
    values = np.zeros(num_states)
    while True:
        gains = chance * (reward + _DISCOUNT * goes_on * values[after])
        totals = np.bincount(state * num_actions + action, gains, num_states * num_actions)
        returns = totals.reshape(num_states, num_actions)
        old, values = values, returns.max(axis=1)
        if np.abs(values - old).max() < 1e-9:
            return returns.argmax(axis=1)


def _draw_lake(env: Env, state: int) -> str:
    row, column = divmod(int(state), env.ncol)
    cells = [[cell.decode() for cell in line] for line in env.desc]
    where = {"H": "in a hole", "G": "at the goal"}.get(cells[row][column], "on ice")
    return _draw_map(f"You are {where}, row", row, column, cells)


def _draw_cliff(env: Env, state: int) -> str:
    num_rows, num_columns = env.shape
    cells = [["."] * num_columns for _ in range(num_rows - 1)]
    cells.append(["S", *["C"] * (num_columns - 2), "G"])
    row, column = divmod(int(state), num_columns)
    return _draw_map("You are in row", row, column, cells)


def _draw_map(you_are: str, row: int, column: int, cells: list[list[str]]) -> str:
    cells[row][column] = "@"
    drawing = "\n".join(" ".join(line) for line in cells)
    return f"{you_are} {row + 1}, column {column + 1}.\n{drawing}"


def _draw_taxi(env: Env, state: int) -> str:
    row, column, passenger, destination = env.decode(int(state))
    stands = [
        f"{name} (row {r + 1}, column {c + 1})"
        for name, (r, c) in zip(("Red", "Green", "Yellow", "Blue"), env.locs, strict=True)
    ]
    cells = [[cell.decode() for cell in line] for line in env.desc]
    cells[1 + row][1 + 2 * column] = "@"
    lines = [
        f"Taxi: row {row + 1}, column {column + 1}.",
        f"Passenger: {'in the taxi' if passenger == 4 else 'at ' + stands[passenger]}.",
        f"Destination: {stands[destination]}.",
    ]
    return "\n".join(lines + ["".join(line) for line in cells])


def _tell_blackjack(_env: Env, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = map(int, observation)
    hand = "an ace counts as 11" if ace else "no ace counts as 11"
    shown = "an ace" if dealer == 1 else f"a card worth {dealer}"
    return f"Your cards add up to {total} ({hand}). The dealer shows {shown}."


_DRAWINGS: dict[str, Callable[[Env, Any], str]] = {
    "FrozenLakeEnv": _draw_lake,
    "CliffWalkingEnv": _draw_cliff,
    "TaxiEnv": _draw_taxi,
    "BlackjackEnv": _tell_blackjack,
}
