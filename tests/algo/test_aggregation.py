"""How token losses become one number, and means over the tokens that count."""

import pytest
import torch

from algo.batches import assert_close, make_batch
from algo.cases import AGGREGATIONS, SUMS, Case, each
from turnwise.algo import BatchTotals, aggregate_loss, masked_mean
from turnwise.errors import ConfigError

AGGREGATED = [case for case in SUMS if case.variable]

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


@each(AGGREGATED)
def test_the_gradient_is_the_weight_of_each_token(case: Case) -> None:
    """Losses are linear in their tokens: the gradient's inner product with them is the loss."""
    batch = make_batch(seed=2)
    gradient = case.gradient(batch)
    mask = batch["response_mask"]
    assert torch.all(gradient[~mask] == 0)
    inner = (gradient.double() * batch[case.variable].double()).sum()
    assert_close(inner, case.expected(batch), 1e-5)
    for i in range(len(mask)):
        assert len(gradient[i][mask[i]].unique()) <= 1


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_parts_with_the_totals_of_the_whole_add_up(mode: str) -> None:
    batch = make_batch(seed=3)
    losses, mask = batch["token_losses"], batch["response_mask"]
    totals = BatchTotals(int(mask.sum()), int(mask.any(1).sum()), mask.shape[1])
    parts = [
        aggregate_loss(losses[rows], mask[rows], mode, totals)
        for rows in (slice(0, 1), slice(1, 5), slice(5, 9))
    ]
    assert_close(sum(parts), aggregate_loss(losses, mask, mode).item(), 1e-5)


def test_the_mean_of_nothing_is_zero() -> None:
    nothing = torch.zeros(2, 3)
    assert masked_mean(torch.full((2, 3), float("nan")), nothing) == 0
    for mode in AGGREGATIONS:
        assert aggregate_loss(torch.full((2, 3), float("inf")), nothing, mode) == 0


def test_an_unknown_mode_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'seq-mean-token-sum'"):
        aggregate_loss(LOSSES, MASK, "seq-mean-token-sums")
