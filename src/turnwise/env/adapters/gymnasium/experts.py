"""Scripted experts: exact solutions of transition tables, and rules for a few environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnwise.env.adapters.gymnasium.spaces import spaces

_DISCOUNT = 0.99  # below 1, so that shorter ways to the goal are better


def transition_table(env: Any) -> Any:
    """Returns `P[state][action] = [(chance, next, reward, end), ...]` if an environment has it.

    Only if no wrapper changes its observations and actions.
    """
    plain = env.unwrapped
    table = getattr(plain, "P", None)
    is_plain = (env.observation_space, env.action_space) == (
        plain.observation_space,
        plain.action_space,
    )
    if (
        not is_plain
        or not isinstance(table, dict)
        or not isinstance(plain.observation_space, spaces.Discrete)
    ):
        return None
    return table if table.keys() == set(range(plain.observation_space.n)) else None


def solve_table(table: Any) -> Any:
    """Returns the best action of each state, by value iteration."""
    rows = [
        (state, action, chance, after, reward, not end)
        for state, actions in table.items()
        for action, outcomes in actions.items()
        for chance, after, reward, end in outcomes
    ]
    state, action, chance, after, reward, goes_on = map(np.array, zip(*rows, strict=True))
    num_actions = int(action.max()) + 1
    place = state * num_actions + action
    num_places = (int(state.max()) + 1) * num_actions
    values = np.zeros(num_places // num_actions)
    while True:
        gains = chance * (reward + _DISCOUNT * goes_on * values[after])
        returns = np.bincount(place, gains, num_places).reshape(-1, num_actions)
        change = np.abs(returns.max(axis=1) - values).max()
        values = returns.max(axis=1)
        if change < 1e-9:
            return returns.argmax(axis=1)


def is_uncertain(table: Any) -> bool:
    """Whether some action can have more than one effect."""
    return any(len(outcomes) > 1 for actions in table.values() for outcomes in actions.values())


def cart_pole(observation: Any) -> int:
    """Pushes in the direction in which the pole falls, and corrects the cart's drift a little."""
    position, velocity, angle, spin = map(float, observation)
    return int(angle + 0.3 * spin + 0.02 * position + 0.05 * velocity > 0)


def blackjack(observation: Any) -> int:
    """Plays the basic strategy, without moves that this game does not have."""
    total, dealer, usable_ace = map(int, observation)
    dealer_is_weak = 2 <= dealer <= 6
    if usable_ace:
        return int(total <= 17 or (total == 18 and dealer in (1, 9, 10)))
    if total == 12:
        return int(not 4 <= dealer <= 6)
    return int(total <= 11 or (total <= 16 and not dealer_is_weak))


def mountain_car(observation: Any) -> int:
    """Pushes in the direction of motion: every swing goes higher."""
    return 2 if observation[1] >= 0 else 0


def mountain_car_continuous(observation: Any) -> Any:
    """Does the same with full force."""
    return np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32)
