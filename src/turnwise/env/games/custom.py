"""A small adventure: move, collect items, fight, and complete the quest."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import last_match

DIRECTIONS: dict[str, tuple[int, int]] = {
    "north": (0, 1),
    "south": (0, -1),
    "east": (1, 0),
    "west": (-1, 0),
}
ITEMS = ("sword", "shield", "potion")

_COMMAND = re.compile(
    rf"\b(?:move\s+(?P<direction>{'|'.join(DIRECTIONS)})"
    rf"|pick\s+up\s+(?:(?:the|a)\s+)?(?P<item>{'|'.join(ITEMS)})"
    r"|(?P<attack>attack\s+(?:the\s+)?enemy)"
    r"|(?P<quest>complete\s+(?:the\s+)?quest))\b",
    re.IGNORECASE,
)


class CustomGameEnvironment(BaseEnvironment):
    """A small adventure with `position`, `inventory` and `score`.

    A move earns 0.1, an item 0.5, the enemy 0.5; completing the quest earns 10 and ends the game
    with success, at any time. Anything else costs 0.1, and so does an item or an enemy that is
    gone. The remaining steps are part of the state, so that running out of them ends the game and
    does not truncate it.

    >>> env = CustomGameEnvironment({"max_steps": 5})
    >>> env.step("I move north.")[1], env.position
    (0.1, (0, 1))
    """

    quick = True

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self._begin()

    def _begin(self) -> None:
        self._done = False
        self.step_count = 0
        self.score = 0
        self.position = (0, 0)
        self.inventory: list[str] = []
        self.enemy_defeated = False

    def reset(self) -> str:
        self._begin()
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        reward = self._carry_out(last_match(_COMMAND, action))
        info: dict[str, Any] = {}
        if reward is None:
            reward, info["invalid_action"] = -0.1, True
        if self.is_done():
            info["success"] = self._done
            self._done = True
        return self.get_state_description(), reward, self._done, info

    def _carry_out(self, command: re.Match[str] | None) -> float | None:
        """Returns the reward of a command, or None if it is not possible."""
        if command is None:
            return None
        if command["direction"]:
            dx, dy = DIRECTIONS[command["direction"].lower()]
            self.position = (self.position[0] + dx, self.position[1] + dy)
            return 0.1
        if command["quest"]:
            self.score += 10
            self._done = True
            return 10.0
        if command["attack"] and not self.enemy_defeated:
            self.enemy_defeated = True
            return 0.5
        if command["item"] and command["item"].lower() not in self.inventory:
            self.inventory.append(command["item"].lower())
            return 0.5
        return None

    def get_state_description(self) -> str:
        return (
            f"Position: {self.position}. Score: {self.score}. "
            f"Inventory: {', '.join(self.inventory) or 'empty'}. "
            f"Enemy: {'defeated' if self.enemy_defeated else 'near'}. "
            f"Steps remaining: {self.max_steps - self.step_count}."
        )

    def get_prompt_prefix(self) -> str:
        return (
            "You are in a game. Collect what you can and complete the quest in time. "
            f"Answer with one action: move {'/'.join(DIRECTIONS)}, pick up {'/'.join(ITEMS)}, "
            "attack enemy, or complete quest. If you write several, the last one counts."
        )

    def _treasures(self) -> list[str]:
        """Returns the actions that still earn 0.5."""
        items = [f"pick up {item}" for item in ITEMS if item not in self.inventory]
        return items if self.enemy_defeated else [*items, "attack enemy"]

    def sample_action(self, rng: random.Random) -> str:
        moves = [f"move {direction}" for direction in DIRECTIONS]
        return rng.choice([*moves, *self._treasures(), "complete quest"])

    def expert_action(self) -> str:
        """Collects everything, and completes the quest before the steps run out."""
        treasures = self._treasures()
        is_last_step = self.step_count + 1 >= self.max_steps
        return "complete quest" if is_last_step or not treasures else treasures[0]
