"""TextArena's games as environments: the agent plays one seat, a scripted opponent the other.

Needs the `textarena` extra.

>>> env = TextArenaEnvironment("TicTacToe-v0", seat=1)  # or make_environment("textarena:...")
>>> observation = env.reset()
"""

import copy
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters import Randomness
from turnwise.env.base import BaseEnvironment
from turnwise.errors import (
    ConfigError,
    EnvironmentFault,
    describe_error,
    did_you_mean,
    import_extra,
)

textarena: Any = import_extra("textarena", "textarena")

MAX_TRIES = 2000
"""Moves that the random player tries before it takes an invalid one."""


@dataclass(frozen=True)
class Game:
    """What the adapter must know about a game."""

    num_players: int | None = None
    """None if it is known only when the game is created."""
    moves: Sequence[str] | None = None
    """The formats of moves, with choices such as `<1-9>` and `<a|b>`. None if the game's texts list
    the moves in square brackets; empty if there is no random player."""
    board_is_state: bool = False
    """Whether the last board is the whole state."""


with Path(__file__).with_suffix(".yaml").open(encoding="utf-8") as _file:
    OFFLINE_GAMES = {name: Game(**facts) for name, facts in yaml.safe_load(_file).items()}
"""The games that are known to need no network, by their names."""


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
        self, game: str, config: EnvironmentConfig | Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(config)
        self.game = game
        options = {"seat": 0, "opponent": "random", **self.config.params, **options}
        self.seat: int = options.pop("seat")
        self.opponent: str | Callable[[str, random.Random], str] = options.pop("opponent")
        # A variant, such as PigDice-v0-50, goes by the name up to its version.
        family = re.sub(r"(-v\d+).*", r"\1", game)
        self._facts = OFFLINE_GAMES.get(game) or OFFLINE_GAMES.get(family) or Game()
        self._randomness = Randomness(seed=0)
        self._play: Any = None
        with self._randomness.installed():
            self._made, self._adds_brackets = _make_game(game, options)
            self._num_players = self._facts.num_players or _count_players(game, self._made)
        if self.seat not in range(self._num_players):
            count = f"{self._num_players} player(s), counted from 0"
            raise ConfigError(f"{game} has no seat {self.seat!r}: it has {count}.")
        has_random = self._num_players == 1 or self._facts.moves != []
        if not callable(self.opponent) and not (self.opponent == "random" and has_random):
            kinds = "'random' or a function" if has_random else "a function"
            expected = f"{kinds} (observation, rng) -> move"
            raise ConfigError(f"opponent of {game} got {self.opponent!r}, expected {expected}")

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        # What each player has read: messages of a sender (-1 is the game), a text and a kind.
        self._history: dict[int, list[tuple[int, str, Any]]] = {0: [], 1: []}
        self._opponent_rng = random.Random(self.rng.getrandbits(32))
        seed = self.rng.getrandbits(32)
        self._randomness = Randomness(seed)
        with self._randomness.installed():
            self._play = copy.deepcopy(self._made)
            self._play.reset(num_players=self._num_players, seed=seed)
        self._let_opponent_move()
        self._last_read = self._read_new(self.seat)
        return self._last_read

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._play is None:
            raise EnvironmentFault(f"{self.game} has not begun. Call reset() before step().")
        info: dict[str, Any] = {}
        if not self._play.state.done:
            with self._randomness.installed():
                if not self._move(self._play, action):
                    info["invalid_action"] = True
            self._let_opponent_move()
        self._last_read = self._read_new(self.seat)
        if not self._play.state.done:
            return self._last_read, 0.0, False, info
        self._done = True
        rewards, game_info = self._play.close()
        reward = rewards[self.seat]
        reason = str(game_info[self.seat].get("reason", ""))
        if isinstance(reward, str):
            # Four puzzles swap the reward of a last invalid move and its reason.
            reward, reason = float(reason.rpartition(" ")[2]), f"Invalid move: {reward}"
        others = [value for player, value in rewards.items() if player != self.seat]
        info["success"] = reward >= 1
        if others:
            outcome = "draw" if reward == max(others) else "win" if reward > max(others) else "loss"
            info |= {"success": outcome == "win", "outcome": outcome}
        info["reason"] = reason
        is_limit = re.search(r"\b(turn|move) limit", reason, re.IGNORECASE) is not None
        if is_limit and info.get("outcome") == "draw":
            info["truncated"] = True
        self._last_read = f"{self._last_read}\nGame over: {reason}".lstrip("\n")
        return self._last_read, float(reward), True, info

    def get_state_description(self) -> str:
        """Returns the last board if it is the whole state; else the last text and a hash."""
        if self._play is None:
            return ""
        seen = self._history[self.seat]
        if self._facts.board_is_state:
            board = textarena.ObservationType.GAME_BOARD
            text = next(text for _, text, kind in reversed(seen) if kind is board)
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
        return None if self._play is None else self._random_move(self.seat, rng)

    def spawn(self) -> Self:
        twin = copy.copy(self)  # with the same game as made, which is never played itself
        twin.config = copy.deepcopy(self.config)
        twin._play = None
        twin._rng = None
        twin._done = False
        twin.step_count = 0
        return twin

    def close(self) -> None:
        self._play = None

    def _let_opponent_move(self) -> None:
        state = self._play.state
        while not state.done and state.current_player_id != self.seat:
            player = state.current_player_id
            observation = self._read_new(player)
            if callable(self.opponent):
                move: Any = self.opponent(observation, self._opponent_rng)
            else:
                move = self._random_move(player, self._opponent_rng)
            if not isinstance(move, str):
                raise EnvironmentFault(f"the opponent returned {move!r:.80}, expected a str.")
            with self._randomness.installed():
                self._move(self._play, move)

    def _move(self, play: Any, action: str) -> bool:
        """Makes a move for the current player; returns whether it was valid."""
        if self._adds_brackets and "[" not in action and "]" not in action:
            action = f"[{action.strip()}]"
        state = play.state
        player = state.current_player_id
        errors = state.error_count
        play.step(action)
        state.logs.clear()  # only TextArena's own displays read them
        return not state.game_info[player]["invalid_move"] and state.error_count <= errors

    def _random_move(self, player: int, rng: random.Random) -> str | None:
        """Returns a random valid move, from the game's formats or from the lists in its texts.

        If no move that was tried is valid, it is the last one; the game has a rule for that.
        """
        if self._play.state.done:
            return ""  # the opponent ended the game before the agent's first turn
        move = None
        for move in self._candidates(player, rng):
            # Tried on a copy and with other random numbers, without effect on the game.
            with Randomness(seed=0).installed():
                if self._move(copy.deepcopy(self._play), move):
                    break
        return move

    def _candidates(self, player: int, rng: random.Random) -> Iterator[str]:
        formats = self._facts.moves
        if formats is not None:
            for _ in range(MAX_TRIES if formats else 0):
                yield re.sub(r"<([^<>]+)>", lambda hole: _choose(hole[1], rng), rng.choice(formats))
            return
        kinds = textarena.ObservationType
        seen = self._history[player]
        texts = [text for _, text, kind in seen[-10:] if kind is not kinds.PLAYER_ACTION]
        texts += [text for _, text, kind in seen if kind is kinds.PROMPT]
        moves = dict.fromkeys(move for text in texts for move in re.findall(r"\[[^\[\]]+\]", text))
        yield from rng.sample(list(moves), len(moves))

    def _read_new(self, player: int) -> str:
        """Returns what the player has not read yet, without their own moves and old boards."""
        state = self._play.state
        kinds = textarena.ObservationType
        with self._randomness.installed():
            if state.current_player_id == player and not state.done:
                messages = self._play.get_observation()[1]  # some games add to it here
            else:
                messages, state.observations[player] = state.observations[player], []
        # A few puzzles add a malformed echo of the move, which is dropped.
        messages = [message for message in messages if isinstance(message[2], kinds)]
        self._history[player] += messages
        boards = [index for index, message in enumerate(messages) if message[2] is kinds.GAME_BOARD]
        lines: list[str] = []
        for index, (sender, text, kind) in enumerate(messages):
            if kind is kinds.PLAYER_ACTION:
                if sender not in (player, textarena.GAME_ID):
                    lines.append(f"{state.role_mapping.get(sender, f'Player {sender}')}: {text}")
            elif kind is not kinds.GAME_BOARD or index == boards[-1]:
                lines.append(text.strip("\n"))
        return "\n".join(lines)


def _choose(options: str, rng: random.Random) -> str:
    """Chooses from `0-13` (numbers), `a-h` (letters) or `up|down` (words)."""
    low, dash, high = options.partition("-")
    if dash and low.isdigit():
        return str(rng.randint(int(low), int(high)))
    if dash and low.isalpha():
        return chr(rng.randint(ord(low), ord(high)))
    return rng.choice(options.split("|"))


def _make_game(name: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Returns the game without its wrappers, and whether these add brackets to a bare move."""
    registry = textarena.envs.registration.ENV_REGISTRY
    if name not in registry:
        names = [known for known in registry if not known.endswith(("-raw", "-train"))]
        raise ConfigError(f"TextArena has no game {name!r}. {did_you_mean(name, names)}")
    try:
        game = textarena.make(name, **options)
    except Exception as error:  # options that it does not take, word lists or a network
        message = f"{name} does not run here with {dict(options)}: {describe_error(error)}"
        raise ConfigError(message) from error
    adds_brackets = False
    while isinstance(game, textarena.Wrapper):
        adds_brackets |= type(game).__name__ == "ActionFormattingWrapper"
        game = game.env
    return game, adds_brackets


def _count_players(name: str, game: Any) -> int:
    """Starts a copy of a game that is not in the table; refuses one for three players."""
    problem = "it is for three players or more"
    for count in (1, 2):
        trial = copy.deepcopy(game)
        try:
            trial.reset(num_players=count, seed=0)
        except Exception as error:
            problem = describe_error(error)
        else:
            if trial.state.num_players == count:  # a few ignore the argument
                return count
    raise ConfigError(f"{name} cannot be played here by one or two: {problem}")
