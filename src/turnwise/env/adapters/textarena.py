"""TextArena's games as environments: the agent has one seat, a scripted opponent the other.

>>> env = TextArenaEnvironment("TicTacToe-v0", seat=1)  # or make_environment("textarena:...")
>>> observation = env.reset()
"""

from __future__ import annotations

import contextlib
import copy
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Self, TypeAlias

import numpy as np

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters.textarena_games import OFFLINE_GAMES, game_facts, random_move
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean, import_extra

__all__ = ["OFFLINE_GAMES", "Opponent", "TextArenaEnvironment"]

Opponent: TypeAlias = Callable[[str, random.Random], str]
"""Given what is new to it and its own random numbers, says the other player's move."""

Message: TypeAlias = tuple[int, str, Any]
"""Who speaks (-1: the game), the text, and TextArena's kind of message."""

MAX_OPPONENT_MOVES = 1000
"""In a row; an opponent that is never done would otherwise hold the episode for ever."""


class TextArenaEnvironment(BaseEnvironment):
    """One game of TextArena, played by its own rules.

    `OFFLINE_GAMES` names the games that need no network. `seat` is the agent's place in a game
    for two. `opponent` is "random", which plays valid random moves, or a function
    (observation, rng) -> move; all copies of the environment share that function, so it must keep
    no state. Every other option goes to the game itself (`max_turns=20`). A config may hold the
    same names in its `params`.

    The reward is TextArena's, given with the last step: 1, 0 or -1 in games for two, and mostly
    the share of the puzzle that was solved in games for one. A turn limit that the game scores is
    one of its rules; only one that leaves a game for two undecided counts as truncation.
    """

    max_steps = 500

    def __init__(
        self,
        game: str,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        *,
        seat: int | None = None,
        opponent: str | Opponent | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config)
        self.game = game
        self.options = {**self.config.params, **options}
        params_seat = self.options.pop("seat", 0)
        params_opponent = self.options.pop("opponent", "random")
        self.seat: int = params_seat if seat is None else seat
        self.opponent: str | Opponent = params_opponent if opponent is None else opponent
        self._facts = game_facts(game)
        self._check_players(self._facts.num_players)
        self._randomness = _Randomness(seed=0)
        self._play: Any = None
        with self._randomness.installed():
            self._made, self._adds_brackets = _make(game, self.options)

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        self._history: dict[int, list[Message]] = {}
        self._opponent_rng = random.Random(self.rng.getrandbits(32))
        seed = self.rng.getrandbits(32)
        self._randomness = _Randomness(seed)
        with self._randomness.installed():
            self._play = copy.deepcopy(self._made)
            num_players = _start(self._play, self._facts.num_players, seed)
        self._check_players(num_players)
        self._let_opponent_move()
        return self._read_new(self.seat)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._play is None:
            raise EnvironmentFault(f"{self.game} has not begun. Call reset() before step().")
        info: dict[str, Any] = {}
        if not self._play.state.done:
            if not self._move(action):
                info["invalid_action"] = True
            self._let_opponent_move()
        observation = self._read_new(self.seat)
        if not self._play.state.done:
            return observation, 0.0, False, info
        self._done = True
        reward, ending = self._outcome()
        info |= ending
        return f"{observation}\nGame over: {info['reason']}".strip(), reward, True, info

    def get_state_description(self) -> str:
        """The last board where it tells all, else everything that the agent's seat has seen."""
        seen = self._history.get(self.seat, []) if self._play is not None else []
        kinds = _arena().ObservationType
        if self._facts.board_is_state:
            seen = [message for message in seen if message[2] is kinds.GAME_BOARD]
        else:
            seen = [message for message in seen if message[2] is not kinds.PROMPT]
        text = self._render(seen, reader=None)
        errors = self._play.state.error_count if self._play is not None else 0
        return f"{text}\nInvalid moves in a row: {errors}" if errors else text

    def get_prompt_prefix(self) -> str:
        return (
            f"You are playing {self.game.partition('-')[0]}. Each turn, reply with one move, "
            "written the way the game's rules show it, square brackets included."
        )

    def sample_action(self, rng: random.Random) -> str | None:
        return self._random_move(self.seat, rng)

    def spawn(self) -> Self:
        return type(self)(
            self.game, self.config, seat=self.seat, opponent=self.opponent, **self.options
        )

    def close(self) -> None:
        self._play = None

    def _let_opponent_move(self) -> None:
        state = self._play.state
        for _ in range(MAX_OPPONENT_MOVES):
            if state.done or state.current_player_id == self.seat:
                return
            self._move(self._opponent_move(state.current_player_id))
        raise EnvironmentFault(
            f"the opponent in {self.game} moved {MAX_OPPONENT_MOVES} times in a row "
            "and the turn did not pass. Give an opponent that makes the game go on."
        )

    def _opponent_move(self, player: int) -> str:
        observation = self._read_new(player)
        if not callable(self.opponent):
            move = self._random_move(player, self._opponent_rng)
            if move is None:
                raise ConfigError(_no_random_moves(self.game))
            return move
        move = self.opponent(observation, self._opponent_rng)
        if not isinstance(move, str):
            raise EnvironmentFault(
                f"the opponent in {self.game} returned {type(move).__name__}, expected a str"
            )
        return move

    def _move(self, action: str) -> bool:
        """Make a move for whoever's turn it is; whether the game took it as valid."""
        with self._randomness.installed():
            valid = _take_move(self._play, self._written(action))
        self._play.state.logs.clear()  # only TextArena's screens read them; copies would drag them
        return valid

    def _random_move(self, player: int, rng: random.Random) -> str | None:
        if self._play is None:
            return None
        if self._play.state.done:
            return ""  # the opponent ended the game before the agent's first turn: nothing to move

        def is_valid(move: str) -> bool:
            # Tried on a copy, with random numbers of its own, so that the game itself feels nothing.
            with _Randomness(seed=0).installed():
                return _take_move(copy.deepcopy(self._play), self._written(move))

        kinds = _arena().ObservationType
        seen = self._history.get(player, [])
        shown = [text for _, text, kind in seen[-10:] if kind is not kinds.PLAYER_ACTION]
        rules = [text for _, text, kind in seen if kind is kinds.PROMPT]
        return random_move(self._facts, [*shown, *rules], rng, is_valid)

    def _written(self, action: str) -> str:
        """The action as the game's own wrappers would write it: brackets added where none are."""
        return f"[{action.strip()}]" if self._adds_brackets and "[" not in action else action

    def _read_new(self, player: int) -> str:
        """What the player has not read yet."""
        state = self._play.state
        if state.current_player_id == player and not state.done:
            with self._randomness.installed():
                _, messages = self._play.get_observation()
        else:
            messages, state.observations[player] = state.observations[player], []
        # Some games add the echo of a move with its arguments in the wrong order: nothing is lost.
        new = [m for m in messages if isinstance(m[2], _arena().ObservationType)]
        self._history.setdefault(player, []).extend(new)
        return self._render(new, reader=player)

    def _render(self, messages: list[Message], reader: int | None) -> str:
        """The messages line by line, without the reader's own words and boards out of date."""
        kinds = _arena().ObservationType
        roles = self._play.state.role_mapping if self._play is not None else {}
        boards = [i for i, (_, _, kind) in enumerate(messages) if kind is kinds.GAME_BOARD]
        lines = []
        for index, (sender, text, kind) in enumerate(messages):
            if kind is kinds.PLAYER_ACTION:
                if sender in (reader, _arena().GAME_ID):
                    continue
                text = f"{roles.get(sender, f'Player {sender}')}: {text}"
            if kind is not kinds.GAME_BOARD or index == boards[-1]:
                lines.append(text.strip("\n"))
        return "\n".join(lines)

    def _outcome(self) -> tuple[float, dict[str, Any]]:
        """The agent's reward, and what there is to say about it."""
        rewards, game_info = self._play.close()
        reward, reason = rewards[self.seat], str(game_info[self.seat].get("reason", ""))
        if isinstance(reward, str):
            # Four puzzles give TextArena the reward of a last invalid move in the reason's place.
            reward, reason = float(reason.rpartition(" ")[2]), f"Invalid move: {reward}"
        others = [value for player, value in rewards.items() if player != self.seat]
        if not others:
            return float(reward), {"success": reward >= 1, "reason": reason}
        outcome = "draw" if reward == max(others) else "win" if reward > max(others) else "loss"
        info = {"success": outcome == "win", "outcome": outcome, "reason": reason}
        if outcome == "draw" and re.search(r"(turn|move)s? limit", reason, re.IGNORECASE):
            info["truncated"] = True
        return float(reward), info

    def _check_players(self, num_players: int | None) -> None:
        if num_players is not None and self.seat not in range(num_players):
            raise ConfigError(
                f"{self.game} has no seat {self.seat!r}: it has {num_players} player(s). "
                f"Take a seat from 0 to {num_players - 1}."
            )
        if self.opponent != "random" and not callable(self.opponent):
            raise ConfigError(
                f"opponent got {self.opponent!r}, expected 'random' or a function "
                "(observation, rng) -> move"
            )
        if num_players != 1 and self.opponent == "random" and self._facts.moves == ():
            raise ConfigError(_no_random_moves(self.game))


class _Randomness:
    """One game's own random numbers, put in the place of the process's while the game computes.

    TextArena draws from the global generators of `random` and numpy. Sharing them, two episodes
    would disturb each other and everybody else; so each game brings its state and takes it away
    again, and the lock keeps games in other threads out meanwhile.
    """

    _lock = threading.RLock()

    def __init__(self, seed: int) -> None:
        self._inside = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with self._lock:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self._inside[0])
            np.random.set_state(self._inside[1])
            try:
                yield
            finally:
                self._inside = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])


def _arena() -> ModuleType:
    # Looked up each time: a module kept on the environment could not be copied with it.
    return import_extra("textarena", "textarena")


def _make(game: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """The bare game, and whether its wrappers would have put brackets around a bare move."""
    arena = _arena()
    registry = arena.envs.registration.ENV_REGISTRY
    if game not in registry:
        names = [name for name in registry if not name.endswith(("-raw", "-train"))]
        raise ConfigError(f"TextArena has no game {game!r}. {did_you_mean(game, names)}")
    try:
        made = arena.make(game, **options)
    except TypeError as error:
        raise ConfigError(f"{game} does not take these options: {options}. {error}") from None
    except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{game} does not run here: {_cause(error)}") from error
    adds_brackets = False
    while isinstance(made, arena.Wrapper):
        adds_brackets |= type(made).__name__ == "ActionFormattingWrapper"
        made = made.env
    return made, adds_brackets


def _start(play: Any, num_players: int | None, seed: int) -> int:
    """Reset the game for as many players as it is for; that number."""
    for count in (1, 2) if num_players is None else (num_players,):
        try:
            play.reset(num_players=count, seed=seed)
        except (AssertionError, ValueError):
            if num_players is not None:
                raise
        else:
            if play.state.num_players == count:
                return count
    raise ConfigError(
        "this TextArena game is not for one or two players, and only those are played"
    )


def _take_move(play: Any, action: str) -> bool:
    """Step the game; False if it counted the move as an error of the player."""
    player, errors = play.state.current_player_id, play.state.error_count
    play.step(action)
    penalised = play.state.game_info[player]["invalid_move"]
    return not penalised and play.state.error_count <= errors


def _cause(error: Exception) -> str:
    text = str(error)
    if isinstance(error, LookupError) and "nltk" in text.lower():
        return (
            "it needs NLTK's word lists, which are not on this machine. Where there is a network: "
            "python -m nltk.downloader words averaged_perceptron_tagger_eng"
        )
    if "api key" in text.lower():
        return f"it asks a language model over the network. {text}"
    if isinstance(error, SyntaxError):
        return f"its source in the installed TextArena is not valid for this Python: {error}"
    return f"{type(error).__name__}: {text}"


def _no_random_moves(game: str) -> str:
    return (
        f"there is no random opponent for {game}, whose moves cannot be guessed from its texts. "
        "Give opponent=function, called as function(observation, rng) -> move."
    )
