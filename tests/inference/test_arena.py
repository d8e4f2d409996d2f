"""Memory that is handed out in regions: none overlap, and all of it comes back."""

from itertools import pairwise

import torch
from hypothesis import given, settings, strategies as st

from turnwise.inference.local.arena import Arena

UNIT = Arena.UNIT


def make_arena(num_units, first_units=None):
    """One that grows, if it begins with fewer units."""
    first = min(first_units or num_units, num_units)
    return Arena(
        first * UNIT, 1, 1, 1, torch.float32, torch.device("cpu"), most_tokens=num_units * UNIT
    )


@settings(max_examples=200, deadline=None)
@given(
    num_units=st.integers(1, 40),
    first_units=st.integers(1, 40),
    orders=st.lists(st.tuples(st.booleans(), st.integers(1, 12 * UNIT)), max_size=60),
)
def test_regions_never_overlap_and_all_memory_comes_back(num_units, first_units, orders):
    arena = make_arena(num_units, first_units)
    largest = arena.largest
    held: list[int] = []
    for gives_back, number in orders:
        if gives_back and held:
            arena.give_back(held.pop(number % len(held)))
        elif (start := arena.take(number)) is not None:
            assert arena.capacity(start) >= number
            held.append(start)
        spans = sorted((start, start + arena.capacity(start)) for start in held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert not spans or spans[-1][1] <= arena.num_tokens
        assert arena.num_taken == sum(end - start for start, end in spans)
        assert arena.num_tokens <= num_units * UNIT
    for start in held:
        arena.give_back(start)
    assert arena.num_taken == 0
    assert arena.take(largest) is not None


@given(
    num_units=st.integers(1, 40),
    first_units=st.integers(1, 40),
    number=st.integers(1, 50 * UNIT),
)
def test_what_can_ever_fit_fits_into_an_empty_arena(num_units, first_units, number):
    arena = make_arena(num_units, first_units)
    assert (arena.take(number) is not None) == (number <= arena.largest)


def test_a_copy_moves_all_layers():
    arena = Arena(4 * UNIT, 3, 2, 5, torch.float32, torch.device("cpu"))
    first, second = arena.take(UNIT), arena.take(UNIT)
    arena.storage[:, :, first : first + 7] = torch.randn(2, 3, 7, 2, 5)
    arena.copy(first, second, 7)
    assert torch.equal(
        arena.storage[:, :, second : second + 7], arena.storage[:, :, first : first + 7]
    )
    assert not arena.storage[:, :, second + 7 : second + UNIT].any()


def test_an_arena_that_grows_keeps_what_it_holds():
    arena = Arena(2 * UNIT, 3, 2, 5, torch.float32, torch.device("cpu"), most_tokens=16 * UNIT)
    first = arena.take(UNIT)
    arena.storage[:, :, first : first + UNIT] = torch.randn(2, 3, UNIT, 2, 5)
    before = arena.storage[:, :, first : first + UNIT].clone()
    assert arena.take(6 * UNIT) is not None
    assert arena.num_moves == 3
    assert torch.equal(arena.storage[:, :, first : first + UNIT], before)
    assert torch.equal(torch.stack(list(arena.keys)), arena.storage[0])
