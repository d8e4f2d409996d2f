"""Discounted sums over the tokens that count: any length, any decay."""

import pytest
import torch

from algo.batches import assert_close
from algo.reference import reference_of
from turnwise.algo import discounted_suffix_sum


@pytest.mark.parametrize("decay", [1.0, 0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 1e-4, 1e-8])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_any_length_and_decay_is_accurate(num_rows: int, decay: float) -> None:
    for length in (1, 2, 3, 4, 7, 64, 97, 1009, 5000):
        random = torch.Generator().manual_seed(length)
        x = torch.randn(num_rows, length, generator=random)
        mask = torch.rand(num_rows, length, generator=random) < 0.8
        expected = torch.tensor(
            reference_of("discounted_suffix_sum")(x.double().tolist(), mask.tolist(), decay),
            dtype=torch.float64,
        )
        # Relative to the size of the sums: 5000 undiscounted terms are some 70 times one term.
        size = max(1.0, float(expected.abs().max()))
        assert_close(discounted_suffix_sum(x, mask, decay), expected, 2e-6 * size)
        assert_close(discounted_suffix_sum(x.double(), mask, decay), expected, 1e-11 * size)


def test_the_far_future_does_not_drown_what_is_near() -> None:
    """A huge term that has decayed away leaves the small ones accurate."""
    x = torch.full((1, 200), 0.25)
    x[0, -1] = 1e6
    sums = discounted_suffix_sum(x, torch.ones(1, 200, dtype=torch.bool), 0.5)
    assert_close(sums[0, :150], [0.5] * 150, 1e-6)
