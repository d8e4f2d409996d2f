"""TextArena's games as environments: the agent plays one seat, a scripted opponent the other.

>>> env = TextArenaEnvironment("TicTacToe-v0", seat=1)  # or make_environment("textarena:...")
>>> observation = env.reset()
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters.randomness import Randomness
from turnwise.env.adapters.textarena.games import game_facts, random_move
from turnwise.env.adapters.textarena.play import (
    Message,
    arena,
    make_game,
    render,
    result,
    start_game,
    take_move,
    try_game,
    unread,
)
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault

Opponent: TypeAlias = Callable[[str, random.Random], str]
"""Takes the new observation and a random generator, and returns the other player's move."""

MAX_OPPONENT_MOVES = 1000
"""Moves in a row, after which an opponent counts as stuck."""


class TextArenaEnvironment(BaseEnvironment):
    """One game of TextArena, played by its own rules.

    `OFFLINE_GAMES` names the games that need no network. `seat` is the agent's place in a game
    for two. `opponent` is "random", which plays valid random moves, or a function
    (observation, rng) -> move without state, since all copies of the environment share it. Other
    options go to the game (`max_turns=20`). Each can also be set in the config's `params`.

    The reward is TextArena's, given with the last step: 1, 0 or -1 in games for two, and mostly
    the share of the puzzle that was solved in games for one. A turn limit that the game scores is
    one of its rules; only one that leaves a game for two undecided counts as truncation.
    """

    max_steps = 1000

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
        self._randomness = Randomness(seed=0)
        self._play: Any = None
        with self._randomness.installed():
            self._made, self._adds_brackets = make_game(game, self.options)
            if self._facts.num_players is None:
                self._check_players(try_game(game, self._made, self.options))

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        self._history: dict[int, list[Message]] = {}
        self._opponent_rng = random.Random(self.rng.getrandbits(32))
        seed = self.rng.getrandbits(32)
        self._randomness = Randomness(seed)
        with self._randomness.installed():
            self._play = copy.deepcopy(self._made)
            num_players = start_game(self._play, self._facts.num_players, seed)
        self._check_players(num_players)
        self._let_opponent_move()
        self._last_read = self._read_new(self.seat)
        return self._last_read

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._play is None:
            raise EnvironmentFault(f"{self.game} has not begun. Call reset() before step().")
        info: dict[str, Any] = {}
        if not self._play.state.done:
            if not self._move(action):
                info["invalid_action"] = True
            self._let_opponent_move()
        self._last_read = self._read_new(self.seat)
        if not self._play.state.done:
            return self._last_read, 0.0, False, info
        self._done = True
        reward, ending = result(self._play, self.seat)
        self._last_read = f"{self._last_read}\nGame over: {ending['reason']}".lstrip("\n")
        return self._last_read, reward, True, info | ending

    def get_state_description(self) -> str:
        """Returns the last board if it is the whole state; else the last text and a hash."""
        if self._play is None:
            return ""
        seen = self._history.get(self.seat, [])
        if self._facts.board_is_state:
            kind = arena().ObservationType.GAME_BOARD
            text = next(message[1] for message in reversed(seen) if message[2] is kind)
        else:
            mark = hashlib.sha256(repr([text for _, text, _ in seen]).encode()).hexdigest()
            text = f"{self._last_read}\n(history {mark[:16]})"
        errors = self._play.state.error_count
        return f"{text}\n({errors} invalid in a row)" if errors else text

    def get_prompt_prefix(self) -> str:
        return (
            f"You are playing {self.game.partition('-')[0]}. Each turn, reply with one move, "
            "written the way the game's rules show it, square brackets included."
        )

    def sample_action(self, rng: random.Random) -> str | None:
        return self._random_move(self.seat, rng)

    def spawn(self) -> Self:
        return type(self)(
            self.game,
            copy.deepcopy(self.config),
            seat=self.seat,
            opponent=self.opponent,
            **self.options,
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
            "and the turn did not pass. Give an opponent that continues the game."
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
        """Makes a move for the current player; returns whether it was valid."""
        with self._randomness.installed():
            valid = take_move(self._play, self._written(action))
        self._play.state.logs.clear()  # only TextArena's own displays read them
        return valid

    def _random_move(self, player: int, rng: random.Random) -> str | None:
        if self._play is None:
            return None
        if self._play.state.done:
            return ""  # the opponent ended the game before the agent's first turn

        def is_valid(move: str) -> bool:
            # Tried on a copy and with other random numbers, without effect on the game.
            with Randomness(seed=0).installed():
                return take_move(copy.deepcopy(self._play), self._written(move))

        kinds = arena().ObservationType
        seen = self._history.get(player, [])
        shown = [text for _, text, kind in seen[-10:] if kind is not kinds.PLAYER_ACTION]
        rules = [text for _, text, kind in seen if kind is kinds.PROMPT]
        return random_move(self._facts, [*shown, *rules], rng, is_valid)

    def _written(self, action: str) -> str:
        """Adds brackets to a bare action, as the game's own wrappers would."""
        bare = "[" not in action and "]" not in action
        return f"[{action.strip()}]" if self._adds_brackets and bare else action

    def _read_new(self, player: int) -> str:
        """Returns what the player has not read yet."""
        with self._randomness.installed():
            messages = unread(self._play, player)
        self._history.setdefault(player, []).extend(messages)
        return render(messages, player, self._play.state.role_mapping)

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


def _no_random_moves(game: str) -> str:
    return (
        f"there is no random opponent for {game}, whose moves cannot be guessed from its texts. "
        "Give opponent=function, called as function(observation, rng) -> move."
    )
