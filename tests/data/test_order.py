"""Which rows come when: laws that hold for every size, seed and step."""

import pytest
from hypothesis import given, strategies as st

from turnwise import ConfigError
from turnwise.data import epoch_order, rows_for_step

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
