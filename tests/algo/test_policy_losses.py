"""Losses: values, gradients and metrics against two references, and what each promises."""

import pytest
import torch

from algo.batches import as_lists, assert_close, assert_same, copied, make_batch
from algo.cases import POLICY_LOSSES, VALUE_LOSSES, WITH_OPTIONS, each, every_mode
from algo.reference_losses import clip_cov_candidates
from turnwise import compute_ppo_loss
from turnwise.algo import (
    POLICY_LOSSES as LOSSES_BY_NAME,
    compute_clip_cov_loss,
    compute_kl_cov_loss,
    compute_policy_loss,
    compute_reinforce_loss,
    explained_variance,
    get_policy_loss,
)
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError

SMALL_MASK = torch.tensor(
    [[1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 1, 1]]
).bool()


@each(WITH_OPTIONS)
def test_every_aggregation_equals_the_reference(case):
    batch = make_batch(seed=3)
    for variant in every_mode(case):
        assert_close(variant.run(batch), variant.expected(batch), 1e-5)


@each(WITH_OPTIONS)
def test_gradient_of_every_aggregation_equals_the_references_differences(case):
    batch = make_batch(seed=5, mask=SMALL_MASK, dtype=torch.float64)
    for variant in every_mode(case):
        assert_close(variant.gradient(batch), variant.slopes(batch), 1e-7)


@pytest.mark.parametrize("name", LOSSES_BY_NAME)
def test_before_the_policy_has_moved_the_gradient_is_that_of_reinforce(name):
    batch = make_batch(seed=8, dtype=torch.float64)
    advantages = batch["advantages"][:, :1].expand_as(batch["advantages"])
    # Clip-Cov takes one token at least, unless the bounds leave none.
    options = {"clip_cov_lower": 1e9, "clip_cov_upper": 2e9} if name == "clip_cov" else {}
    if name == "kl_cov":
        options = {"kl_cov_coef": 0.0}
    gradients = []
    for loss_function, extra in ((get_policy_loss(name), options), (compute_reinforce_loss, {})):
        log_probs = batch["old_log_probs"].clone().requires_grad_()
        loss, _ = loss_function(
            batch["old_log_probs"],
            log_probs,
            advantages,
            batch["response_mask"],
            loss_agg_mode="seq-mean-token-mean",
            **extra,
        )
        loss.backward()
        gradients.append(log_probs.grad)
    assert_close(gradients[0], gradients[1], 1e-7)


@pytest.mark.parametrize("name", LOSSES_BY_NAME)
def test_metrics_carry_no_gradient_and_the_loss_does(name):
    batch = make_batch()
    log_probs = batch["log_probs"].clone().requires_grad_()
    arguments = (batch["old_log_probs"], log_probs, batch["advantages"], batch["response_mask"])
    # Clip-Cov draws its tokens.
    torch.manual_seed(0)
    loss, metrics = get_policy_loss(name)(*arguments)
    assert loss.requires_grad
    assert not any(x.requires_grad for x in metrics.values())
    assert all(x.shape == () for x in (loss, *metrics.values()))
    torch.manual_seed(0)
    with torch.no_grad():
        silent, _ = get_policy_loss(name)(*arguments)
    assert not silent.requires_grad
    assert_same(silent, loss.detach())


@each(POLICY_LOSSES)
def test_one_impossible_token_leaves_loss_and_gradient_finite(case):
    batch = copied(make_batch("all set"))
    batch["log_probs"][0, 0] = -1000.0
    batch["old_log_probs"][3, 3] = -60.0
    batch["log_probs"][3, 3] = -40.0
    assert torch.isfinite(case.run(batch)[0])
    assert torch.all(torch.isfinite(case.gradient(batch)))


def test_ppo_loss_reads_the_clip_range_of_a_config():
    batch = make_batch()
    arguments = [batch[n] for n in ("old_log_probs", "log_probs", "advantages", "response_mask")]
    training = ConfigStore().training
    training.clip_ratio = 0.07
    expected = compute_policy_loss(*arguments, 0.07)
    assert_same(compute_ppo_loss(*arguments, training), expected)
    assert_same(compute_ppo_loss(*arguments, {"clip_ratio": 0.07}), expected)
    assert_same(compute_ppo_loss(*arguments), compute_policy_loss(*arguments))
    assert_same(compute_ppo_loss(*arguments, {}), compute_policy_loss(*arguments))
    with pytest.raises(ConfigError, match="clip_ratio"):
        compute_ppo_loss(*arguments, ConfigStore().model)


def test_clip_cov_drops_that_many_of_its_candidates_at_random():
    batch = make_batch(dtype=torch.float64)
    arguments = {n: batch[n] for n in ("old_log_probs", "log_probs", "advantages", "response_mask")}
    bounds = {"clip_cov_lower": 0.05, "clip_cov_upper": 1.0}
    num_tokens = int(batch["response_mask"].sum())
    number = 4
    candidates = clip_cov_candidates(**as_lists(arguments), clip_ratio=0.2, **bounds)
    assert len(candidates) > number

    def dropped(seed: int) -> set[tuple[int, int]]:
        log_probs = batch["log_probs"].clone().requires_grad_()
        loss, metrics = compute_clip_cov_loss(
            **arguments | {"log_probs": log_probs},
            clip_cov_ratio=(number + 0.5) / num_tokens,
            **bounds,
            generator=torch.Generator().manual_seed(seed),
        )
        loss.backward()
        assert metrics["cov_fraction"].item() == pytest.approx(number / num_tokens)
        return {(i, t) for i, t in candidates if log_probs.grad[i, t] == 0}

    picks = [dropped(seed) for seed in range(5)]
    assert all(len(pick) == number for pick in picks)
    assert dropped(0) == picks[0]
    assert len({frozenset(pick) for pick in picks}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_ratio_c": 1.0}, "clip_ratio_c got 1.0"),
        ({"clip_ratio": -0.1}, "clip range got"),
        ({"clip_ratio_high": -0.1}, "clip range got"),
        ({"loss_agg_mode": "token-means"}, "Did you mean 'token-mean'"),
    ],
)
def test_settings_that_make_no_sense_are_named(options, message):
    x = torch.zeros(1, 2)
    with pytest.raises(ConfigError, match=message):
        compute_policy_loss(x, x, x, x, **options)


def test_shares_of_nothing_are_named():
    x = torch.ones(1, 2)
    with pytest.raises(ConfigError, match="clip_cov_ratio got 0"):
        compute_clip_cov_loss(x, x, x, x, clip_cov_ratio=0.0)
    with pytest.raises(ConfigError, match="kl_cov_ratio got -1"):
        compute_kl_cov_loss(x, x, x, x, kl_cov_ratio=-1.0)


VALUE_MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]]).bool()


@each(VALUE_LOSSES)
def test_gradient_equals_the_references_differences(case):
    batch = make_batch(seed=2, mask=VALUE_MASK, dtype=torch.float64)
    assert_close(case.gradient(batch), case.slopes(batch), 1e-7)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 10, 33, 100])
@pytest.mark.parametrize("constant", [0.0, 0.1, -1.0, 1e4 / 3])
def test_returns_that_do_not_vary_have_no_variance_to_explain(num_tokens, constant):
    returns = torch.full((1, num_tokens), constant)
    values = torch.randn(1, num_tokens, generator=torch.Generator().manual_seed(1))
    assert explained_variance(values, returns, torch.ones(1, num_tokens)) == 0.0
