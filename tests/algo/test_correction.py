"""Sampler against learner: the gap, the weights and what is rejected."""

import pytest
import torch

from algo.batches import assert_close, make_batch
from algo.cases import CORRECTIONS, SAMPLED, Case
from turnwise.algo import compute_importance_weights, compute_rejection_mask, measure_log_prob_gap
from turnwise.errors import ConfigError

REJECTIONS = [case for case in CORRECTIONS if case.function == "compute_rejection_mask"]


def test_rejections_leave_out_some_tokens_but_not_all():
    batch = make_batch()
    for case in REJECTIONS:
        accepted, metrics = case.run(batch)
        assert accepted.dtype == torch.bool
        assert not torch.any(accepted & ~batch["response_mask"])
        if case.options["criteria"]:
            assert 0 < metrics["rejected"] < 1


@pytest.mark.parametrize("name", ["token_k1", "seq_sum_k1", "seq_mean_k1"])
@pytest.mark.parametrize("bounds", [(0.9, 3.0), (0.4, 1.1)])
def test_bounds_of_k1_are_on_the_ratio_of_sampler_to_learner(name, bounds):
    batch = make_batch()
    case = Case("compute_rejection_mask", SAMPLED, {"criteria": {name: bounds}})
    assert_close(case.run(batch), case.expected(batch), 1e-5)


def test_a_huge_ratio_stays_finite():
    sampler, learner = torch.tensor([[-900.0, -1.0]]), torch.tensor([[-1.0, -900.0]])
    mask = torch.ones(1, 2)
    weights, metrics = compute_importance_weights(sampler, learner, mask)
    assert_close(weights, [[2.0, 0.0]])
    assert all(torch.isfinite(x) for x in metrics.values())
    assert torch.isfinite(measure_log_prob_gap(sampler, learner, mask)["gap_kl"])
    kept, _ = compute_rejection_mask(sampler, learner, mask, {"token_k3": 1.0})
    assert not torch.any(kept)


@pytest.mark.parametrize("bounds", [0.0, -1.0, (2.0, 1.0), (0.0, 2.0), (-1.0, 2.0)])
def test_bounds_that_make_no_sense_are_named(bounds):
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="bounds got"):
        compute_importance_weights(x, x, x, bounds=bounds)
    with pytest.raises(ConfigError, match="bounds got"):
        compute_rejection_mask(x, x, x, {"token_k1": bounds})


def test_names_that_do_not_exist_are_named_with_the_nearest():
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="Did you mean 'seq_mean_k3'"):
        compute_rejection_mask(x, x, x, {"seq_means_k3": 1.0})
    with pytest.raises(ConfigError, match="there is no rejection 'seq_max_k1'"):
        compute_rejection_mask(x, x, x, {"seq_max_k1": 1.0})
    with pytest.raises(ConfigError, match="takes one upper bound"):
        compute_rejection_mask(x, x, x, {"token_k2": (0.1, 1.0)})
    with pytest.raises(ConfigError, match="level got 'row'"):
        compute_importance_weights(x, x, x, level="row")
