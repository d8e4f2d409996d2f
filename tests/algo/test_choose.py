"""Choosing an algorithm: by name, or as a function; and giving it what it asks for."""

from typing import Any

import pytest

from algo.batches import assert_same, make_batch
from algo.cases import ADVANTAGES, ALL, TURN_ADVANTAGES
from algo.reference import reference_of
from turnwise import algo
from turnwise.algo import (
    ADVANTAGE_ESTIMATORS,
    compute_advantages,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.errors import ConfigError


def full_batch() -> dict[str, Any]:
    return make_batch() | {"gamma": 0.9, "lam": 0.8}


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_every_estimator_is_found_by_name_and_equals_its_reference(name: str) -> None:
    estimator = get_advantage_estimator(name)
    assert estimator is ADVANTAGE_ESTIMATORS[name]
    assert estimator.name in {case.function for case in (*ADVANTAGES, *TURN_ADVANTAGES)}
    batch = full_batch()
    case = next(c for c in (*ADVANTAGES, *TURN_ADVANTAGES) if c.function == estimator.name)
    wanted = [*case.takes.split(), "gamma", "lam"]
    given = {field: value for field, value in batch.items() if field in wanted}
    result = compute_advantages(name, given | {"something else": object()})
    assert_same(result, compute_advantages(estimator, given))
    assert all(x.shape == batch["response_mask"].shape for x in result)


def test_everything_public_is_compared_with_a_reference() -> None:
    tested_otherwise = {
        "ADVANTAGE_ESTIMATORS",
        "POLICY_LOSSES",
        "AdvantageEstimator",
        "Algorithm",
        "PolicyLoss",
        "TokenSelection",
        "BatchTotals",
        "KLController",
        "compute_advantages",
        "get_advantage_estimator",
        "get_policy_loss",
    }
    without_mask = {"compute_kl_penalty", "estimate_advantages", "estimate_kl"}
    for name in without_mask:
        assert callable(reference_of(name))
    compared = {case.function for case in ALL}
    assert set(algo.__all__) == compared | without_mask | tested_otherwise


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"estimator 'grpoo'\. Did you mean 'grpo'"):
        get_advantage_estimator("grpoo")
    with pytest.raises(ConfigError, match=r"policy loss 'gsp'\. Did you mean 'gspo'"):
        get_policy_loss("gsp")
    with pytest.raises(ConfigError, match=r"Known: .*turn_grpo"):
        compute_advantages("xyzzy", {})
