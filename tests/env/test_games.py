"""The built-in games: bounds, seeds, valid actions, text that never breaks them, their rules."""

import copy

import pytest
from hypothesis import given, settings, strategies as st

from turnwise import (
    ConfigError,
    ConfigStore,
    CustomGameEnvironment,
    EpisodeStatus,
    GridWorldEnvironment,
    GuessNumberEnvironment,
    SimpleGameEnvironment,
    check_env,
    expert_player,
    make_environment,
    play_episode,
    random_player,
)

GAMES = {
    "guess-number": GuessNumberEnvironment,
    "grid-world": GridWorldEnvironment,
    "simple-game": SimpleGameEnvironment,
    "custom-game": CustomGameEnvironment,
}
RANDOM_SUCCESS = {
    "guess-number": (0.0, 0.05),
    "grid-world": (0.0, 0.05),
    "simple-game": (0.1, 0.3),
    # "complete quest" is open at any time, so here the bounds differ in reward, not in success.
    "custom-game": (0.6, 0.9),
}
NUM_EPISODES = 60

every_game = pytest.mark.parametrize("name", GAMES)

WORDS = """up down left right 512 -3 1e9 0.5 higher take attack sword torch with the move north
pick potion complete quest enemy"""
some_words = st.lists(st.sampled_from(WORDS.split()), max_size=8).map(" ".join)
any_text = st.one_of(st.text(max_size=60), some_words)


@every_game
def test_the_checker_finds_nothing(name):
    assert type(make_environment(name)) is GAMES[name]
    assert check_env(name).findings == []


@every_game
def test_the_expert_succeeds_and_the_random_player_plays_validly(name):
    env = GAMES[name]()
    player = random_player(0)
    wins = {"expert": 0, "random": 0}
    for seed in range(NUM_EPISODES):
        for who, chosen in (("expert", expert_player), ("random", player)):
            episode = play_episode(env, chosen, seed)
            assert episode.error is None
            assert not any("invalid_action" in info for info in episode.infos)
            wins[who] += episode.success
    # The number game has one secret in 1024 that no strategy finds in time.
    assert wins["expert"] >= NUM_EPISODES - (name == "guess-number")
    least, most = RANDOM_SUCCESS[name]
    assert least <= wins["random"] / NUM_EPISODES <= most


@pytest.mark.parametrize("name", [name for name in GAMES if name != "custom-game"])
def test_unseeded_copies_do_not_play_the_same_episode(name):
    copies = [GAMES[name]().spawn() for _ in range(20)]
    assert len({tuple(play_episode(each, expert_player).observations) for each in copies}) > 1


@every_game
@settings(deadline=None, max_examples=25)
@given(texts=st.lists(any_text, max_size=12), seed=st.integers(0, 99))
def test_no_text_breaks_a_game(name, texts, seed):
    env = GAMES[name]()
    env.seed(seed)
    env.reset()
    for text in ["I have no idea...", *texts]:
        was_over = env.is_done()
        observation, reward, done, info = env.step(text)
        assert isinstance(observation, str)
        assert done or not was_over
        assert set(info) <= {"success", "invalid_action"}
        assert reward <= 0 or "invalid_action" not in info
        if not env.is_done():
            *_, info = copy.deepcopy(env).step(env.expert_action())
            assert "invalid_action" not in info


@pytest.mark.parametrize(
    ("game", "params", "words"),
    [
        (GuessNumberEnvironment, {"hihg": 7}, "Did you mean 'high'"),
        (GuessNumberEnvironment, {"low": 5, "high": 5}, "low=5, high=5"),
        (GuessNumberEnvironment, {"shaping": float("nan")}, "got nan"),
        (GridWorldEnvironment, {"size": True}, "expected int"),
        (GridWorldEnvironment, {"size": 1}, "from 2 to 20"),
        (GridWorldEnvironment, {"pits": 1}, "below 1"),
    ],
)
def test_a_bad_parameter_is_named(game, params, words):
    with pytest.raises(ConfigError, match=words):
        game(params)


def with_secret(secret: int, **params: object) -> GuessNumberEnvironment:
    """A game that hides this very number."""
    env = GuessNumberEnvironment(params)
    env.reset()
    env._secret = secret
    return env


def test_the_hints_lead_to_the_number_and_the_state_tells_only_what_they_told():
    env = with_secret(600)
    assert env.step("700") == ("lower", 0.0, False, {})
    assert env.step("500") == ("higher", 0.0, False, {})
    assert env.step("400") == ("higher", 0.0, False, {})
    assert env.get_state_description() == "The number is from 501 to 699. Guesses left: 7."
    assert env.step("600") == ("correct", 1.0, True, {"success": True})


@pytest.mark.parametrize(
    "text",
    ["  512\n", "Above 100, so I try 512!", "...512", "**512**", "guess=512", "500-512", "0512"],
)
def test_the_last_whole_number_is_the_guess(text):
    assert with_secret(512).step(text)[0] == "correct"


@pytest.mark.parametrize(
    "text",
    ["", "higher", "3.5", "1,000", "12th", "x512", "-512", "1024", "0x10", "5e2", "9" * 5000, "五"],
)
def test_what_is_no_number_of_the_range_is_invalid(text):
    observation, reward, done, info = with_secret(512).step(text)
    assert observation == "Write one number from 0 to 1023."
    assert (reward, done, info) == (0.0, False, {"invalid_action": True})


def shortest_path(map_text: str) -> int | None:
    """Breadth-first search on the drawn map: moves from A to G, None if there is no way."""
    rows = map_text.splitlines()
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    layer = {cell for cell, symbol in cells.items() if symbol == "A"}
    seen, distance = set(layer), 0
    while layer:
        if any(cells[cell] == "G" for cell in layer):
            return distance
        layer = {(r + i, c + j) for r, c in layer for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1))}
        layer = {cell for cell in layer if cells.get(cell, "O") != "O"} - seen
        seen |= layer
        distance += 1
    return None


def on_map(*pits: tuple[int, int]) -> GridWorldEnvironment:
    """A game on a map with these very pits."""
    env = GridWorldEnvironment({"size": 3, "pits": 0.0})
    env.reset()
    env.pit_cells = frozenset(pits)
    return env


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0, 0.99))
def test_every_map_can_be_solved_and_the_expert_takes_a_shortest_path(seed, size, pits):
    env = GridWorldEnvironment({"size": size, "pits": pits})
    episode = play_episode(env, expert_player, seed)
    assert episode.success
    assert episode.num_turns == shortest_path(episode.prompts[1]) <= env.max_steps


def test_moves_walls_and_drawing():
    env = on_map((1, 1))
    assert env.get_state_description() == "A..\n.O.\n..G"
    assert env.step("right") == (".A.\n.O.\n..G", 0.0, False, {})
    assert env.step("up") == (".A.\n.O.\n..G", 0.0, False, {})
    assert env.step("left")[0] == env.step("left")[0] == "A..\n.O.\n..G"
    env = on_map((1, 0))
    assert env.step("down") == ("You fell into a pit.", 0.0, True, {"success": False})
    assert env.get_state_description() == "...\nX..\n..G"
    assert env.expert_action() is None


def room_with(monster: str) -> SimpleGameEnvironment:
    env = SimpleGameEnvironment(ConfigStore().environment)
    env.reset()
    env.monster = monster
    return env


def test_the_right_weapon_wins_the_room():
    env = room_with("troll")
    assert env.step("take sword") == ("You take the sword.", 1.0, False, {})
    assert env.inventory == ["sword"]
    won = ("The troll is defeated. You win!", 5.0, True, {"success": True})
    assert env.step("I take nothing. Attack the troll with my SWORD!") == won
    assert env.score == 6.0


@pytest.mark.parametrize(
    ("before", "action", "observation"),
    [
        ([], "dance", "Write take or attack and a weapon."),
        ([], "take it", "Name the weapon to take."),
        ([], "attack with bow", "You do not hold the bow."),
        (["take bow"], "take bow", "You already hold the bow."),
        (["take bow", "take lamp"], "attack", "Name the weapon to attack with."),
    ],
)
def test_what_cannot_be_done_in_the_room_is_explained(before, action, observation):
    env = room_with("troll")
    for earlier in before:
        env.step(earlier)
    assert env.step(action) == (observation, -0.1, False, {"invalid_action": True})


def test_the_adventure_as_documented():
    env = CustomGameEnvironment({"max_steps": 5})
    assert env.reset() == (
        "Position: (0, 0). Score: 0. Inventory: empty. Enemy: near. Steps remaining: 5."
    )
    assert env.step("move north")[1:] == (0.1, False, {})
    assert env.position == (0, 1)
    assert env.step("pick up sword")[1:] == (0.5, False, {})
    assert env.inventory == ["sword"]
    assert env.step("attack enemy")[1:] == (0.5, False, {})
    assert env.step("sing a song")[1:] == (-0.1, False, {"invalid_action": True})
    observation, *rest = env.step("complete quest")
    assert rest == [10.0, True, {"success": True}]
    assert observation == (
        "Position: (0, 1). Score: 10. Inventory: sword. Enemy: defeated. Steps remaining: 0."
    )
    episode = play_episode(CustomGameEnvironment({"max_steps": 2}), lambda env, seen: "move east")
    assert (episode.dones, episode.infos[-1]) == ([False, True], {"success": False})
    assert episode.status is EpisodeStatus.DONE
