"""Advantages of tokens and episodes against slow references, and what each promises."""

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from algo.batches import (
    MASKS,
    WITH_LONERS,
    as_lists,
    assert_close,
    assert_same,
    copied,
    make_batch,
    make_mask,
)
from algo.cases import ADVANTAGES, Case, each
from algo.reference import reference_of
from turnwise.algo import (
    compute_dr_grpo_advantage,
    compute_gae_advantage_return,
    compute_gdpo_advantage,
    compute_gpg_advantage,
    compute_grpo_advantage,
    compute_grpo_passk_advantage,
    compute_opo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_rloo_advantage,
    estimate_advantages,
)
from turnwise.errors import ConfigError


@each(ADVANTAGES)
def test_equals_the_reference(case: Case) -> None:
    for kind in MASKS:
        batch = make_batch(kind, seed=1)
        assert_close(case.run(batch), case.expected(batch), 1e-5)


@each(ADVANTAGES)
def test_equals_the_reference_in_float64(case: Case) -> None:
    batch = make_batch(seed=3, dtype=torch.float64)
    result = case.run(batch)
    assert all(x.dtype == torch.float64 for x in result)
    assert_close(result, case.expected(batch), 1e-10)


@each([c for c in ADVANTAGES if "index" in c.takes and "passk" not in c.function])
def test_equals_the_reference_with_episodes_alone_in_their_group(case: Case) -> None:
    batch = make_batch(seed=4) | {"index": WITH_LONERS}
    assert_close(case.run(batch), case.expected(batch), 1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.3])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.1, 0.05, 0.0])
def test_gae_is_accurate_on_long_rows(gamma: float, lam: float) -> None:
    length = 5000
    random = torch.Generator().manual_seed(1)
    mask = torch.rand(2, length, generator=random) < 0.7
    rewards = torch.randn(2, length, generator=random) * (
        torch.rand(2, length, generator=random) < 0.01
    )
    batch = {
        "token_level_rewards": rewards,
        "values": torch.randn(2, length, generator=random),
        "response_mask": mask,
        "bootstrap_values": torch.tensor([1.5, -2.0]),
    }
    options = {"gamma": gamma, "lam": lam, "whiten": False}
    result = compute_gae_advantage_return(**batch, **options)
    expected = reference_of("compute_gae_advantage_return")(**as_lists(batch), **options)
    assert_close(result, expected, 1e-5)


@given(
    numbers=st.lists(
        st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    sizes=st.tuples(st.integers(-3, 6), st.integers(-3, 6)),
    gamma=st.floats(0.0, 1.0),
    lam=st.sampled_from([0.0, 1e-3, 0.1, 0.95, 1.0]) | st.floats(0.0, 1.0),
    bootstrap=st.floats(-1.0, 1.0),
)
@example([(0.001, 0.9, True), (0.0, 0.90044, True)] * 9, (0, 4), 0.99, 0.1, 0.9)
@settings(deadline=None, max_examples=60)
def test_gae_keeps_the_digits_of_large_values(
    numbers: list[tuple[float, float, bool]],
    sizes: tuple[int, int],
    gamma: float,
    lam: float,
    bootstrap: float,
) -> None:
    """An advantage is as accurate as float32 can be, however large the values around it are."""
    rewards, values, mask = (torch.tensor([column]) for column in zip(*numbers, strict=True))
    batch = {
        "token_level_rewards": rewards * 10.0 ** sizes[0],
        "values": values * 10.0 ** sizes[1],
        "response_mask": mask,
        "bootstrap_values": torch.tensor([bootstrap * 10.0 ** sizes[1]]),
    }
    options = {"gamma": gamma, "lam": lam, "whiten": False}
    result = compute_gae_advantage_return(**batch, **options)
    exact = {name: x if x.dtype is torch.bool else x.double() for name, x in batch.items()}
    expected = reference_of("compute_gae_advantage_return")(**as_lists(exact), **options)
    for got, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(
            got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-7
        )


def test_gae_of_many_rows_equals_that_of_few() -> None:
    """Whitening included."""
    random = torch.Generator().manual_seed(2)
    shape = (700, 900)
    rewards, values = (torch.randn(shape, generator=random) for _ in range(2))
    mask = torch.rand(shape, generator=random) < 0.6
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95)
    few = [
        compute_gae_advantage_return(r, v, m, 0.99, 0.95, whiten=False)
        for r, v, m in zip(*(x.split(100) for x in (rewards, values, mask)), strict=True)
    ]
    raw = torch.cat([a for a, _ in few])
    kept = raw[mask].double()
    assert_close(returns, torch.cat([r for _, r in few]), 1e-5)
    expected = torch.where(mask, (raw.double() - kept.mean()) / kept.std(), 0.0)
    assert_close(advantages, expected, 1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("lam", [1.0, 0.9, 0.05, 0.01, 0.0])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_gae_of_few_rows_and_any_length(gamma: float, lam: float, num_rows: int) -> None:
    for length in range(1, 12):
        mask = torch.ones(num_rows, length, dtype=torch.bool)
        batch = make_batch(seed=length, mask=mask if num_rows > 1 else mask.expand(2, -1))
        names = ("token_level_rewards", "values", "response_mask")
        arguments = {name: batch[name][:num_rows] for name in names}
        options = {"gamma": gamma, "lam": lam, "whiten": False}
        result = compute_gae_advantage_return(**arguments, **options)
        expected = reference_of("compute_gae_advantage_return")(**as_lists(arguments), **options)
        assert_close(result, expected, 1e-5)


def test_gae_with_lambda_one_is_the_return_minus_the_value() -> None:
    batch = make_batch()
    rewards, values, mask = (
        batch[name] for name in ("token_level_rewards", "values", "response_mask")
    )
    advantages, returns = compute_gae_advantage_return(
        rewards, values, mask, 1.0, 1.0, whiten=False
    )
    to_go = torch.where(mask, rewards, 0.0).flip(1).cumsum(1).flip(1)
    assert_close(returns, torch.where(mask, to_go, 0.0))
    assert_close(advantages, torch.where(mask, to_go - values, 0.0))


def test_a_bootstrap_value_is_one_more_step_of_that_value() -> None:
    rewards, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]])
    mask, bootstrap = torch.ones(1, 2), torch.tensor([4.0])
    advantages, _ = compute_gae_advantage_return(
        rewards, values, mask, 0.5, 0.5, bootstrap_values=bootstrap, whiten=False
    )
    last = 2.0 + 0.5 * 4.0 - 0.25
    first = 1.0 + 0.5 * 0.25 - 0.5 + 0.25 * last
    assert_close(advantages, [[first, last]])


def test_whitening_brings_the_tokens_of_the_batch_to_mean_zero_and_variance_one() -> None:
    batch = make_batch()
    mask = batch["response_mask"]
    arguments = (batch["token_level_rewards"] * 50 + 1000, batch["values"], mask)
    whitened, returns = compute_gae_advantage_return(*arguments, 0.99, 0.9)
    assert_close(whitened[mask].mean(), 0.0, 1e-6)
    assert_close(whitened[mask].std(), 1.0, 1e-6)
    assert torch.all(whitened[~mask] == 0)
    assert_same(returns, compute_gae_advantage_return(*arguments, 0.99, 0.9, whiten=False)[1])


def test_whitening_equal_numbers_gives_zeros() -> None:
    mask = make_mask("one token each")
    advantages, _ = compute_reinforce_plus_plus_advantage(torch.full(mask.shape, 3.0), mask)
    assert torch.all(advantages == 0)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [1.0, 0.8, 0.05, 0.0])
@pytest.mark.parametrize("ends", ["never", "sometimes", "always"])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_estimate_advantages_equals_the_loop(
    gamma: float, lam: float, ends: str, num_rows: int
) -> None:
    random = torch.Generator().manual_seed(5)
    rewards, values = (torch.randn(num_rows, 17, generator=random) for _ in range(2))
    chance = {"never": 0.0, "sometimes": 0.3, "always": 1.1}[ends]
    dones = torch.rand(num_rows, 17, generator=random) < chance
    expected = reference_of("estimate_advantages")(
        rewards.double().tolist(), values.double().tolist(), dones.tolist(), gamma, lam
    )
    for kind in (torch.bool, torch.int64, torch.float32):
        assert_close(estimate_advantages(rewards, values, dones.to(kind), gamma, lam), expected)
    in_float64 = estimate_advantages(rewards.double(), values.double(), dones, gamma, lam)
    assert_close(in_float64, expected, 1e-10)


@pytest.mark.parametrize(
    ("rewards_type", "values_type"),
    [(torch.int64, torch.float32), (torch.float32, torch.float64), (torch.float32, torch.bfloat16)],
)
def test_estimate_advantages_takes_rewards_and_values_of_different_types(
    rewards_type: torch.dtype, values_type: torch.dtype
) -> None:
    rewards = torch.tensor([[0, 1, 0, 2]], dtype=rewards_type)
    values = torch.tensor([[0.5, 0.25, -0.5, 1.5]], dtype=values_type)
    dones = torch.tensor([[0, 1, 0, 1]])
    result = estimate_advantages(rewards, values, dones, 1.0, 1.0)
    assert_close(result, ([[0.5, 0.75, 2.5, 0.5]], [[1.0, 1.0, 2.0, 2.0]]))


def test_gpg_scales_by_the_share_of_scores_that_are_not_zero() -> None:
    rewards = torch.tensor([[1.0], [0.0], [3.0], [0.0], [0.5]], dtype=torch.float64)
    advantages, _ = compute_gpg_advantage(rewards, torch.ones(5, 1), [0, 0, 0, 1, 1])
    scale = 5 / 3
    expected = [[-scale / 3], [-scale * 4 / 3], [scale * 5 / 3], [-scale / 4], [scale / 4]]
    assert_close(advantages, expected, 1e-10)


@pytest.mark.parametrize("kind", [torch.int64, torch.float64, torch.bfloat16])
def test_scores_may_come_in_any_type(kind: torch.dtype) -> None:
    rewards = torch.tensor([[0, 1, 2], [0, 0, 1]], dtype=kind)
    advantages, _ = compute_rloo_advantage(rewards, torch.ones(2, 3), [0, 0])
    assert_close(advantages, [[2.0] * 3, [-2.0] * 3])


def test_remax_has_the_baseline_once_and_the_reward_to_go() -> None:
    case = next(c for c in ADVANTAGES if "remax" in c.function)
    advantages, returns = case.run(
        {
            "token_level_rewards": torch.tensor([[1.0, 9.0, 2.0]]),
            "response_mask": torch.tensor([[1, 0, 1]]),
            "reward_baselines": torch.tensor([0.5]),
        }
    )
    assert_close(advantages, [[2.5, 0.0, 1.5]])
    assert_close(returns, [[3.0, 0.0, 2.0]])


def test_equal_scores_give_no_advantage() -> None:
    batch = make_batch("all set")
    rewards = torch.zeros_like(batch["token_level_rewards"])
    rewards[:, 4] = 0.1
    arguments = (rewards, batch["response_mask"], batch["index"])
    for estimate in (compute_grpo_advantage, compute_grpo_passk_advantage, compute_rloo_advantage):
        assert_close(estimate(*arguments)[0], torch.zeros_like(rewards), 1e-7)


def test_scores_far_from_zero_keep_their_differences() -> None:
    rewards = torch.tensor([[1e6 + 1], [1e6 + 2], [1e6 + 3]])
    advantages, _ = compute_grpo_advantage(rewards, torch.ones(3, 1), [0, 0, 0])
    assert_close(advantages, [[-1.0], [0.0], [1.0]])


def test_dr_grpo_is_grpo_without_the_division() -> None:
    batch = make_batch()
    arguments = (batch["token_level_rewards"], batch["response_mask"], batch["index"])
    assert_same(
        compute_dr_grpo_advantage(*arguments), compute_grpo_advantage(*arguments, norm_by_std=False)
    )


def test_passk_rewards_one_of_equal_bests_with_nothing() -> None:
    rewards = torch.tensor([[3.0], [1.0], [3.0], [2.0]])
    advantages, _ = compute_grpo_passk_advantage(rewards, torch.ones(4, 1), [0, 0, 0, 0])
    assert torch.all(advantages == 0)


def test_passk_refuses_an_episode_alone() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        compute_grpo_passk_advantage(
            batch["token_level_rewards"], batch["response_mask"], WITH_LONERS
        )


def test_gdpo_says_how_many_weights_it_got() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="2 part_weights for 3"):
        compute_gdpo_advantage(
            batch["token_level_rewards"],
            batch["response_mask"],
            batch["index"],
            reward_parts=batch["reward_parts"],
            part_weights=[1.0, 2.0],
        )


def test_an_index_of_the_wrong_shape_is_named() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="index got an array of shape"):
        compute_rloo_advantage(
            batch["token_level_rewards"], batch["response_mask"], torch.zeros(9, 2)
        )


@pytest.mark.parametrize("num_labels", [8, 10])
def test_an_index_of_the_wrong_length_is_named(num_labels: int) -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="index"):
        compute_rloo_advantage(
            batch["token_level_rewards"], batch["response_mask"], [0] * num_labels
        )


def test_opo_and_rloo_agree_on_what_is_better() -> None:
    batch = make_batch("all set")
    arguments = (batch["token_level_rewards"], batch["response_mask"], ["one group"] * 9)
    opo, rloo = compute_opo_advantage(*arguments)[0], compute_rloo_advantage(*arguments)[0]
    # Of equal lengths the weighted mean is the mean, and RLOO is 9/8 of that difference.
    assert_close(opo * 9 / 8, rloo)


@each(ADVANTAGES)
def test_advantages_carry_no_gradient(case: Case) -> None:
    batch = make_batch()
    with_gradient = {
        name: x.clone().requires_grad_() if name in ("token_level_rewards", "values") else x
        for name, x in batch.items()
    }
    result = case.run(with_gradient)
    assert not any(x.requires_grad for x in result)
    assert_same(result, case.run(copied(batch)))
