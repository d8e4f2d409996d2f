"""Advantages beside VERL 0.9.1: the same numbers from the same random input, to 1e-5.

Inputs are ragged: one turn or several with holes, and one row without any token.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos as theirs

from ragged_batch import NUM_ROWS, Batch, assert_same
from turnwise import algo as ours

Estimator = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]


def _gae(gamma: float, lam: float) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_gae_advantage_return(b.rewards, b.values, b.mask, gamma, lam),
        lambda b: theirs.compute_gae_advantage_return(b.rewards, b.values, b.mask, gamma, lam),
    )


def _grpo(verls: Callable[..., Any], norm: bool) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_grpo_advantage(b.rewards, b.mask, b.index, norm_by_std=norm),
        lambda b: verls(b.rewards, b.mask, b.index, norm_adv_by_std_in_grpo=norm),
    )


def _passk(norm: bool) -> tuple[Estimator, Estimator]:
    config = AlgoConfig(norm_adv_by_std_in_grpo=norm)
    return (
        lambda b: ours.compute_grpo_passk_advantage(b.rewards, b.mask, b.index, norm_by_std=norm),
        lambda b: theirs.compute_grpo_passk_outcome_advantage(
            b.rewards, b.mask, b.index, config=config
        ),
    )


def _gdpo_of_parts(weights: list[float] | None, norm: bool) -> tuple[Estimator, Estimator]:
    keys = ["format", "accuracy", "brevity"]
    config = AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=weights)

    def verls(b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return theirs.compute_gdpo_outcome_advantage(
            b.rewards,
            b.mask,
            b.index,
            norm_adv_by_std_in_grpo=norm,
            config=config,
            non_tensor_batch=dict(zip(keys, b.reward_parts.T.numpy(), strict=True)),
            batch={"prompts": torch.zeros(NUM_ROWS, 7), "attention_mask": _attention(b, 7)},
        )

    def mine(b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return ours.compute_gdpo_advantage(
            b.rewards,
            b.mask,
            b.index,
            reward_parts=b.reward_parts,
            part_weights=weights,
            norm_by_std=norm,
        )

    return mine, verls


def _attention(b: Batch, prompt_length: int) -> torch.Tensor:
    up_to_last = (b.mask.flip(1).cumsum(1).flip(1) > 0).long()
    return torch.cat([torch.ones(NUM_ROWS, prompt_length, dtype=torch.long), up_to_last], 1)


def _reinforce_plus_plus(gamma: float) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_reinforce_plus_plus_advantage(b.rewards, b.mask, gamma),
        lambda b: theirs.compute_reinforce_plus_plus_outcome_advantage(
            b.rewards, b.mask, config=AlgoConfig(gamma=gamma)
        ),
    )


def _by_group(mine: Callable[..., Any], verls: Callable[..., Any]) -> tuple[Estimator, Estimator]:
    return lambda b: mine(b.rewards, b.mask, b.index), lambda b: verls(b.rewards, b.mask, b.index)


ESTIMATORS: dict[str, tuple[Estimator, Estimator]] = {
    "gae 1, 1": _gae(1.0, 1.0),
    "gae 0.99, 0.95": _gae(0.99, 0.95),
    "gae 0.99, 0": _gae(0.99, 0.0),
    "grpo": _grpo(theirs.compute_grpo_outcome_advantage, True),
    "grpo without std": _grpo(theirs.compute_grpo_outcome_advantage, False),
    "grpo vectorized": _grpo(theirs.compute_grpo_vectorized_outcome_advantage, True),
    "grpo vectorized without std": _grpo(theirs.compute_grpo_vectorized_outcome_advantage, False),
    "grpo_passk": _passk(True),
    "grpo_passk without std": _passk(False),
    "gdpo": _by_group(ours.compute_gdpo_advantage, theirs.compute_gdpo_outcome_advantage),
    "gdpo of parts": _gdpo_of_parts(None, True),
    "gdpo of weighted parts without std": _gdpo_of_parts([0.2, 1.0, 0.5], False),
    "rloo": _by_group(ours.compute_rloo_advantage, theirs.compute_rloo_outcome_advantage),
    "rloo vectorized": _by_group(
        ours.compute_rloo_advantage, theirs.compute_rloo_vectorized_outcome_advantage
    ),
    "opo": _by_group(ours.compute_opo_advantage, theirs.compute_opo_outcome_advantage),
    "gpg": _by_group(ours.compute_gpg_advantage, theirs.compute_gpg_outcome_advantage),
    "gpg f_norm": (
        lambda b: ours.compute_gpg_advantage(b.rewards, b.mask, b.index, f_norm=0.7),
        lambda b: theirs.compute_gpg_outcome_advantage(b.rewards, b.mask, b.index, f_norm=0.7),
    ),
    "reinforce_plus_plus": _reinforce_plus_plus(1.0),
    "reinforce_plus_plus 0.97": _reinforce_plus_plus(0.97),
    "reinforce_plus_plus_baseline": _by_group(
        ours.compute_reinforce_plus_plus_baseline_advantage,
        theirs.compute_reinforce_plus_plus_baseline_outcome_advantage,
    ),
    "remax": (
        lambda b: ours.compute_remax_advantage(b.rewards, b.mask, b.reward_parts[:, 0]),
        lambda b: theirs.compute_remax_outcome_advantage(b.rewards, b.reward_parts[:, 0], b.mask),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages(name, batch):
    mine, verls = ESTIMATORS[name]
    for got, expected in zip(mine(batch), verls(batch), strict=True):
        assert_same(got, expected, batch.mask)


@pytest.mark.parametrize("handle_zero_tail", [True, False], ids=["zero tail", "full tail"])
def test_optimal_token_baseline(handle_zero_tail, batch):
    inputs = (batch.rewards, batch.mask, batch.index, batch.old, batch.sum_pi_squared)
    mine = ours.compute_optimal_token_baseline_advantage(*inputs, handle_zero_tail=handle_zero_tail)
    verls = [theirs.compute_multi_turn_optimal_token_baseline_advantage]
    has_holes = bool((batch.mask[:, 1:] > batch.mask[:, :-1]).any())
    if not has_holes:
        verls.append(theirs.compute_optimal_token_baseline_advantage)
    for estimator in verls:
        expected = estimator(*inputs, handle_zero_tail=handle_zero_tail)
        assert_same(mine[0], expected[0], batch.mask)
        assert_same(mine[1], expected[1], batch.mask)
