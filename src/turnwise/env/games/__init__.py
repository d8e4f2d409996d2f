"""Small games: to try the library on, to train on, and to read as examples."""

from turnwise.env.games.alphabet_sort import AlphabetSortEnvironment
from turnwise.env.games.custom import CustomGameEnvironment
from turnwise.env.games.grid_world import GridWorldEnvironment
from turnwise.env.games.guess_number import GuessNumberEnvironment
from turnwise.env.games.shop import ShopEnvironment
from turnwise.env.games.simple import SimpleGameEnvironment

__all__ = [
    "AlphabetSortEnvironment",
    "CustomGameEnvironment",
    "GridWorldEnvironment",
    "GuessNumberEnvironment",
    "ShopEnvironment",
    "SimpleGameEnvironment",
]
