"""Which rows and which environments of a mix come when: laws for every size, seed and step."""

import pytest
from hypothesis import given, settings, strategies as st

from turnwise import ConfigError
from turnwise.data import epoch_order, parts_for_step, rows_for_step

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**63 - 1)
few = st.integers(0, 30)


@given(sizes, few, seeds)
def test_an_epoch_has_every_row_once(num_rows, epoch, seed):
    order = epoch_order(num_rows, epoch, seed)
    assert sorted(order) == list(range(num_rows))
    assert order == epoch_order(num_rows, epoch, seed)
    assert epoch_order(num_rows, epoch, seed, shuffle=False) == list(range(num_rows))


@given(sizes, st.integers(1, 100), st.integers(0, 20), seeds, st.booleans())
def test_batches_are_the_epochs_one_after_the_other(num_rows, batch_size, num_steps, seed, shuffle):
    steps = [rows_for_step(num_rows, s, batch_size, seed, shuffle) for s in range(num_steps)]
    assert all(len(rows) == batch_size for rows in steps)
    taken = [row for rows in steps for row in rows]
    num_epochs = -(-len(taken) // num_rows)
    orders = [epoch_order(num_rows, epoch, seed, shuffle) for epoch in range(num_epochs)]
    assert taken == [row for order in orders for row in order][: len(taken)]


def test_epochs_and_seeds_differ():
    orders = {tuple(epoch_order(50, epoch, seed)) for epoch in range(5) for seed in range(5)}
    assert len(orders) == 25


def test_the_order_is_part_of_what_a_run_relies_on():
    assert epoch_order(8, epoch=0, seed=0) == [5, 2, 0, 3, 4, 1, 7, 6]
    assert rows_for_step(8, step=1, batch_size=6, seed=0)[:2] == [7, 6]


@pytest.mark.parametrize(("num_rows", "step", "batch_size"), [(0, 0, 1), (3, -1, 1), (3, 0, 0)])
def test_what_cannot_be_is_refused(num_rows, step, batch_size):
    with pytest.raises(ConfigError, match="expected at least"):
        rows_for_step(num_rows, step, batch_size, seed=0)


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
