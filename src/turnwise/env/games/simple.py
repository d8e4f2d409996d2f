"""A room, a monster and five weapons: the agent must take the one that works, and attack."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import last_match

WEAPONS: dict[str, str] = {
    "ghost": "lamp",
    "troll": "sword",
    "dragon": "bow",
    "wolf": "torch",
    "witch": "water",
}
"""The weapon that defeats each monster."""

_VERB = re.compile(r"\b(?:take|attack)\b", re.IGNORECASE)
_WEAPON = re.compile(rf"\b(?:{'|'.join(WEAPONS.values())})\b", re.IGNORECASE)


class SimpleGameEnvironment(BaseEnvironment):
    """Take the right weapon (reward 1) and attack with it (reward 5, and the game is won).

    An attack with another weapon loses the game. An impossible action costs 0.1.

    >>> env = SimpleGameEnvironment()
    >>> env.seed(0)
    >>> env.reset()
    'Welcome to the game! You are in a room with a wolf. You see: bow, lamp, sword, torch, water.'
    >>> env.step("take the torch")
    ('You take the torch.', 1.0, False, {})
    >>> env.step("attack")
    ('The wolf is defeated. You win!', 5.0, True, {'success': True})
    """

    quick = True

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self._begin(random.Random(0))  # playable at once; reset draws a new monster

    def _begin(self, rng: random.Random) -> None:
        self._done = False
        self.step_count = 0
        self.score = 0.0
        self.monster = rng.choice(list(WEAPONS))
        self.inventory: list[str] = []
        self.room = sorted(WEAPONS.values())

    def reset(self) -> str:
        self._begin(self.rng)
        return (
            f"Welcome to the game! You are in a room with a {self.monster}. "
            f"You see: {', '.join(self.room)}."
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        verb, weapon = read_command(action)
        if verb == "attack" and weapon is None and len(self.inventory) == 1:
            weapon = self.inventory[0]
        if verb == "take" and weapon in self.room:
            observation, reward, info = self._take(weapon)
        elif verb == "attack" and weapon in self.inventory:
            observation, reward, info = self._attack(weapon)
        else:
            observation, reward = self._refusal(verb, weapon), -0.1
            info = {"invalid_action": True}
        self.score += reward
        return observation, reward, self._done, info

    def _take(self, weapon: str) -> tuple[str, float, dict[str, Any]]:
        self.room.remove(weapon)
        self.inventory.append(weapon)
        return f"You take the {weapon}.", float(weapon == WEAPONS[self.monster]), {}

    def _attack(self, weapon: str) -> tuple[str, float, dict[str, Any]]:
        self._done = True
        if weapon == WEAPONS[self.monster]:
            return f"The {self.monster} is defeated. You win!", 5.0, {"success": True}
        return f"The {weapon} does not help. You lose.", 0.0, {"success": False}

    def _refusal(self, verb: str | None, weapon: str | None) -> str:
        if verb is None:
            return "Write take or attack and a weapon."
        if weapon is None:
            return f"Name the weapon to {'take' if verb == 'take' else 'attack with'}."
        return f"You {'already' if verb == 'take' else 'do not'} hold the {weapon}."

    def get_state_description(self) -> str:
        held = ", ".join(self.inventory) or "empty"
        return f"Score: {self.score:.1f}, Inventory: {held}, Monster: {self.monster}"

    def get_prompt_prefix(self) -> str:
        pairs = ", ".join(f"{monster}: {weapon}" for monster, weapon in WEAPONS.items())
        return (
            f"Defeat the monster with the weapon that it falls to ({pairs}). "
            "Take the weapon first: take sword. Then: attack with sword. "
            "If you write several commands, the last one counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        takes = [f"take {weapon}" for weapon in self.room]
        attacks = [f"attack with {weapon}" for weapon in self.inventory]
        return rng.choice(takes + attacks)

    def expert_action(self) -> str:
        weapon = WEAPONS[self.monster]
        return f"attack with {weapon}" if weapon in self.inventory else f"take {weapon}"


def read_command(text: str) -> tuple[str | None, str | None]:
    """Returns the last verb in a text and the first weapon after it; None if missing.

    >>> read_command("I take nothing. Attack the troll with my SWORD!")
    ('attack', 'sword')
    """
    verb = last_match(_VERB, text)
    if verb is None:
        return None, None
    weapon = _WEAPON.search(text, verb.end())
    return verb[0].lower(), weapon[0].lower() if weapon else None
