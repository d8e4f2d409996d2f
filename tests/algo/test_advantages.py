"""Advantages of tokens, turns and episodes against slow references, and what each promises."""

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from algo.batches import WITH_LONERS, as_lists, assert_close, assert_same, copied, make_batch
from algo.cases import ADVANTAGES, ALL, TURN_ADVANTAGES, each
from algo.reference import reference_of
from turnwise import algo, estimate_advantages
from turnwise.algo import (
    compute_advantages,
    compute_gae_advantage_return,
    compute_gigpo_advantage,
    compute_grpo_advantage,
    compute_grpo_passk_advantage,
    compute_rloo_advantage,
    compute_turn_grpo_advantage,
    discounted_suffix_sum,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.errors import ConfigError

EVERY = [*ADVANTAGES, *TURN_ADVANTAGES]


@each([c for c in EVERY if "index" in c.takes and "passk" not in c.function])
def test_equals_the_reference_with_episodes_alone_in_their_group(case):
    batch = make_batch(seed=4) | {"index": WITH_LONERS}
    assert_close(case.run(batch), case.expected(batch), 1e-5)


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
def test_gae_keeps_the_digits_of_large_values(numbers, sizes, gamma, lam, bootstrap):
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


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [1.0, 0.8, 0.05, 0.0])
@pytest.mark.parametrize("ends", ["never", "sometimes", "always"])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_estimate_advantages_equals_the_loop(gamma, lam, ends, num_rows):
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
    alone = estimate_advantages(rewards[0], values[0], dones[0], gamma, lam)
    assert_close(alone, tuple(rows[0] for rows in expected))
    with pytest.raises(ConfigError, match="expected one shape"):
        estimate_advantages(rewards, values, dones[:, 1:], gamma, lam)


def test_scores_far_from_zero_keep_their_differences():
    rewards = torch.tensor([[1e6 + 1], [1e6 + 2], [1e6 + 3]])
    advantages, _ = compute_grpo_advantage(rewards, torch.ones(3, 1), [0, 0, 0])
    assert_close(advantages, [[-1.0], [0.0], [1.0]])


def test_passk_refuses_an_episode_alone():
    batch = make_batch()
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        compute_grpo_passk_advantage(
            batch["token_level_rewards"], batch["response_mask"], WITH_LONERS
        )


def test_an_index_of_the_wrong_shape_is_named():
    batch = make_batch()
    with pytest.raises(ConfigError, match="index got an array of shape"):
        compute_rloo_advantage(
            batch["token_level_rewards"], batch["response_mask"], torch.zeros(9, 2)
        )


@each(EVERY)
def test_advantages_carry_no_gradient(case):
    batch = make_batch()
    with_gradient = {
        name: x.clone().requires_grad_() if name in ("token_level_rewards", "values") else x
        for name, x in batch.items()
    }
    result = case.run(with_gradient)
    assert not any(x.requires_grad for x in result)
    assert_same(result, case.run(copied(batch)))


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_a_turn_without_tokens_does_not_disturb_the_others(norm_by_std):
    """Such as a turn whose tokens were all rejected: its number is skipped in `turn_ids`."""
    rewards = torch.tensor([[0.0, 0, 5.0], [0, 0, 1.0]])
    arguments = (rewards, torch.ones(2, 3), ["g", "g"])
    skipped, _ = compute_turn_grpo_advantage(
        *arguments, turn_ids=torch.tensor([[0, 0, 2], [0, 0, 1]]), norm_by_std=norm_by_std
    )
    numbered, _ = compute_turn_grpo_advantage(
        *arguments, turn_ids=torch.tensor([[0, 0, 1], [0, 0, 1]]), norm_by_std=norm_by_std
    )
    assert_close(skipped, numbered)


def test_gigpo_finds_the_state_of_a_turn_by_its_number():
    """The first turn has no tokens; the second was taken in state "b"."""
    rewards = torch.tensor([[5.0], [1.0]])
    mask = torch.ones(2, 1)
    advantages, _ = compute_gigpo_advantage(
        rewards,
        mask,
        ["g", "g"],
        [["a", "b"], ["b", "c"]],
        turn_ids=torch.tensor([[1], [0]]),
        norm_by_std=False,
    )
    assert_close(advantages, [[4.0], [-4.0]])


def test_gigpo_says_which_states_are_missing():
    batch = make_batch()
    arguments = (batch["token_level_rewards"], batch["response_mask"], batch["index"])
    with pytest.raises(ConfigError, match="1 anchor states for episode 3, which has 3 turns"):
        compute_gigpo_advantage(*arguments, [["only one"]] * 9)


@pytest.mark.parametrize("decay", [1.0, 0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 1e-4, 1e-8])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_any_length_and_decay_is_accurate(num_rows, decay):
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


def test_the_far_future_does_not_drown_what_is_near():
    """A huge term that has decayed away leaves the small ones accurate."""
    x = torch.full((1, 200), 0.25)
    x[0, -1] = 1e6
    sums = discounted_suffix_sum(x, torch.ones(1, 200, dtype=torch.bool), 0.5)
    assert_close(sums[0, :150], [0.5] * 150, 1e-6)


def test_everything_public_is_compared_with_a_reference():
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
    of_other_shapes = {"compute_kl_penalty", "compute_ppo_loss", "estimate_advantages"}
    without_mask = {"compute_kl_penalty", "estimate_advantages", "estimate_kl"}
    for name in without_mask:
        assert callable(reference_of(name))
    compared = {case.function for case in ALL}
    assert {*algo.__all__, *of_other_shapes} == compared | without_mask | tested_otherwise


def test_an_unknown_name_says_the_nearest():
    with pytest.raises(ConfigError, match=r"estimator 'grpoo'\. Did you mean 'grpo'"):
        get_advantage_estimator("grpoo")
    with pytest.raises(ConfigError, match=r"policy loss 'gsp'\. Did you mean 'gspo'"):
        get_policy_loss("gsp")
    with pytest.raises(ConfigError, match=r"Known: .*turn_grpo"):
        compute_advantages("xyzzy", {})
