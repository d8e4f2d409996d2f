"""Rounding to half precision by thresholds: against whole numbers, and what a run needs of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from turnwise.models.rounding import round_weight, threshold_key

HALF = [torch.bfloat16, torch.float16]


def murmur(index, key):
    """MurmurHash3's finalizer, on unsigned numbers of 32 bits."""
    x = np.uint32(index) ^ np.uint32(key)
    with np.errstate(over="ignore"):
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x85EBCA6B)
        x ^= x >> np.uint32(13)
        x *= np.uint32(0xC2B2AE35)
        return int(x ^ (x >> np.uint32(16)))


def reference(value, dtype, key, index):
    """floor(|value| / ulp + u) · ulp with exact fractions, u a hash of key and index."""
    from fractions import Fraction

    size = abs(Fraction(value))
    bits, lowest = (7, -126) if dtype == torch.bfloat16 else (10, -14)
    exponent = max(int(np.floor(np.log2(float(size)))) if size else lowest, lowest)
    if size >= Fraction(2) ** (exponent + 1):  # log2 rounded down too far
        exponent += 1
    elif size < Fraction(2) ** exponent and exponent > lowest:
        exponent -= 1
    ulp = Fraction(2) ** (exponent - bits)
    num_bits = 23 - bits
    u = Fraction(murmur(index, key) >> (32 - num_bits), 2**num_bits)
    rounded = float((size / ulp + u) // 1 * ulp)
    return -rounded if value < 0 else rounded


@pytest.mark.parametrize("dtype", HALF)
@settings(max_examples=100, deadline=None)
@given(
    value=st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 2**-24),
    key=st.integers(0, 2**31 - 1),
    first=st.integers(0, 2**32 - 1),
)
def test_it_is_the_floor_of_the_scaled_weight_and_a_threshold(dtype, value, key, first):
    got = round_weight(torch.tensor([value]), dtype, key, first=first)
    assert got.dtype == dtype
    if dtype == torch.float16 and abs(value) < 2**-14:
        # Its bits below 2 ** -37 are rounded to nearest first.
        value = float(np.copysign(np.float32(abs(value)) + np.float32(2**-14), value))
        value -= float(np.copysign(2**-14, value))
    assert float(got[0]) == reference(value, dtype, key, first % 2**32)


@pytest.mark.parametrize("dtype", HALF)
def test_a_number_of_half_precision_stays(dtype):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(dtype)
    every = every[every.isfinite()]
    assert torch.equal(round_weight(every.float(), dtype, 7), every)


@pytest.mark.parametrize("dtype", HALF)
def test_a_small_change_moves_its_share_of_the_weights(dtype):
    ulp = 2.0**-10 if dtype == torch.bfloat16 else 2.0**-13
    for share in (0.001, 0.1, 0.7):
        values = torch.full((400_000,), 0.125 + share * ulp)
        moved = (round_weight(values, dtype, threshold_key("w")) != 0.125).float().mean()
        assert float(moved) == pytest.approx(share, rel=0.1)
    # Down as up, since thresholds are of sizes: −0.125 is its mirror image.
    assert torch.equal(round_weight(-values, dtype, 5), -round_weight(values, dtype, 5))


@pytest.mark.parametrize("dtype", HALF)
def test_shards_and_chunks_are_rounded_as_the_whole(dtype, monkeypatch):
    values = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    whole = round_weight(values, dtype, 11)
    parts = [round_weight(values[a:b], dtype, 11, first=3 * a) for a, b in ((0, 7), (7, 1000))]
    assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setattr("turnwise.models.rounding._CHUNK", 64)
    assert torch.equal(round_weight(values, dtype, 11), whole)
    assert not torch.equal(round_weight(values, dtype, 12), whole)


def test_other_precisions_are_converted():
    values = torch.randn(5)
    assert round_weight(values, torch.float32, 0) is values
    assert round_weight(values.double(), torch.bfloat16, 0).dtype == torch.bfloat16


def test_a_weight_has_one_key_wherever_it_is():
    names = ("model.x.weight", "policy.model.x.weight", "critic.model.x.base_layer.weight")
    assert len({threshold_key(name) for name in names}) == 1
    assert threshold_key("model.y.weight") != threshold_key("model.x.weight")
