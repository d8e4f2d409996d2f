"""Advantages of tokens and episodes against slow references, and what each promises."""

import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from algo.batches import WITH_LONERS, as_lists, assert_close, assert_same, copied, make_batch
from algo.cases import ADVANTAGES, TURN_ADVANTAGES, Case, each
from algo.reference import reference_of
from turnwise.algo import (
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_grpo_passk_advantage,
    compute_rloo_advantage,
    estimate_advantages,
)
from turnwise.errors import ConfigError

EVERY = [*ADVANTAGES, *TURN_ADVANTAGES]


@each([c for c in EVERY if "index" in c.takes and "passk" not in c.function])
def test_equals_the_reference_with_episodes_alone_in_their_group(case: Case) -> None:
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
    alone = estimate_advantages(rewards[0], values[0], dones[0], gamma, lam)
    assert_close(alone, tuple(rows[0] for rows in expected))
    with pytest.raises(ConfigError, match="expected one shape"):
        estimate_advantages(rewards, values, dones[:, 1:], gamma, lam)


def test_scores_far_from_zero_keep_their_differences() -> None:
    rewards = torch.tensor([[1e6 + 1], [1e6 + 2], [1e6 + 3]])
    advantages, _ = compute_grpo_advantage(rewards, torch.ones(3, 1), [0, 0, 0])
    assert_close(advantages, [[-1.0], [0.0], [1.0]])


def test_passk_refuses_an_episode_alone() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        compute_grpo_passk_advantage(
            batch["token_level_rewards"], batch["response_mask"], WITH_LONERS
        )


def test_an_index_of_the_wrong_shape_is_named() -> None:
    batch = make_batch()
    with pytest.raises(ConfigError, match="index got an array of shape"):
        compute_rloo_advantage(
            batch["token_level_rewards"], batch["response_mask"], torch.zeros(9, 2)
        )


@each(EVERY)
def test_advantages_carry_no_gradient(case: Case) -> None:
    batch = make_batch()
    with_gradient = {
        name: x.clone().requires_grad_() if name in ("token_level_rewards", "values") else x
        for name, x in batch.items()
    }
    result = case.run(with_gradient)
    assert not any(x.requires_grad for x in result)
    assert_same(result, case.run(copied(batch)))
