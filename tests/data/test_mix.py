"""Which environment of a mix each group is played in: exact shares, and nothing but the seed."""

from hypothesis import given, settings, strategies as st

from turnwise.data import parts_for_step

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)


@settings(deadline=None, max_examples=20)
@given(WEIGHTS, st.integers(1, 9), st.integers(0, 2**63))
def test_after_any_number_of_groups_each_part_had_its_share(weights, num_groups, seed):
    had = [0] * len(weights)
    for step in range(12):
        drawn = parts_for_step(weights, step, num_groups, seed)
        assert len(drawn) == num_groups
        for draw in drawn:
            assert draw.number == had[draw.part]  # no place in a dataset twice, none left out
            had[draw.part] += 1
            for number, weight in zip(had, weights, strict=True):
                share = weight / sum(weights)
                assert abs(number - sum(had) * share) <= 1 + share * len(weights) + 1e-6


@settings(deadline=None, max_examples=20)
@given(WEIGHTS, st.integers(1, 9), st.integers(0, 10**9), st.integers(0, 2**63))
def test_a_step_follows_from_the_seed_and_its_number_alone(weights, num_groups, step, seed):
    drawn = parts_for_step(weights, step, num_groups, seed)
    assert drawn == parts_for_step(weights, step, num_groups, seed)
    # The groups of a run are the same, however many of them a step has.
    place = step * num_groups
    assert drawn[0] == parts_for_step(weights, place, 1, seed)[0]
    assert drawn[-1] == parts_for_step(weights, place + num_groups - 1, 1, seed)[0]


def test_weights_that_divide_the_step_give_each_part_the_same_number_in_every_step():
    for step in range(20):
        parts = [draw.part for draw in parts_for_step([2, 1, 1], step, 8, seed=3)]
        assert [parts.count(part) for part in range(3)] == [4, 2, 2]


def test_another_seed_is_another_order():
    orders = {tuple(parts_for_step([3, 2], 0, 6, seed)) for seed in range(20)}
    assert len(orders) > 1
