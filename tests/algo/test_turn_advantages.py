"""Advantages turn by turn against slow references, and what turns are."""

import pytest
import torch

from algo.batches import assert_close, make_batch
from turnwise.algo import compute_gigpo_advantage, compute_turn_grpo_advantage
from turnwise.errors import ConfigError


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


def test_gigpo_says_which_states_are_missing() -> None:
    batch = make_batch()
    arguments = (batch["token_level_rewards"], batch["response_mask"], batch["index"])
    with pytest.raises(ConfigError, match="1 anchor states for episode 3, which has 3 turns"):
        compute_gigpo_advantage(*arguments, [["only one"]] * 9)
