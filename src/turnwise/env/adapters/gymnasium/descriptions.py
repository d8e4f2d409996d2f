"""What is known about Gymnasium's own environments: their texts, their drawings, their experts.

The texts are in `descriptions.yaml`. An environment without an entry there is described by its
docstring and its spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import yaml

from turnwise.env.adapters.gymnasium.spaces import Names, check_names, spaces
from turnwise.errors import ConfigError

Env: TypeAlias = Any
"""A `gymnasium.Env`."""

_DISCOUNT = 0.99  # below 1, so that shorter ways to the goal are better


@dataclass(frozen=True)
class Description:
    """How one environment is described to a language model."""

    task: str
    """The task, its rewards, and how to read the drawings."""
    actions: Names = None
    """Name and meaning of each action (of a Discrete) or of each number (of a Box)."""
    observation: Names = None
    """Name and meaning of each number of the observation."""
    describe: Callable[[Env, Any], str] | None = None
    """Describes an observation, where names for its numbers are not enough."""
    uncertainty: str = "Beware: an action does not always have the effect that it names."
    """Added if an action can have more than one effect."""
    success: Literal["at the end", "with a reward", "at the limit", "unknown"] = "unknown"
    """When the task counts as solved."""
    expert: Callable[[Any], Any] | None = None
    """A good action for an observation; not needed with a table of transitions."""
    invalid_reward: float = 0.0
    """The reward of an invalid action; where each step costs, it must not be cheaper."""
    mask_is_advice: bool = False
    """Whether actions outside the mask may be taken, at a price."""


def describe_environment(env: Env) -> Description:
    """Returns the description of an environment, as far as its wrappers leave it true."""
    kind = type(env.unwrapped)
    is_gymnasiums = kind.__module__.startswith("gymnasium.envs.")
    texts = _texts().get(kind.__name__) if is_gymnasiums else None
    if texts is None:
        return Description(task=_from_docstring(kind.__doc__) or f"You act in {kind.__name__}.")
    description = Description(
        **texts, describe=_DRAWINGS.get(kind.__name__), expert=_EXPERTS.get(kind.__name__)
    )
    if not _fits(env.action_space, env.unwrapped.action_space, description.actions):
        description = replace(description, actions=None, expert=None)
    if not _fits(env.observation_space, env.unwrapped.observation_space, description.observation):
        description = replace(description, observation=None, describe=None, expert=None)
    return description


@cache
def _texts() -> dict[str, dict[str, Any]]:
    file = Path(__file__).with_name("descriptions.yaml")
    texts: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return texts


def _fits(space: Any, known: Any, names: Names) -> bool:
    try:
        check_names(space, names, "names")
    except ConfigError:  # the same class may come with other spaces, as LunarLander does
        return False
    return bool(space == known)


def _from_docstring(docstring: str | None) -> str:
    """Returns the first paragraph that is not a heading, up to the end of a sentence."""
    for paragraph in (docstring or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        text = " ".join(line for line in lines if line and not line.startswith("#"))
        if text:
            return text if len(text) <= 500 else text[:500].rpartition(". ")[0] + "."
    return ""


def transition_table(env: Env) -> Any:
    """Returns `P[state][action] = [(chance, next, reward, end), ...]` if an environment has it.

    Only if no wrapper changes its observations and actions.
    """
    plain = env.unwrapped
    table = getattr(plain, "P", None)
    if not isinstance(table, dict) or not isinstance(plain.observation_space, spaces.Discrete):
        return None
    if env.observation_space != plain.observation_space or env.action_space != plain.action_space:
        return None
    return table if table.keys() == set(range(plain.observation_space.n)) else None


def is_uncertain(table: Any) -> bool:
    """Whether some action can have more than one effect."""
    return any(len(outcomes) > 1 for actions in table.values() for outcomes in actions.values())


def solve_table(table: Any) -> Any:
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
        returns = np.bincount(state * num_actions + action, gains, num_states * num_actions)
        best = returns.reshape(num_states, num_actions)
        change = np.abs(best.max(axis=1) - values).max()
        values = best.max(axis=1)
        if change < 1e-9:
            return best.argmax(axis=1)


def _draw_lake(env: Env, state: int) -> str:
    row, column = divmod(int(state), env.ncol)
    cells = [[cell.decode() for cell in line] for line in env.desc]
    where = {"H": "in a hole", "G": "at the goal"}.get(cells[row][column], "on ice")
    cells[row][column] = "@"
    drawing = "\n".join(" ".join(line) for line in cells)
    return f"You are {where}, row {row + 1}, column {column + 1}.\n{drawing}"


def _draw_cliff(env: Env, state: int) -> str:
    num_rows, num_columns = env.shape
    row, column = divmod(int(state), num_columns)
    cells = [["."] * num_columns for _ in range(num_rows)]
    cells[-1] = ["S", *["C"] * (num_columns - 2), "G"]
    cells[row][column] = "@"
    drawing = "\n".join(" ".join(line) for line in cells)
    return f"You are in row {row + 1}, column {column + 1}.\n{drawing}"


def _draw_taxi(env: Env, state: int) -> str:
    row, column, passenger, destination = env.decode(int(state))
    names = ("Red", "Green", "Yellow", "Blue")
    stands = [
        f"{name} (row {r + 1}, column {c + 1})"
        for name, (r, c) in zip(names, env.locs, strict=True)
    ]
    cells = [[cell.decode() for cell in line] for line in env.desc]
    cells[1 + row][1 + 2 * column] = "@"
    return "\n".join(
        [
            f"Taxi: row {row + 1}, column {column + 1}.",
            f"Passenger: {'in the taxi' if passenger == 4 else 'at ' + stands[passenger]}.",
            f"Destination: {stands[destination]}.",
            *("".join(line) for line in cells),
        ]
    )


def _tell_blackjack(_env: Env, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = map(int, observation)
    hand = "an ace counts as 11" if ace else "no ace counts as 11"
    shown = "an ace" if dealer == 1 else f"a card worth {dealer}"
    return f"Your cards add up to {total} ({hand}). The dealer shows {shown}."


def _balance_pole(observation: Any) -> int:
    """Pushes in the direction in which the pole falls, and corrects the cart's drift a little."""
    position, velocity, angle, spin = map(float, observation)
    return int(angle + 0.3 * spin + 0.02 * position + 0.05 * velocity > 0)


def _play_blackjack(observation: Any) -> int:
    """Plays the basic strategy, without moves that this game does not have."""
    total, dealer, usable_ace = map(int, observation)
    if usable_ace:
        return int(total <= 17 or (total == 18 and dealer in (1, 9, 10)))
    if total == 12:
        return int(not 4 <= dealer <= 6)
    return int(total <= 11 or (total <= 16 and not 2 <= dealer <= 6))


def _swing_car(observation: Any) -> int:
    """Pushes in the direction of motion: every swing goes higher."""
    return 2 if observation[1] >= 0 else 0


def _swing_car_with_force(observation: Any) -> Any:
    return np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32)


_DRAWINGS: dict[str, Callable[[Env, Any], str]] = {
    "FrozenLakeEnv": _draw_lake,
    "CliffWalkingEnv": _draw_cliff,
    "TaxiEnv": _draw_taxi,
    "BlackjackEnv": _tell_blackjack,
}
_EXPERTS: dict[str, Callable[[Any], Any]] = {
    "CartPoleEnv": _balance_pole,
    "BlackjackEnv": _play_blackjack,
    "MountainCarEnv": _swing_car,
    "Continuous_MountainCarEnv": _swing_car_with_force,
}
