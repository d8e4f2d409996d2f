"""Advantages turn by turn against slow references, and what turns are."""

import pytest
import torch

from algo.batches import (
    MASKS,
    WITH_LONERS,
    assert_close,
    assert_same,
    copied,
    make_batch,
    make_mask,
)
from algo.cases import TURN_ADVANTAGES, Case, each
from turnwise.algo import (
    compute_gae_advantage_return,
    compute_gigpo_advantage,
    compute_grpo_advantage,
    compute_rloo_advantage,
    compute_turn_gae_advantage_return,
    compute_turn_grpo_advantage,
)
from turnwise.errors import ConfigError


@each(TURN_ADVANTAGES)
def test_equals_the_reference(case: Case) -> None:
    for kind in MASKS:
        batch = make_batch(kind, seed=1)
        assert_close(case.run(batch), case.expected(batch), 1e-5)


@each(TURN_ADVANTAGES)
def test_equals_the_reference_in_float64(case: Case) -> None:
    batch = make_batch(seed=3, dtype=torch.float64)
    result = case.run(batch)
    assert all(x.dtype == torch.float64 for x in result)
    assert_close(result, case.expected(batch), 1e-10)


@each([case for case in TURN_ADVANTAGES if "index" in case.takes])
def test_equals_the_reference_with_episodes_alone_in_their_group(case: Case) -> None:
    batch = make_batch(seed=4) | {"index": WITH_LONERS}
    assert_close(case.run(batch), case.expected(batch), 1e-5)


@each(TURN_ADVANTAGES)
def test_every_token_of_a_turn_has_the_same_advantage(case: Case) -> None:
    batch = make_batch()
    mask = batch["response_mask"]
    ids = batch["turn_ids"]
    if "turn_ids" not in case.takes:
        starts = mask & ~torch.nn.functional.pad(mask, (1, -1))
        ids = starts.cumsum(1)
    for x in case.run(batch):
        for i in range(len(mask)):
            for turn in ids[i][mask[i]].unique():
                assert len(x[i][mask[i] & (ids[i] == turn)].unique()) == 1


def test_without_ids_an_unbroken_run_of_tokens_is_a_turn() -> None:
    batch = make_batch()
    mask = batch["response_mask"]
    runs = (mask & ~torch.nn.functional.pad(mask, (1, -1))).cumsum(1) - 1
    arguments = (batch["token_level_rewards"], mask, batch["index"])
    assert_same(
        compute_turn_grpo_advantage(*arguments),
        compute_turn_grpo_advantage(*arguments, turn_ids=runs),
    )


def test_turn_gae_of_turns_of_one_token_is_gae() -> None:
    mask = make_mask("ragged")
    mask[:, 1::2] = False
    batch = make_batch(mask=mask)
    arguments = (batch["token_level_rewards"], batch["values"], mask, 0.9, 0.8)
    options = {"bootstrap_values": batch["bootstrap_values"]}
    assert_close(
        compute_turn_gae_advantage_return(*arguments, **options),
        compute_gae_advantage_return(*arguments, **options),
        1e-6,
    )


def test_turn_gae_of_one_step_by_hand() -> None:
    rewards = torch.tensor([[0.0, 1.0, 7.0, 0.0, 2.0]])
    values = torch.tensor([[0.5, 9.0, 9.0, 0.25, 9.0]])
    advantages, returns = compute_turn_gae_advantage_return(
        rewards, values, torch.tensor([[1, 1, 0, 1, 1]]), 0.5, 0.0, whiten=False
    )
    first, second = 1.0 + 0.5 * 0.25 - 0.5, 2.0 - 0.25
    assert_close(advantages, [[first, first, 0.0, second, second]])
    assert_close(returns, [[first + 0.5, first + 0.5, 0.0, 2.0, 2.0]])


def test_turn_grpo_is_rloo_when_only_last_turns_pay() -> None:
    for seed in range(5):
        batch = make_batch(seed=seed) | {"index": WITH_LONERS}
        mask = batch["response_mask"]
        last = torch.where(mask, torch.arange(mask.shape[1]), -1).amax(1, keepdim=True)
        is_last = torch.arange(mask.shape[1]) == last
        rewards = torch.where(is_last, batch["token_level_rewards"], 0.0)
        advantages, _ = compute_turn_grpo_advantage(rewards, mask, WITH_LONERS)
        assert_close(advantages, compute_rloo_advantage(rewards, mask, WITH_LONERS)[0], 1e-6)


def test_turn_grpo_compares_with_the_last_turn_of_an_episode_that_ended_before() -> None:
    # Rewards to go: 6, 5, 3 and 4, of which the second episode has only the first turn.
    rewards = torch.tensor([[1.0, 0, 2.0, 0, 3.0], [4.0, 0, 0, 0, 0]])
    mask = torch.tensor([[1, 0, 1, 0, 1], [1, 0, 0, 0, 0]])
    advantages, returns = compute_turn_grpo_advantage(rewards, mask, ["g", "g"])
    assert_close(advantages, [[2.0, 0, 1.0, 0, -1.0], [-2.0, 0, 0, 0, 0]])
    assert_close(returns, [[6.0, 0, 5.0, 0, 3.0], [4.0, 0, 0, 0, 0]])


def test_turn_grpo_of_an_episode_alone_is_zero() -> None:
    batch = make_batch()
    advantages, returns = compute_turn_grpo_advantage(
        batch["token_level_rewards"], batch["response_mask"], range(9)
    )
    assert torch.all(advantages == 0)
    assert torch.any(returns != 0)


@pytest.mark.parametrize("norm_by_std", [False, True])
def test_a_turn_without_tokens_does_not_disturb_the_others(norm_by_std: bool) -> None:
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


def test_gigpo_finds_the_state_of_a_turn_by_its_number() -> None:
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


def test_gigpo_by_hand() -> None:
    rewards = torch.tensor([[0.0, 0, 1.0], [0, 0, 0]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 1]])
    advantages, returns = compute_gigpo_advantage(
        rewards,
        mask,
        ["g", "g"],
        [["start", "door", "end"], ["start", "wall", "end"]],
        gamma=0.5,
        step_weight=2.0,
        norm_by_std=False,
    )
    # Episodes: ±0.5. At the start the rewards to go are 0.5 and 0, so ±0.25; elsewhere nobody met.
    assert_close(advantages, [[1.0, 0, 0.5], [-1.0, 0, -0.5]])
    assert_close(returns, [[0.5, 0, 1.0], [0, 0, 0]])


def test_gigpo_without_its_steps_is_grpo() -> None:
    batch = make_batch()
    arguments = (batch["token_level_rewards"], batch["response_mask"], batch["index"])
    advantages, _ = compute_gigpo_advantage(*arguments, batch["anchor_states"], step_weight=0.0)
    assert_close(advantages, compute_grpo_advantage(*arguments)[0], 1e-5)


def test_gigpo_does_not_compare_across_groups() -> None:
    rewards, mask = torch.tensor([[1.0], [5.0]]), torch.ones(2, 1)
    advantages, _ = compute_gigpo_advantage(rewards, mask, [0, 1], [["same"], ["same"]])
    assert torch.all(advantages == 0)


def test_gigpo_says_which_states_are_missing() -> None:
    batch = make_batch()
    arguments = (batch["token_level_rewards"], batch["response_mask"], batch["index"])
    with pytest.raises(ConfigError, match="of 8 episodes, expected 9"):
        compute_gigpo_advantage(*arguments, batch["anchor_states"][:8])
    with pytest.raises(ConfigError, match="1 anchor states for episode 3, which has 3 turns"):
        compute_gigpo_advantage(*arguments, [["only one"]] * 9)


@each(TURN_ADVANTAGES)
def test_advantages_carry_no_gradient(case: Case) -> None:
    batch = make_batch()
    with_gradient = {
        name: x.clone().requires_grad_() if name in ("token_level_rewards", "values") else x
        for name, x in batch.items()
    }
    result = case.run(with_gradient)
    assert not any(x.requires_grad for x in result)
    assert_same(result, case.run(copied(batch)))
