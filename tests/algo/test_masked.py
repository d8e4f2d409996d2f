"""How token losses become one number, means, and discounted sums, over the tokens that count."""

import pytest
import torch

from algo.batches import assert_close
from algo.cases import AGGREGATIONS
from algo.reference import reference_of
from turnwise.algo import BatchTotals, aggregate_loss, discounted_suffix_sum, masked_mean
from turnwise.errors import ConfigError

# Two rows of losses 1, 2, 3 and 5; the third row has no token.
LOSSES = torch.tensor([[1.0, 2.0, 3.0, 9.0], [9.0, 9.0, 5.0, 9.0], [9.0, 9.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 11 / 4),
        ("token-sum", 11.0),
        ("seq-mean-token-sum", 11 / 2),
        ("seq-mean-token-sum-norm", 11 / 8),
        ("seq-mean-token-mean", 7 / 2),
    ],
)
def test_modes_by_hand(mode: str, expected: float) -> None:
    assert_close(aggregate_loss(LOSSES, MASK, mode), expected, 1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 11 / 100),
        ("token-sum", 11.0),
        ("seq-mean-token-sum", 11 / 10),
        ("seq-mean-token-sum-norm", 11 / 500),
        ("seq-mean-token-mean", 7 / 10),
    ],
)
def test_totals_take_the_place_of_what_is_counted(mode: str, expected: float) -> None:
    totals = BatchTotals(num_tokens=100, num_sequences=10, horizon=50)
    assert_close(aggregate_loss(LOSSES, MASK, mode, totals), expected, 1e-6)


def test_totals_that_are_not_given_are_counted() -> None:
    for mode in AGGREGATIONS:
        counted = aggregate_loss(LOSSES, MASK, mode, BatchTotals())
        assert torch.equal(counted, aggregate_loss(LOSSES, MASK, mode))
    half = aggregate_loss(LOSSES, MASK, "seq-mean-token-sum-norm", BatchTotals(horizon=8))
    assert_close(half, 11 / 16, 1e-6)


def test_the_mean_of_nothing_is_zero() -> None:
    nothing = torch.zeros(2, 3)
    assert masked_mean(torch.full((2, 3), float("nan")), nothing) == 0
    for mode in AGGREGATIONS:
        assert aggregate_loss(torch.full((2, 3), float("inf")), nothing, mode) == 0


def test_an_unknown_mode_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'seq-mean-token-sum'"):
        aggregate_loss(LOSSES, MASK, "seq-mean-token-sums")


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


@pytest.mark.parametrize("decay", [1e-30, 1e-38, 1e-46, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_decay_close_to_nothing_leaves_the_terms_as_they_are(
    decay: float, dtype: torch.dtype
) -> None:
    x = torch.tensor([[9.0, -2.0, 5.0], [1.0, 2.0, 3.0]], dtype=dtype)
    assert_close(discounted_suffix_sum(x, torch.ones(2, 3), decay), x, 1e-6)


def test_the_far_future_does_not_drown_what_is_near() -> None:
    """A huge term that has decayed away leaves the small ones accurate."""
    x = torch.full((1, 200), 0.25)
    x[0, -1] = 1e6
    sums = discounted_suffix_sum(x, torch.ones(1, 200, dtype=torch.bool), 0.5)
    assert_close(sums[0, :150], [0.5] * 150, 1e-6)
