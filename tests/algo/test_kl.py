"""KL estimates, the penalty on rewards and its controller."""

import math

import pytest
import torch

from algo.batches import assert_close, assert_same, make_batch
from algo.reference import kl_coefficients, reference_of
from turnwise import compute_kl_penalty
from turnwise.algo import KLController, estimate_kl
from turnwise.errors import ConfigError

KINDS = ["k1", "k2", "k3", "abs"]
SLOPES = {
    "k1": lambda d: 1.0,
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
    "abs": lambda d: math.copysign(1.0, d),
}


@pytest.mark.parametrize("kind", [*KINDS, *(f"{kind}+" for kind in KINDS)])
def test_estimates_equal_the_reference(kind):
    batch = make_batch()
    ours, theirs = batch["log_probs"], batch["ref_log_probs"]
    expected = reference_of("estimate_kl")(ours.double().tolist(), theirs.double().tolist(), kind)
    assert_close(estimate_kl(ours, theirs, kind), expected, 1e-5)
    assert_close(estimate_kl(ours.double(), theirs.double(), kind), expected, 1e-10)
    assert_same(compute_kl_penalty(ours, theirs, kind), estimate_kl(ours, theirs, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_an_estimate_is_its_own_and_with_a_plus_that_of_k2(kind):
    batch = make_batch(dtype=torch.float64)
    theirs = batch["ref_log_probs"]
    differences = (batch["log_probs"] - theirs).tolist()
    for name, slope in ((kind, SLOPES[kind]), (f"{kind}+", SLOPES["k2"])):
        ours = batch["log_probs"].clone().requires_grad_()
        estimate_kl(ours, theirs, name).sum().backward()
        assert_close(ours.grad, [[slope(d) for d in row] for row in differences], 1e-10)


def test_k3_is_bounded_where_the_reference_finds_a_token_impossible():
    impossible = torch.tensor([[-500.0, -math.inf]])
    assert_close(estimate_kl(torch.zeros(1, 2), impossible, "k3"), [[10.0, 10.0]])
    assert_close(estimate_kl(impossible, torch.zeros(1, 2), "k3"), [[10.0, 10.0]])


def test_an_unknown_estimate_is_named_with_the_nearest():
    x = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match="there is no KL estimate 'k4'"):
        estimate_kl(x, x, "k4")
    with pytest.raises(ConfigError, match="Did you mean 'abs"):
        estimate_kl(x, x, "abss")


def test_an_adaptive_controller_equals_the_reference():
    controller = KLController(0.2, target_kl=6.0, adaptive=True, horizon=1000)
    measured = [(6.0, 64), (6.5, 64), (60.0, 128), (0.0, 32), (5.9, 7), (7.1, 500)]
    said = [controller.update(torch.tensor(kl), n) for kl, n in measured]
    assert said == pytest.approx(kl_coefficients(0.2, 6.0, 1000, measured), abs=1e-7)
    assert controller.value == said[-1]


def test_a_controller_resumes_from_its_state():
    controller = KLController(0.2, 6.0, adaptive=True)
    controller.update(9.0, 100)
    resumed = KLController(0.2, 6.0, adaptive=True)
    resumed.load_state_dict(controller.state_dict())
    assert resumed.update(3.0, 50) == controller.update(3.0, 50)


@pytest.mark.parametrize(("target", "horizon"), [(None, 100), (0.0, 100), (1.0, 0)])
def test_a_controller_that_cannot_work_is_refused(target, horizon):
    with pytest.raises(ConfigError, match="an adaptive KLController got"):
        KLController(0.1, target, adaptive=True, horizon=horizon)
