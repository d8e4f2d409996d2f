"""Memory that is handed out in regions: none overlap, and all of it comes back."""

from itertools import pairwise

import torch
from hypothesis import given, settings, strategies as st

from turnwise.inference.local.kv_cache import KVCache

UNIT = KVCache.UNIT


def make_arena(num_units, first_units=None):
    """One that grows, if it begins with fewer units."""
    first = min(first_units or num_units, num_units)
    return KVCache(
        first * UNIT, 1, 1, 1, torch.float32, torch.device("cpu"), max_tokens=num_units * UNIT
    )


@settings(max_examples=200, deadline=None)
@given(
    num_units=st.integers(1, 40),
    first_units=st.integers(1, 40),
    orders=st.lists(st.tuples(st.booleans(), st.integers(1, 12 * UNIT)), max_size=60),
)
def test_regions_never_overlap_and_all_memory_comes_back(num_units, first_units, orders):
    kv_cache = make_arena(num_units, first_units)
    largest = kv_cache.largest
    held: list[int] = []
    for gives_back, number in orders:
        if gives_back and held:
            kv_cache.free(held.pop(number % len(held)))
        elif (start := kv_cache.alloc(number)) is not None:
            assert kv_cache.capacity(start) >= number
            held.append(start)
        spans = sorted((start, start + kv_cache.capacity(start)) for start in held)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert not spans or spans[-1][1] <= kv_cache.num_tokens
        assert kv_cache.num_allocated == sum(end - start for start, end in spans)
        assert kv_cache.num_tokens <= num_units * UNIT
    for start in held:
        kv_cache.free(start)
    assert kv_cache.num_allocated == 0
    assert kv_cache.alloc(largest) is not None


def test_a_cache_that_grows_keeps_what_it_holds():
    kv_cache = KVCache(2 * UNIT, 3, 2, 5, torch.float32, torch.device("cpu"), max_tokens=16 * UNIT)
    first = kv_cache.alloc(UNIT)
    kv_cache.storage[:, :, first : first + UNIT] = torch.randn(2, 3, UNIT, 2, 5)
    before = kv_cache.storage[:, :, first : first + UNIT].clone()
    assert kv_cache.alloc(6 * UNIT) is not None
    assert kv_cache.num_moves == 3
    assert torch.equal(kv_cache.storage[:, :, first : first + UNIT], before)
    assert torch.equal(torch.stack(list(kv_cache.keys)), kv_cache.storage[0])
