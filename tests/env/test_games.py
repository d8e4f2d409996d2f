"""What every built-in game promises: bounds, seeds, valid actions, text that never breaks it."""

import copy
import random

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import make_environment
from turnwise.env.checker import check_env
from turnwise.env.games.alphabet_sort import AlphabetSortEnvironment
from turnwise.env.games.custom import CustomGameEnvironment
from turnwise.env.games.grid_world import GridWorldEnvironment
from turnwise.env.games.guess_number import GuessNumberEnvironment
from turnwise.env.games.simple import SimpleGameEnvironment
from turnwise.env.players import expert_player, lacks_player, play_episode, random_player
from turnwise.errors import ConfigError

GAMES = {
    "guess-number": GuessNumberEnvironment,
    "grid-world": GridWorldEnvironment,
    "alphabet-sort": AlphabetSortEnvironment,
    "simple-game": SimpleGameEnvironment,
    "custom-game": CustomGameEnvironment,
}
RANDOM_SUCCESS = {
    "guess-number": (0.0, 0.05),
    "grid-world": (0.0, 0.05),
    "alphabet-sort": (0.0, 0.01),
    "simple-game": (0.1, 0.3),
    # "complete quest" is open at any time, so here the bounds differ in reward, not in success.
    "custom-game": (0.6, 0.9),
}
NUM_EPISODES = 60

every_game = pytest.mark.parametrize("name", GAMES)
every_random_game = pytest.mark.parametrize(
    "name", [name for name in GAMES if name != "custom-game"]
)

WORDS = """up down left right 512 -3 1e9 0.5 higher take attack sword torch with the move north
pick potion complete quest enemy Adam Zoe Boris,"""
some_words = st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join)
any_text = st.one_of(st.text(max_size=60), some_words)


def play(env: BaseEnvironment, seed: int, actions: list[str]) -> list[object]:
    """All that can be seen of an episode with these actions."""
    env.seed(seed)
    seen: list[object] = [env.reset(), env.get_state_description()]
    for action in actions:
        seen += [*env.step(action), env.get_state_description(), env.is_done()]
    return seen


@every_game
def test_the_checker_finds_nothing(name: str) -> None:
    assert type(make_environment(name)) is GAMES[name]
    assert check_env(name).findings == []


@every_game
def test_the_expert_succeeds(name: str) -> None:
    env = GAMES[name]()
    num_successes = 0
    for seed in range(NUM_EPISODES):
        episode = play_episode(env, expert_player, seed)
        assert episode.error is None
        assert not any("invalid_action" in info for info in episode.infos)
        num_successes += episode.success
    # The number game has one secret in 1024 that no strategy finds in time.
    assert num_successes >= NUM_EPISODES - (name == "guess-number")


@every_game
def test_the_random_player_plays_validly_and_seldom_succeeds(name: str) -> None:
    env = GAMES[name]()
    player = random_player(0)
    num_successes = 0
    for seed in range(NUM_EPISODES):
        episode = play_episode(env, player, seed)
        assert episode.error is None
        assert not any("invalid_action" in info for info in episode.infos)
        num_successes += episode.success
    least, most = RANDOM_SUCCESS[name]
    assert least <= num_successes / NUM_EPISODES <= most


@every_random_game
def test_unseeded_copies_do_not_play_the_same_episode(name: str) -> None:
    env = GAMES[name]()
    copies = [env.spawn() for _ in range(20)]
    assert len({tuple(play_episode(each, expert_player).observations) for each in copies}) > 1


@every_game
def test_nonsense_is_an_invalid_action_that_costs_a_step(name: str) -> None:
    env = GAMES[name]()
    env.seed(3)
    env.reset()
    observation, reward, done, info = env.step("I have no idea...")
    assert info["invalid_action"] is True
    assert reward <= 0.0
    assert not done
    assert env.step_count == 1
    assert observation


@every_game
@settings(deadline=None, max_examples=25)
@given(texts=st.lists(any_text, max_size=12), seed=st.integers(0, 99))
def test_no_text_breaks_a_game(name: str, texts: list[str], seed: int) -> None:
    env = GAMES[name]()
    env.seed(seed)
    env.reset()
    for text in texts:
        was_over = env.is_done()
        observation, _, done, info = env.step(text)
        assert isinstance(observation, str)
        assert done or not was_over
        assert set(info) <= {"success", "invalid_action"}
        if not env.is_done():
            *_, info = copy.deepcopy(env).step(env.expert_action())
            assert "invalid_action" not in info


@every_game
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 99),
    before=st.sampled_from(["", "  ", "I choose: ", "Let me think.\n", "**", '"']),
    after=st.sampled_from(["", ".", "!\n", "**", '"', " please"]),
    shout=st.booleans(),
)
def test_case_and_prose_around_an_action_do_not_matter(
    name: str, seed: int, before: str, after: str, shout: bool
) -> None:
    plain, dressed = GAMES[name](), GAMES[name]()
    rng = random.Random(seed)
    plain.seed(seed)
    action = plain.reset() and plain.sample_action(rng)
    spoken = f"{before}{action.upper() if shout else action}{after}"
    assert play(plain, seed, [action]) == play(dressed, seed, [spoken])


@pytest.mark.parametrize(
    ("game", "params", "words"),
    [
        (GuessNumberEnvironment, {"hihg": 7}, "Did you mean 'high'"),
        (GuessNumberEnvironment, {"low": 5, "high": 5}, "low=5, high=5"),
        (GuessNumberEnvironment, {"high": 10**18}, "at most 18 digits"),
        (GuessNumberEnvironment, {"shaping": -1.0}, "got -1.0"),
        (GuessNumberEnvironment, {"shaping": float("nan")}, "got nan"),
        (GridWorldEnvironment, {"size": "big"}, "expected int"),
        (GridWorldEnvironment, {"size": True}, "expected int"),
        (GridWorldEnvironment, {"size": 1}, "from 2 to 20"),
        (GridWorldEnvironment, {"pits": 1}, "below 1"),
        (AlphabetSortEnvironment, {"num_names": 0}, "at least 1"),
        (AlphabetSortEnvironment, {"num_turns": -1, "num_names": -1}, "at least 1"),
        (AlphabetSortEnvironment, {"num_names": 1000}, "at most"),
    ],
)
def test_a_bad_parameter_is_named(
    game: type[BaseEnvironment], params: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        game(params)


def test_which_players_an_environment_has():
    assert not lacks_player("guess-number", "expert")
    assert lacks_player("prompts", "random")
