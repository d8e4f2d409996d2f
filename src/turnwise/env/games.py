"""The built-in games: to try the library on, to train on, and to read as examples."""

import math
import random
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, did_you_mean

Step: TypeAlias = tuple[str, float, bool, dict[str, Any]]


class _Game(BaseEnvironment):
    """What the games share: parameters, a start, and an end after which nothing happens."""

    quick = True
    parameters: tuple[str, ...] = ()
    """The names in `params`; each is an attribute, whose value on the class is the default."""

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        game = type(self).__name__
        for name, value in self.config.params.items():
            if name not in self.parameters:
                hint = did_you_mean(name, self.parameters)
                raise ConfigError(f"{game} has no parameter {name!r}. {hint}")
            kind = type(getattr(self, name))
            # bool is a subclass of int, but `size: true` is an error.
            if type(value) is not kind and (kind, type(value)) != (float, int):
                got = f"{name}={value!r} of type {type(value).__name__}"
                raise ConfigError(f"{game} got {got}, expected {kind.__name__}")
            setattr(self, name, kind(value))
        self.check_parameters()
        self.begin(random.Random(0))  # playable at once; reset draws anew

    def check_parameters(self) -> None:
        """Raises an error for values that do not fit each other."""

    @abstractmethod
    def begin(self, rng: random.Random) -> None:
        """Draws a new episode."""

    def start(self) -> str:
        """Returns the first observation."""
        return self.get_state_description()

    @abstractmethod
    def play(self, action: str) -> Step:
        """Takes a step of a game that goes on."""

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        self.begin(self.rng)
        return self.start()

    def step(self, action: str) -> Step:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        return self.play(action)


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Returns the last match: the decision comes after the reasoning."""
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


class GuessNumberEnvironment(_Game):
    """Find a number in ten guesses.

    Parameters: `low` and `high`, the range (0 and 1023, both included); `shaping`, a reward
    spread over the guesses by the share of the uncertainty (in bits) that each one removed
    (default 0: only the right number is rewarded, with 1); `rules`, whether the prompt has them
    (True; an untrained model cannot read them yet, and is faster without).

    The expert halves the range. Ten guesses can distinguish 2**10 - 1 = 1023 numbers, so that any
    fixed strategy misses one of the 1024; the expert misses 1023. Its success rate is 1023/1024.

    >>> env = GuessNumberEnvironment({"low": 1, "high": 7})
    >>> env.expert_action()
    '4'
    """

    max_steps = 10
    parameters = ("low", "high", "shaping", "rules")
    low: int = 0
    high: int = 1023
    shaping: float = 0.0
    rules: bool = True
    # A whole number standing alone. "3.5", "1,000" and "12th" hold none: which number is meant
    # cannot be told. The limit of 18 digits keeps a runaway answer from becoming a huge integer.
    _NUMBER = re.compile(r"(?<!\w)(?<!\d[.,])-?[0-9]{1,18}(?!\w|[.,]\d)")

    def check_parameters(self) -> None:
        require(
            -(10**18) < self.low < self.high < 10**18,
            "low must be below high and both of at most 18 digits, "
            f"got low={self.low}, high={self.high}",
        )
        message = f"shaping must be 0 or a positive number, got {self.shaping}"
        require(0 <= self.shaping < math.inf, message)

    def begin(self, rng: random.Random) -> None:
        self._secret = rng.randint(self.low, self.high)
        self._known_low, self._known_high = self.low, self.high

    def start(self) -> str:
        return f"Guess a number from {self.low} to {self.high}."

    def play(self, action: str) -> Step:
        match = last_match(self._NUMBER, action)
        guess = int(match[0]) if match else None
        uncertainty = self._uncertainty()
        info: dict[str, Any] = {}
        if guess is None or not self.low <= guess <= self.high:
            text = f"Write one number from {self.low} to {self.high}."
            info["invalid_action"] = True
        elif guess == self._secret:
            self._done = True
            self._known_low = self._known_high = guess
            return "correct", self.shaping * uncertainty + 1.0, True, {"success": True}
        elif guess < self._secret:
            text = "higher"
            self._known_low = max(self._known_low, guess + 1)
        else:
            text = "lower"
            self._known_high = min(self._known_high, guess - 1)
        reward = self.shaping * (uncertainty - self._uncertainty())
        if self.step_count >= self.max_steps:
            # The number of guesses is a rule of the game, so the episode is not truncated.
            self._done = True
            info["success"] = False
            text = f"No guesses left. The number was {self._secret}."
        return text, reward, self._done, info

    def _uncertainty(self) -> float:
        """Returns the remaining uncertainty in bits, as a share of that at the start."""
        size = self._known_high - self._known_low + 1
        return math.log(size) / math.log(self.high - self.low + 1)

    def get_state_description(self) -> str:
        return (
            f"The number is from {self._known_low} to {self._known_high}. "
            f"Guesses left: {self.max_steps - self.step_count}."
        )

    def get_prompt_prefix(self) -> str:
        if not self.rules:
            return ""
        return (
            f"Find the hidden number from {self.low} to {self.high} "
            f"in at most {self.max_steps} guesses. "
            "After each guess you read higher, lower or correct. "
            f"Answer with one whole number, for example: {self.high}. "
            "If you write several, the last one counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        return str(rng.randint(self.low, self.high))

    def expert_action(self) -> str:
        return str((self._known_low + self._known_high) // 2)


Cell: TypeAlias = tuple[int, int]
"""Row and column, counted from the top left."""

_START: Cell = (0, 0)
_MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class GridWorldEnvironment(_Game):
    """Walk from the top left to the bottom right corner of a random map.

    Parameters: `size`, the side of the map (4); `pits`, the share of cells that are pits (0.25;
    fewer where more would block every way).

    The reward is 1 at the goal and 0 otherwise; a pit ends the episode. The goal can always be
    reached. Without another `max_steps` the agent has size² steps.

    >>> env = GridWorldEnvironment({"size": 2, "pits": 0.0})
    >>> print(env.reset())
    A.
    .G
    """

    max_steps = 16
    parameters = ("size", "pits")
    size: int = 4
    pits: float = 0.25
    _MOVE = re.compile(rf"\b({'|'.join(_MOVES)})\b", re.IGNORECASE)

    def check_parameters(self) -> None:
        require(2 <= self.size <= 20, f"size must be from 2 to 20, got {self.size}")
        require(0 <= self.pits < 1, f"pits must be from 0 to below 1, got {self.pits}")
        if self.config.max_steps is None:
            self.max_steps = self.size**2
        self.goal: Cell = (self.size - 1, self.size - 1)

    def begin(self, rng: random.Random) -> None:
        self.position = _START
        self.pit_cells: frozenset[Cell] = frozenset()
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        candidates = [cell for cell in cells if cell not in (_START, self.goal)]
        rng.shuffle(candidates)
        for cell in candidates:
            if len(self.pit_cells) >= round(self.pits * self.size**2):
                break
            if _START in self._distances_to_goal(self.pit_cells | {cell}):
                self.pit_cells |= {cell}

    def play(self, action: str) -> Step:
        match = last_match(self._MOVE, action)
        if match is None:
            return "Write up, down, left or right.", 0.0, False, {"invalid_action": True}
        self.position = self._neighbour(self.position, match[1].lower())
        success = self.position == self.goal
        self._done = success or self.position in self.pit_cells
        if not self._done:
            return self.get_state_description(), 0.0, False, {}
        text = "You reached the goal." if success else "You fell into a pit."
        return text, float(success), True, {"success": success}

    def get_state_description(self) -> str:
        rows = [["."] * self.size for _ in range(self.size)]
        rows[-1][-1] = "G"
        for row, column in self.pit_cells:
            rows[row][column] = "O"
        row, column = self.position
        rows[row][column] = "X" if self.position in self.pit_cells else "A"
        return "\n".join(map("".join, rows))

    def get_prompt_prefix(self) -> str:
        return (
            "Walk to the goal and do not fall into a pit. "
            "On the map A is you, G the goal, O a pit. "
            "Answer with one move: up, down, left or right. "
            "If you write several, the last one counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(list(_MOVES))

    def expert_action(self) -> str | None:
        if self._done:
            return None
        distances = self._distances_to_goal(self.pit_cells)
        ends = {move: self._neighbour(self.position, move) for move in _MOVES}
        return min(_MOVES, key=lambda move: distances.get(ends[move], math.inf))

    def _neighbour(self, cell: Cell, move: str) -> Cell:
        """Returns the cell after a move; at the edge of the map it is the same cell."""
        row, column = cell[0] + _MOVES[move][0], cell[1] + _MOVES[move][1]
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else cell

    def _distances_to_goal(self, pits: frozenset[Cell]) -> dict[Cell, int]:
        """Returns the number of moves to the goal from each cell where there is a way."""
        distances = {self.goal: 0}
        cells = [self.goal]
        for cell in cells:  # grows: a breadth-first search
            for move in _MOVES:
                neighbour = self._neighbour(cell, move)
                if neighbour not in distances and neighbour not in pits:
                    distances[neighbour] = distances[cell] + 1
                    cells.append(neighbour)
        return distances


WEAPONS = {"ghost": "lamp", "troll": "sword", "dragon": "bow", "wolf": "torch", "witch": "water"}
"""The weapon that defeats each monster."""


class SimpleGameEnvironment(_Game):
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

    _VERB = re.compile(r"\b(?:take|attack)\b", re.IGNORECASE)
    _WEAPON = re.compile(rf"\b(?:{'|'.join(WEAPONS.values())})\b", re.IGNORECASE)

    def begin(self, rng: random.Random) -> None:
        self.score = 0.0
        self.monster = rng.choice(list(WEAPONS))
        self.inventory: list[str] = []
        self.room = sorted(WEAPONS.values())

    def start(self) -> str:
        return (
            f"Welcome to the game! You are in a room with a {self.monster}. "
            f"You see: {', '.join(self.room)}."
        )

    def play(self, action: str) -> Step:
        verb_match = last_match(self._VERB, action)
        weapon_match = self._WEAPON.search(action, verb_match.end()) if verb_match else None
        verb = verb_match[0].lower() if verb_match else None
        weapon = weapon_match[0].lower() if weapon_match else None
        if verb == "attack" and weapon is None and len(self.inventory) == 1:
            weapon = self.inventory[0]
        reward = 0.0
        info: dict[str, Any] = {}
        if verb == "take" and weapon in self.room:
            self.room.remove(weapon)
            self.inventory.append(weapon)
            text = f"You take the {weapon}."
            reward = float(weapon == WEAPONS[self.monster])
        elif verb == "attack" and weapon in self.inventory:
            self._done = True
            info["success"] = weapon == WEAPONS[self.monster]
            text = f"The {weapon} does not help. You lose."
            if info["success"]:
                text = f"The {self.monster} is defeated. You win!"
                reward = 5.0
        else:
            reward = -0.1
            info["invalid_action"] = True
            text = f"You {'already' if verb == 'take' else 'do not'} hold the {weapon}."
            if verb is None:
                text = "Write take or attack and a weapon."
            elif weapon is None:
                text = f"Name the weapon to {'take' if verb == 'take' else 'attack with'}."
        self.score += reward
        return text, reward, self._done, info

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


_DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_ITEMS = ("sword", "shield", "potion")


class CustomGameEnvironment(_Game):
    """A small adventure with `position`, `inventory` and `score`.

    A move earns 0.1, an item 0.5, the enemy 0.5; completing the quest earns 10 and ends the game
    with success, at any time. Anything else costs 0.1, and so does an item or an enemy that is
    gone. The remaining steps are part of the state, so that running out of them ends the game and
    does not truncate it.

    >>> env = CustomGameEnvironment({"max_steps": 5})
    >>> env.step("I move north.")[1], env.position
    (0.1, (0, 1))
    """

    _COMMAND = re.compile(
        rf"\b(?:move\s+(?P<direction>{'|'.join(_DIRECTIONS)})"
        rf"|pick\s+up\s+(?:(?:the|a)\s+)?(?P<item>{'|'.join(_ITEMS)})"
        r"|(?P<attack>attack\s+(?:the\s+)?enemy)"
        r"|(?P<quest>complete\s+(?:the\s+)?quest))\b",
        re.IGNORECASE,
    )

    def begin(self, rng: random.Random) -> None:
        self.score = 0
        self.position = (0, 0)
        self.inventory: list[str] = []
        self.enemy_defeated = False

    def play(self, action: str) -> Step:
        command = last_match(self._COMMAND, action)
        reward: float = -0.1
        if command is None:
            pass
        elif command["direction"]:
            dx, dy = _DIRECTIONS[command["direction"].lower()]
            self.position = (self.position[0] + dx, self.position[1] + dy)
            reward = 0.1
        elif command["quest"]:
            self.score += 10
            self._done = True
            reward = 10.0
        elif command["attack"] and not self.enemy_defeated:
            self.enemy_defeated = True
            reward = 0.5
        elif command["item"] and command["item"].lower() not in self.inventory:
            self.inventory.append(command["item"].lower())
            reward = 0.5
        info: dict[str, Any] = {"invalid_action": True} if reward < 0 else {}
        if self.is_done():
            info["success"] = self._done
            self._done = True
        return self.get_state_description(), reward, self._done, info

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
            f"Answer with one action: move {'/'.join(_DIRECTIONS)}, pick up {'/'.join(_ITEMS)}, "
            "attack enemy, or complete quest. If you write several, the last one counts."
        )

    def _treasures(self) -> list[str]:
        """Returns the actions that still earn 0.5."""
        items = [f"pick up {item}" for item in _ITEMS if item not in self.inventory]
        return items if self.enemy_defeated else [*items, "attack enemy"]

    def sample_action(self, rng: random.Random) -> str:
        moves = [f"move {direction}" for direction in _DIRECTIONS]
        return rng.choice([*moves, *self._treasures(), "complete quest"])

    def expert_action(self) -> str:
        """Collects everything, and completes the quest before the steps run out."""
        treasures = self._treasures()
        is_last_step = self.step_count + 1 >= self.max_steps
        return "complete quest" if is_last_step or not treasures else treasures[0]
