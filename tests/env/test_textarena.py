"""TextArena's games: played through from either seat, repeatable, and apart from the process."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("textarena")

from turnwise import (
    ConfigError,
    EnvironmentFault,
    EpisodeStatus,
    TextArenaEnvironment,
    check_env,
    play_episode,
    random_player,
)
from turnwise.env.adapters.textarena import OFFLINE_GAMES

ONE_PLAYER = [
    "2048-v0-ultra-easy",
    "Blackjack-v0",
    "Countdown-v0",
    "FrozenLake-v0",
    "GuessTheNumber-v0",
    "Mastermind-v0",
    "Secretary-v0",
    "TowerOfHanoi-v0",
]
TWO_PLAYERS = [
    "Briscola-v0",
    "Chopsticks-v0",
    "ConnectFour-v0",
    "IndianPoker-v0-short",
    "IteratedPrisonersDilemma-v0",
    "KuhnPoker-v0",
    "LiarsDice-v0-small",
    "Nim-v0",
    "Othello-v0-tiny",
    "Snake-v0",
    "TicTacToe-v0",
]


def says(*moves):
    """An opponent or a player that says these moves, one after the other."""
    queue = list(moves)
    return lambda *_: queue.pop(0)


def play(game, seed=0, **options):
    return play_episode(TextArenaEnvironment(game, **options), random_player(seed), seed=seed)


@pytest.mark.parametrize("game", ONE_PLAYER)
def test_a_game_for_one_is_played_to_its_end_by_valid_random_moves(game):
    trajectory = play(game)
    assert trajectory.status is EpisodeStatus.DONE, trajectory.error
    assert not any("invalid_action" in info for info in trajectory.infos)
    assert all(reward == 0 for reward in trajectory.rewards[:-1])
    assert trajectory.success == (trajectory.total_reward >= 1)
    assert trajectory.infos[-1]["reason"] in trajectory.observations[-1]


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("game", TWO_PLAYERS)
def test_a_game_for_two_is_played_to_its_end_from_either_seat(game, seat):
    trajectory = play(game, seed=1, seat=seat)
    assert not trajectory.status.is_error, trajectory.error
    assert not any("invalid_action" in info for info in trajectory.infos)
    outcome = trajectory.infos[-1]["outcome"]
    assert trajectory.total_reward == {"win": 1, "draw": 0, "loss": -1}[outcome]
    assert trajectory.success == (outcome == "win")


@pytest.mark.parametrize("game", OFFLINE_GAMES)
def test_every_offline_game_starts_offline_with_its_rules(game):
    players = OFFLINE_GAMES[game].num_players
    env = TextArenaEnvironment(game, seat=0, opponent=lambda observation, rng: "[pass]")
    env.seed(2)
    assert len(env.reset()) > 50
    assert env.get_state_description()
    with pytest.raises(ConfigError, match=f"{players} player"):
        TextArenaEnvironment(game, seat=players, opponent=lambda observation, rng: "[pass]")


def test_the_agent_reads_the_rules_once_and_then_only_what_is_new():
    env = TextArenaEnvironment("TicTacToe-v0", opponent=says("[8]", "[7]"))
    trajectory = play_episode(env, says("[0]", "[1]", "[2]"))
    system, first = trajectory.prompts
    assert "TicTacToe" in system
    assert first.startswith("You are Player 0 in Tic Tac Toe.")
    assert trajectory.observations[0] == (
        "Player 0 placed their symbol (O) in cell 0.\n"
        "Player 1: [8]\n"
        "Player 1 placed their symbol (X) in cell 8.\n"
        "Current Board:\n\n"
        " O | 1 | 2 \n---+---+---\n 3 | 4 | 5 \n---+---+---\n 6 | 7 | X \n\n"
        "Available Moves: '[1]', '[2]', '[3]', '[4]', '[5]', '[6]', '[7]'"
    )
    assert trajectory.observations[-1].endswith("Game over: Player 0 has won!")


@pytest.mark.parametrize(
    ("mine", "theirs", "outcome", "reward"),
    [("012", "87", "win", 1), ("018", "345", "loss", -1), ("04572", "8361", "draw", 0)],
)
def test_a_win_a_loss_and_a_draw_are_told_apart(mine, theirs, outcome, reward):
    env = TextArenaEnvironment("TicTacToe-v0", opponent=says(*(f"[{cell}]" for cell in theirs)))
    trajectory = play_episode(env, says(*mine))  # the game's own wrapper adds the brackets
    assert trajectory.status is EpisodeStatus.DONE
    assert trajectory.infos[-1]["outcome"] == outcome
    assert (trajectory.total_reward, trajectory.success) == (reward, outcome == "win")


def test_an_invalid_move_is_named_and_a_second_one_loses_by_the_games_own_rule():
    env = TextArenaEnvironment("TicTacToe-v0", opponent=says("[1]"))
    env.reset()
    env.step("[0]")
    observation, reward, done, info = env.step("[0]")
    assert "cell 0 is already occupied" in observation
    assert (reward, done, info) == (0, False, {"invalid_action": True})
    observation, reward, done, info = env.step("I give up")
    assert (reward, done, info["success"], info["outcome"]) == (-1, True, False, "loss")
    assert info["invalid_action"]


def test_a_puzzle_ended_by_invalid_moves_still_gives_a_number():
    trajectory = play_episode(TextArenaEnvironment("Countdown-v0"), lambda *_: "what?", seed=0)
    assert trajectory.status is EpisodeStatus.DONE
    assert trajectory.total_reward == pytest.approx(0.568)


def test_a_limit_that_leaves_the_game_undecided_is_truncation():
    env = TextArenaEnvironment("Chopsticks-v0", max_turns=2, opponent=lambda *_: "[attack 0 0]")
    trajectory = play_episode(env, lambda *_: "[attack 1 1]")
    assert trajectory.status is EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    assert trajectory.total_reward == 0


@pytest.mark.parametrize("game", ["KuhnPoker-v0", "2048-v0-ultra-easy", "Blackjack-v0"])
def test_the_same_seed_gives_the_same_episode_whatever_the_process_draws(game):
    random.seed(1)
    first = play(game, seed=5)
    random.seed(2)
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert play(game, seed=5) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert any(play(game, seed=other).prompts != first.prompts for other in range(6, 12))


def test_episodes_in_threads_do_not_disturb_each_other():
    games = ["KuhnPoker-v0", "Blackjack-v0", "2048-v0-ultra-easy", "LiarsDice-v0-small"] * 4
    alone = [play(game, seed=seed) for seed, game in enumerate(games)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(play, games, range(len(games))))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone


def test_spawn_keeps_the_settings_and_close_may_come_twice():
    env = TextArenaEnvironment("TicTacToe-v0", {"max_steps": 7}, seat=1, opponent=says("[4]"))
    env.done = True
    fresh = env.spawn()
    assert (fresh.step_count, fresh.is_done()) == (0, False)
    assert fresh.config == env.config
    assert fresh.config is not env.config
    assert (fresh.seat, fresh.max_steps, fresh.opponent) == (1, 7, env.opponent)
    assert fresh.reset().startswith("You are Player 1")
    with pytest.raises(EnvironmentFault, match="reset"):
        env.step("[0]")
    fresh.close()
    fresh.close()
    assert fresh.sample_action(random.Random(0)) is None


def test_equal_boards_are_equal_states_and_cards_are_not_forgotten():
    def state_after(*moves):
        env = TextArenaEnvironment("TicTacToe-v0", opponent=says("[8]", "[7]"))
        env.reset()
        for move in moves:
            env.step(move)
        return env.get_state_description()

    assert state_after("[0]", "[5]") == state_after("[5]", "[0]") != state_after("[0]", "[4]")
    poker = TextArenaEnvironment("KuhnPoker-v0")
    states = set()
    for seed in range(30):
        poker.seed(seed)
        poker.reset()
        states.add(poker.get_state_description())
    assert len(states) > 3  # three cards, and what the opponent did before


def test_an_opponent_that_fails_is_an_error_of_the_episode():
    env = TextArenaEnvironment("TicTacToe-v0", opponent=lambda *_: 4)
    trajectory = play_episode(env, says("[0]"))
    assert trajectory.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "returned 4, expected a str" in trajectory.error


def test_the_checker_finds_nothing():
    report = check_env("textarena:KuhnPoker-v0", {"seat": 1})
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("game", "options", "words"),
    [
        ("TicTacTo-v0", {}, "Did you mean 'TicTacToe-v0'"),
        ("Nim-v0", {"colour": 3}, "does not run here with .*colour"),
        ("Nim-v0", {"seat": 2}, "no seat 2"),
        ("Nim-v0", {"opponent": "clever"}, "'random' or a function"),
        ("TruthAndDeception-v0", {}, "expected a function"),
        ("TwentyQuestions-v0", {}, "does not run here .*API"),
        ("ScorableGames-v0", {}, "cannot be played here by one or two: .*directory not found"),
    ],
)
def test_a_mistake_in_the_settings_says_the_cure(game, options, words, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=words):
        TextArenaEnvironment(game, **options)


@pytest.fixture
def registered():
    """Registers a game class with TextArena under a name, for one test."""
    from textarena.envs.registration import ENV_REGISTRY, register

    names = []

    def add(name, game_class):
        register(name, game_class)
        names.append(name)

    yield add
    for name in names:
        del ENV_REGISTRY[name]


def test_a_users_own_game_is_played_without_being_in_the_table(registered):
    from textarena.envs.Nim.env import NimEnv
    from textarena.envs.Secretary.env import SecretaryEnv
    from textarena.envs.ThreePlayerTicTacToe.env import ThreePlayerTicTacToeEnv

    registered("MyChoice-v0", SecretaryEnv)
    registered("MyNim-v0", lambda: NimEnv([1, 1]))
    registered("Crowd-v0", ThreePlayerTicTacToeEnv)
    choice = TextArenaEnvironment("MyChoice-v0")
    assert play_episode(choice, random_player(0), seed=0).status is EpisodeStatus.DONE
    nim = TextArenaEnvironment("MyNim-v0", opponent=lambda *_: "[1 1]")
    assert play_episode(nim, lambda *_: "[0 1]").infos[-1]["outcome"] == "loss"
    with pytest.raises(ConfigError, match="cannot be played here by one or two"):
        TextArenaEnvironment("Crowd-v0")
