"""The critic's loss: values and gradients against slow references."""

import pytest
import torch

from algo.batches import assert_close, make_batch
from algo.cases import VALUE_LOSSES, Case, each
from turnwise.algo import explained_variance

SMALL_MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]).bool()


@each(VALUE_LOSSES)
def test_gradient_equals_the_references_differences(case: Case) -> None:
    batch = make_batch(seed=2, mask=SMALL_MASK, dtype=torch.float64)
    assert_close(case.gradient(batch), case.slopes(batch), 1e-7)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 10, 33, 100])
@pytest.mark.parametrize("constant", [0.0, 0.1, -1.0, 1e4 / 3])
def test_returns_that_do_not_vary_have_no_variance_to_explain(
    num_tokens: int, constant: float
) -> None:
    returns = torch.full((1, num_tokens), constant)
    values = torch.randn(1, num_tokens, generator=torch.Generator().manual_seed(1))
    assert explained_variance(values, returns, torch.ones(1, num_tokens)) == 0.0
