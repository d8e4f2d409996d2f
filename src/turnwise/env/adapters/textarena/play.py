"""Calls TextArena: creates, starts and steps a game, reads its messages and its result."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from turnwise.errors import ConfigError, did_you_mean, import_extra

Message: TypeAlias = tuple[int, str, Any]
"""The sender (-1 is the game), the text, and TextArena's kind of message."""


def arena() -> ModuleType:
    """Returns the package; an environment that kept a module could not be copied."""
    return import_extra("textarena", "textarena")


def make_game(name: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Returns the game without its wrappers, and whether these add brackets to a bare move."""
    registry = arena().envs.registration.ENV_REGISTRY
    if name not in registry:
        names = [known for known in registry if not known.endswith(("-raw", "-train"))]
        raise ConfigError(f"TextArena has no game {name!r}. {did_you_mean(name, names)}")
    try:
        game = arena().make(name, **options)
    except TypeError as error:
        raise ConfigError(f"{name} does not take the options {dict(options)}: {error}") from None
    except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{name} does not run here: {_cause(error)}") from error
    adds_brackets = False
    while isinstance(game, arena().Wrapper):
        adds_brackets |= type(game).__name__ == "ActionFormattingWrapper"
        game = game.env
    return game, adds_brackets


def start_game(game: Any, num_players: int | None, seed: int) -> int:
    """Starts the game, for one or two players if `num_players` is None; returns how many."""
    if num_players is not None:
        game.reset(num_players=num_players, seed=seed)
        return num_players
    for count in (1, 2):
        # A game for other numbers asserts or raises; a few ignore the argument.
        with contextlib.suppress(AssertionError, ValueError):
            game.reset(num_players=count, seed=seed)
            if game.state.num_players == count:
                return count
    raise ConfigError(
        f"{type(game).__name__} is for three players or more; games for one or two can be played"
    )


_NUM_PLAYERS: dict[tuple[str, type, str], int] = {}
"""The results of `try_game`, by name, class and options."""


def try_game(name: str, game: Any, options: Mapping[str, Any]) -> int:
    """Starts a copy of a game that is not in the table; returns its number of players.

    A game that lacks a file, or needs a third player, is thereby refused at creation.
    """
    key = (name, type(game), repr(sorted(options.items())))
    if key not in _NUM_PLAYERS:
        try:
            _NUM_PLAYERS[key] = start_game(copy.deepcopy(game), None, seed=0)
        except (ImportError, LookupError, OSError, SyntaxError) as error:
            raise ConfigError(f"{name} does not run here: {_cause(error)}") from error
    return _NUM_PLAYERS[key]


def take_move(game: Any, action: str) -> bool:
    """Steps the game; returns False if the move was invalid."""
    state = game.state
    player, errors = state.current_player_id, state.error_count
    game.step(action)
    return not state.game_info[player]["invalid_move"] and state.error_count <= errors


def unread(game: Any, player: int) -> list[Message]:
    """Takes the messages that the player has not read yet."""
    state = game.state
    if state.current_player_id == player and not state.done:
        messages = game.get_observation()[1]  # some games add to it here
    else:
        messages, state.observations[player] = state.observations[player], []
    # A few puzzles add a malformed echo of the move, which is dropped.
    return [m for m in messages if isinstance(m[2], arena().ObservationType)]


def render(messages: Sequence[Message], reader: int, roles: Mapping[int, str]) -> str:
    """Renders the messages, without the reader's own moves and without outdated boards."""
    kinds = arena().ObservationType
    boards = [index for index, message in enumerate(messages) if message[2] is kinds.GAME_BOARD]
    lines: list[str] = []
    for index, (sender, text, kind) in enumerate(messages):
        if kind is kinds.PLAYER_ACTION:
            if sender not in (reader, arena().GAME_ID):
                lines.append(f"{roles.get(sender, f'Player {sender}')}: {text}")
        elif kind is not kinds.GAME_BOARD or index == boards[-1]:
            lines.append(text.strip("\n"))
    return "\n".join(lines)


def result(game: Any, player: int) -> tuple[float, dict[str, Any]]:
    """Returns the player's reward in a game that is over, and the info."""
    rewards, game_info = game.close()
    reward, reason = rewards[player], str(game_info[player].get("reason", ""))
    if isinstance(reward, str):
        # Four puzzles swap the reward of a last invalid move and its reason.
        reward, reason = float(reason.rpartition(" ")[2]), f"Invalid move: {reward}"
    others = [value for other, value in rewards.items() if other != player]
    if not others:
        return float(reward), {"success": reward >= 1, "reason": reason}
    outcome = "draw" if reward == max(others) else "win" if reward > max(others) else "loss"
    info = {"success": outcome == "win", "outcome": outcome, "reason": reason}
    if outcome == "draw" and re.search(r"\b(turn|move) limit", reason, re.IGNORECASE):
        info["truncated"] = True
    return float(reward), info


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
