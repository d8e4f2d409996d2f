"""TextArena's offline games: the number of players, and how to find a random move."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

MAX_TRIES = 2000
"""Moves that the random player tries before it takes an invalid one."""


@dataclass(frozen=True)
class Game:
    """What the adapter must know about a game.

    >>> Game(2, moves=("[attack <0|1> <0|1>]",)).num_players
    2
    """

    num_players: int | None = None
    """None if it is known only when the game is created."""
    moves: tuple[str, ...] | None = None
    """The formats of moves, with choices such as `<1-9>` and `<a|b>`. None if the game's texts list
    the moves in square brackets; empty if there is no random player."""
    board_is_state: bool = False
    """Whether the last board is the whole state."""


UNKNOWN_GAME = Game()

# Of the games that need nothing from a network, those that one or two can play. A variant, such as
# PigDice-v0-50, goes by the name up to its version. Left out though they start: Bandit-v0, whose
# reward is the regret (higher is worse), Stratego-v0, which breaks off with an exception in some
# positions, and games for three players and more. Sokoban-v0-medium may take minutes to draw a map.
OFFLINE_GAMES: dict[str, Game] = {
    # One player.
    "2048-v0": Game(1, board_is_state=True),
    "Blackjack-v0": Game(1),
    "Countdown-v0": Game(1, ("[<0-5> <0-5> <+|-|*|/>]",)),
    # In these three a wrong guess is an invalid move: to try moves out would be to know the answer.
    "Crosswords-v0": Game(1, ()),
    "Minesweeper-v0": Game(1, ()),
    "Sudoku-v0": Game(1, (), board_is_state=True),
    "Cryptarithm-v0": Game(1, ("[<A-Z> <0-9>]",)),
    "FifteenPuzzle-v0": Game(1, board_is_state=True),
    "FrozenLake-v0": Game(1, board_is_state=True),
    "GuessTheNumber-v0": Game(1, ("[<1-50>]",)),
    "LightsOut-v0": Game(1, ("[<0-4> <0-4>]",)),
    "LogicPuzzle-v0": Game(1, ()),
    "Mastermind-v0": Game(1, ("[<1-8> <1-8> <1-8> <1-8>]", "[" + " ".join(["<1-12>"] * 6) + "]")),
    "PegJump-v0": Game(1, ("[<1-15> <1-15>]",), board_is_state=True),
    "RushHour-v0": Game(1, ("[<A-Z><+|->]",), board_is_state=True),
    "Secretary-v0": Game(1),
    "Set-v0": Game(1, ("[<1-12>, <1-12>, <1-12>]",)),
    "Slitherlink-v0": Game(1, ("[<h|v> <0-4> <0-4>]",), board_is_state=True),
    "Sokoban-v0": Game(1, board_is_state=True),
    "ThreeCardMonte-v0": Game(1, ("[<0-2>]",)),
    "TowerOfHanoi-v0": Game(1, ("[A <B|C>]", "[B <A|C>]", "[C <A|B>]"), board_is_state=True),
    # Two players.
    "Alquerque-v0": Game(2, ()),
    "Battleship-v0": Game(2, ("[<A-E><0-4>]",)),
    "Battleship-v0-standard": Game(2, ("[<A-J><0-9>]",)),
    "Battleship-v0-large": Game(2, ("[<A-N><0-13>]",)),
    "Battleship-v0-extreme": Game(2, ("[<A-T><0-19>]",)),
    "Breakthrough-v0": Game(2, ()),
    "Briscola-v0": Game(2, ("[play <1-3>]",)),
    "Chopsticks-v0": Game(2, ("[attack <0|1> <0|1>]", "[split <0-4> <0-4>]"), board_is_state=True),
    "ColonelBlotto-v0": Game(2, ()),
    "ConnectFour-v0": Game(2, ("[col <0-14>]",), board_is_state=True),
    "ConnectFour-v0-blind": Game(2, ("[col <0-6>]",)),
    "Crusade-v0": Game(2),
    "GameOfPureStrategy-v0": Game(2),
    "GermanWhist-v0": Game(2, ("[play <1-13>]",)),
    "Golf-v0": Game(2, ("[draw]", "[take]", "[discard]", "[swap <1-3> <1-3>]")),
    "HighSociety-v0": Game(2),
    "IndianPoker-v0": Game(2, ("[check]", "[bet <1-9>]", "[call]", "[raise <1-9>]", "[fold]")),
    "IteratedMatchingPennies-v0": Game(2),
    "IteratedPrisonersDilemma-v0": Game(2),
    "IteratedRockPaperScissors-v0": Game(2),
    "IteratedTwoThirdsAverage-v0": Game(2, ("[<0-100>]",)),
    "IteratedUltimatumGame-v0": Game(2, ("[Offer: $<0-50>]", "[Accept]", "[Reject]")),
    "KuhnPoker-v0": Game(2),
    "LiarsDice-v0": Game(2, ("[Bid: <1-12>, <1-6>]", "[Call]")),
    "LinesOfAction-v0": Game(2, (), board_is_state=True),
    "MemoryGame-v0": Game(2, ("[<0-3> <0-3> <0-3> <0-3>]",)),
    "MemoryGame-v0-medium": Game(2, ("[<0-5> <0-5> <0-5> <0-5>]",)),
    "MemoryGame-v0-hard": Game(2, ("[<0-7> <0-7> <0-7> <0-7>]",)),
    "NewRecruit-v0": Game(2, ("[Propose] " + " ".join(["<A-E>"] * 8), "[Accept]", "[Reject]")),
    "Nim-v0": Game(2, ("[<0-4> <1-11>]",), board_is_state=True),
    "Othello-v0": Game(2, board_is_state=True),
    "Othello-v0-hard": Game(2, ("[<0-7>, <0-7>]",), board_is_state=True),
    "PigDice-v0": Game(2),
    "Poker-v0": Game(2, ("[Check]", "[Call]", "[Fold]", "[Bet <20-200>]", "[Raise <20-200>]")),
    "QuantumTicTacToe-v0": Game(2, ("[<0-8>,<0-8>]",)),
    "SantoriniBaseFixed-v0": Game(2, ()),
    "SimpleBlindAuction-v0": Game(2, ("[Bid on Item <0-4>: <1-500>]",)),
    "SimpleNegotiation-v0": Game(2, ()),
    "SimpleTak-v0": Game(2, board_is_state=True),
    "Snake-v0": Game(2),
    "SpiteAndMalice-v0": Game(2, ()),
    "Surround-v0": Game(2),
    "Tak-v0": Game(2, ()),
    "TicTacToe-v0": Game(2, board_is_state=True),
    "TruthAndDeception-v0": Game(2, ()),
    "TwoDollar-v0": Game(2, ("[Propose] $<0|1>.<10-99>", "[Accept]", "[Reject]")),
    "UltimateTicTacToe-v0": Game(2, ("[<0-8> <0-8>]",)),
    "WildTicTacToe-v0": Game(2, board_is_state=True),
}


def game_facts(name: str) -> Game:
    """Returns the facts about a game, or about the game that it is a variant of."""
    family = re.sub(r"(-v\d+).*", r"\1", name)
    return OFFLINE_GAMES.get(name) or OFFLINE_GAMES.get(family) or UNKNOWN_GAME


def random_move(
    game: Game, texts: Iterable[str], rng: random.Random, is_valid: Callable[[str], bool]
) -> str | None:
    """Returns a random valid move, from the game's formats or from the lists in its texts.

    If no move that was tried is valid, it is the last one; the game has a rule for that.
    """
    candidates = _listed(texts, rng) if game.moves is None else _formatted(game.moves, rng)
    move = None
    for move in candidates:
        if is_valid(move):
            break
    return move


def _formatted(formats: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    for _ in range(MAX_TRIES if formats else 0):
        yield re.sub(r"<([^<>]+)>", lambda hole: _choose(hole[1], rng), rng.choice(formats))


def _choose(options: str, rng: random.Random) -> str:
    """Chooses from `0-13` (numbers), `a-h` (letters) or `up|down` (words)."""
    if re.fullmatch(r"\d+-\d+", options):
        low, high = map(int, options.split("-"))
        return str(rng.randint(low, high))
    if re.fullmatch(r"[A-Za-z]-[A-Za-z]", options):
        return chr(rng.randint(ord(options[0]), ord(options[2])))
    return rng.choice(options.split("|"))


def _listed(texts: Iterable[str], rng: random.Random) -> list[str]:
    """Returns every bracketed text, in random order."""
    found = dict.fromkeys(move for text in texts for move in re.findall(r"\[[^\[\]]+\]", text))
    return rng.sample(list(found), len(found))
