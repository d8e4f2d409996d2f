"""Which of TextArena's games are played and how they are set up, and what a mistake is told."""

import pytest

from turnwise import (
    ConfigError,
    EpisodeStatus,
    TextArenaEnvironment,
    make_environment,
    play_episode,
    random_player,
)

pytest.importorskip("textarena")


def test_settings_may_come_from_the_config():
    env = make_environment("textarena:GuessTheNumber-v0", {"max_number": 3})
    assert "between 1 and 3" in env.reset()
    assert (
        make_environment("textarena:TicTacToe-v0", {"seat": 1})
        .reset()
        .startswith("You are Player 1")
    )


@pytest.mark.parametrize(
    ("game", "options", "words"),
    [
        ("TicTacTo-v0", {}, "Did you mean 'TicTacToe-v0'"),
        ("Nim-v0", {"colour": 3}, "does not take the options .*colour"),
        ("Nim-v0", {"seat": 2}, "no seat 2"),
        ("Nim-v0", {"opponent": "clever"}, "'random' or a function"),
        ("TruthAndDeception-v0", {}, "no random opponent .*opponent=function"),
        ("TwentyQuestions-v0", {}, "language model over the network"),
        ("ScorableGames-v0", {}, "ScorableGames-v0 does not run here: .*directory not found"),
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


def test_a_game_that_needs_word_lists_names_the_command_that_fetches_them(registered):
    def game():
        raise LookupError("Resource words not found. Please use the NLTK Downloader")

    registered("Needy-v0", game)
    with pytest.raises(ConfigError, match=r"python -m nltk\.downloader words"):
        TextArenaEnvironment("Needy-v0")


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
    with pytest.raises(ConfigError, match="three players or more"):
        TextArenaEnvironment("Crowd-v0")
