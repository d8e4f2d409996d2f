"""TextArena's games; needs the `textarena` extra."""

from turnwise.env.adapters.textarena.environment import Opponent, TextArenaEnvironment
from turnwise.env.adapters.textarena.games import OFFLINE_GAMES

__all__ = ["OFFLINE_GAMES", "Opponent", "TextArenaEnvironment"]
