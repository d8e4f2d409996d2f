"""Sampler against learner: the gap and the weights."""

import pytest
import torch

from algo.batches import assert_close
from turnwise.algo import compute_importance_weights, measure_log_prob_gap
from turnwise.errors import ConfigError


def test_a_huge_ratio_stays_finite():
    sampler, learner = torch.tensor([[-900.0, -1.0]]), torch.tensor([[-1.0, -900.0]])
    mask = torch.ones(1, 2)
    weights, metrics = compute_importance_weights(sampler, learner, mask)
    assert_close(weights, [[2.0, 0.0]])
    assert all(torch.isfinite(x) for x in metrics.values())
    assert torch.isfinite(measure_log_prob_gap(sampler, learner, mask)["gap_kl"])


@pytest.mark.parametrize("bounds", [0.0, -1.0, (2.0, 1.0), (0.0, 2.0), (-1.0, 2.0)])
def test_bounds_that_make_no_sense_are_named(bounds):
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="bounds got"):
        compute_importance_weights(x, x, x, bounds=bounds)


def test_a_level_that_does_not_exist_is_named():
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="level got 'row'"):
        compute_importance_weights(x, x, x, level="row")
