"""A map with pits: the agent walks from one corner to the other."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import last_match, read_params, require

Cell: TypeAlias = tuple[int, int]
"""Row and column, counted from the top left."""

MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_SIDEWAYS = {
    "up": ("left", "right"),
    "down": ("left", "right"),
    "left": ("up", "down"),
    "right": ("up", "down"),
}
_MOVE = re.compile(rf"\b({'|'.join(MOVES)})\b", re.IGNORECASE)
_START: Cell = (0, 0)


class GridWorldEnvironment(BaseEnvironment):
    """Walk from the top left to the bottom right corner of a random map.

    Parameters: `size`, the side of the map (4); `pits`, the share of cells that are pits (0.25;
    fewer where more would block every way); `slippery` (False): each move goes, with equal
    chance, where it was meant to go or to one of its two sides.

    The reward is 1 at the goal and 0 otherwise; a pit ends the episode. The goal can always be
    reached. Without another `max_steps` the agent has size² steps, four times as many on
    slippery ground.

    >>> env = GridWorldEnvironment({"size": 2, "pits": 0.0})
    >>> print(env.reset())
    A.
    .G
    """

    quick = True

    max_steps = 16

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        params = read_params(self, size=4, pits=0.25, slippery=False)
        self.size: int = params["size"]
        self.pit_share: float = params["pits"]
        self.slippery: bool = params["slippery"]
        require(2 <= self.size <= 20, f"size must be from 2 to 20, got {self.size}")
        require(0 <= self.pit_share < 1, f"pits must be from 0 to below 1, got {self.pit_share}")
        if self.config.max_steps is None:
            self.max_steps = self.size**2 * (4 if self.slippery else 1)
        self.goal: Cell = (self.size - 1, self.size - 1)
        self._begin(random.Random(0))  # playable at once; reset draws a new map

    def _begin(self, rng: random.Random) -> None:
        self._done = False
        self.step_count = 0
        self.position = _START
        self.pits = draw_pits(rng, self.size, self.pit_share)

    def reset(self) -> str:
        self._begin(self.rng)
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        match = last_match(_MOVE, action)
        if match is None:
            return "Write up, down, left or right.", 0.0, False, {"invalid_action": True}
        move = match[1].lower()
        if self.slippery:
            move = self.rng.choice((move, *_SIDEWAYS[move]))
        self.position = neighbour(self.position, move, self.size)
        self._done = self.position == self.goal or self.position in self.pits
        if not self._done:
            return self.get_state_description(), 0.0, False, {}
        success = self.position == self.goal
        text = "You reached the goal." if success else "You fell into a pit."
        return text, float(success), True, {"success": success}

    def get_state_description(self) -> str:
        rows = range(self.size)
        return "\n".join("".join(self._symbol((row, column)) for column in rows) for row in rows)

    def _symbol(self, cell: Cell) -> str:
        if cell == self.position:
            return "X" if cell in self.pits else "A"
        if cell == self.goal:
            return "G"
        return "O" if cell in self.pits else "."

    def get_prompt_prefix(self) -> str:
        slippery = " The ground is slippery: a move may go sideways." if self.slippery else ""
        return (
            "Walk to the goal and do not fall into a pit. "
            f"On the map A is you, G the goal, O a pit.{slippery} "
            "Answer with one move: up, down, left or right. "
            "If you write several, the last one counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(list(MOVES))

    def expert_action(self) -> str | None:
        if self._done:
            return None
        return best_moves(self.size, self.pits, self.slippery)[self.position]


def neighbour(cell: Cell, move: str, size: int) -> Cell:
    """Returns the cell after a move; at the edge of the map it is the same cell."""
    row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
    return (row, column) if 0 <= row < size and 0 <= column < size else cell


def draw_pits(rng: random.Random, size: int, share: float) -> frozenset[Cell]:
    """Draws random pits that leave a path from start to goal."""
    goal = (size - 1, size - 1)
    cells = [(row, column) for row in range(size) for column in range(size)]
    candidates = [cell for cell in cells if cell not in (_START, goal)]
    rng.shuffle(candidates)
    pits: frozenset[Cell] = frozenset()
    for cell in candidates:
        if len(pits) >= round(share * size**2):
            break
        if goal in _reachable(size, pits | {cell}):
            pits |= {cell}
    return pits


def _reachable(size: int, pits: frozenset[Cell]) -> set[Cell]:
    """Returns the cells that can be reached from the start."""
    reached = {_START}
    frontier = [_START]
    while frontier:
        cell = frontier.pop()
        new = {neighbour(cell, move, size) for move in MOVES} - pits - reached
        reached |= new
        frontier.extend(new)
    return reached


@lru_cache(maxsize=256)
def best_moves(size: int, pits: frozenset[Cell], slippery: bool) -> dict[Cell, str]:
    """Returns the best move in each reachable cell, by value iteration.

    The small discount prefers shorter paths: on firm ground this is the shortest path, on slippery
    ground a compromise between speed and the risk of a pit.
    """
    goal = (size - 1, size - 1)
    cells = sorted(_reachable(size, pits) - {goal}, reverse=True)
    values: dict[Cell, float] = dict.fromkeys(cells, 0.0) | {goal: 1.0}

    def worth(cell: Cell, move: str) -> float:
        moves = (move, *_SIDEWAYS[move]) if slippery else (move,)
        ends = [neighbour(cell, actual, size) for actual in moves]
        return 0.99 * sum(values.get(end, 0.0) for end in ends) / len(ends)

    largest_change = 1.0
    while largest_change > 1e-6:
        largest_change = 0.0
        for cell in cells:
            value = max(worth(cell, move) for move in MOVES)
            largest_change = max(largest_change, abs(value - values[cell]))
            values[cell] = value
    return {cell: max(MOVES, key=lambda move: worth(cell, move)) for cell in cells}
