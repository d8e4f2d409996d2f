"""The grid world: every map can be solved, moves do what they say, the expert knows the way."""

from hypothesis import given, settings, strategies as st

from turnwise.env.games.grid_world import GridWorldEnvironment
from turnwise.env.players import expert_player, play_episode

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def shortest_path(map_text: str) -> int | None:
    """Breadth-first search on the drawn map: moves from A to G, None if there is no way."""
    rows = map_text.splitlines()
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    layer = {cell for cell, symbol in cells.items() if symbol == "A"}
    seen, distance = set(layer), 0
    while layer:
        if any(cells[cell] == "G" for cell in layer):
            return distance
        layer = {(r + dr, c + dc) for r, c in layer for dr, dc in STEPS}
        layer = {cell for cell in layer if cells.get(cell, "O") != "O"} - seen
        seen |= layer
        distance += 1
    return None


def on_map(*pits: tuple[int, int], size: int = 3) -> GridWorldEnvironment:
    """A game on a map with these very pits."""
    env = GridWorldEnvironment({"size": size, "pits": 0.0})
    env.reset()
    env.pits = frozenset(pits)
    return env


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0, 0.99))
def test_every_map_can_be_solved_in_time(seed: int, size: int, pits: float) -> None:
    env = GridWorldEnvironment({"size": size, "pits": pits})
    env.seed(seed)
    distance = shortest_path(env.reset())
    assert distance is not None
    assert distance <= env.max_steps


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 7), st.floats(0, 0.7))
def test_the_expert_takes_a_shortest_path(seed: int, size: int, pits: float) -> None:
    env = GridWorldEnvironment({"size": size, "pits": pits})
    episode = play_episode(env, expert_player, seed)
    assert episode.success
    assert episode.num_turns == shortest_path(episode.prompts[1])


def test_moves_walls_and_drawing() -> None:
    env = on_map((1, 1))
    assert env.get_state_description() == "A..\n.O.\n..G"
    assert env.step("right") == (".A.\n.O.\n..G", 0.0, False, {})
    assert env.step("up") == (".A.\n.O.\n..G", 0.0, False, {})
    assert env.step("left")[0] == env.step("left")[0] == "A..\n.O.\n..G"
    assert env.step("down")[0] == "...\nAO.\n..G"


def test_a_pit_ends_the_game() -> None:
    env = on_map((1, 0))
    assert env.step("down") == ("You fell into a pit.", 0.0, True, {"success": False})
    assert env.get_state_description() == "...\nX..\n..G"
    assert env.expert_action() is None


def test_slippery_ground_turns_moves_aside_and_never_back() -> None:
    env = GridWorldEnvironment({"pits": 0.0, "slippery": True})
    env.seed(0)
    ends = set()
    for _ in range(60):
        env.reset()
        env.position = (1, 1)
        env.step("down")
        ends.add(env.position)
    assert ends == {(2, 1), (1, 0), (1, 2)}
