"""The sorting game: what is read as an answer, and what it is worth."""

from hypothesis import given, settings, strategies as st

from turnwise.env.games.alphabet_sort import (
    NAMES,
    AlphabetSortEnvironment,
    read_names,
    similarity,
)

some_names = st.lists(st.sampled_from(NAMES), unique=True, max_size=9)


def names_in(observation: str) -> list[str]:
    return observation.rpartition(": ")[2].split(", ")


def test_each_turn_adds_names_to_the_list() -> None:
    env = AlphabetSortEnvironment()
    env.seed(7)
    known = names_in(env.reset())
    assert len(known) == 3
    for turn in (1, 2):
        observation, reward, done, info = env.step(", ".join(sorted(known)))
        assert (reward, done, info) == (1.0, False, {})
        assert observation.startswith("Right. Add: ")
        known += names_in(observation)
        assert len(set(known)) == 3 * (turn + 1)
    assert env.step(", ".join(sorted(known))) == ("Right.", 1.0, True, {"success": True})


@settings(deadline=None, max_examples=60)
@given(some_names, st.sampled_from([", ", "\n", " < ", "\n- ", " and then "]))
def test_names_are_read_in_any_layout(names: list[str], separator: str) -> None:
    assert read_names(f"Sorted: {separator.join(names).upper()}.") == names


def test_missing_and_surplus_names_cost() -> None:
    assert similarity(["Adam"], ["Adam", "Zoe"]) == 0.5
    assert similarity(["Adam", "Boris", "Clara", "Zoe"], ["Adam", "Boris"]) == 0.5
    assert similarity(["Zoe", "Adam"], ["Adam", "Zoe"]) == 0.0
    assert similarity([], ["Adam"]) == 0.0
