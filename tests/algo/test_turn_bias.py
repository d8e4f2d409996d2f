"""Normalising per turn index rewards taking more turns; our turn-level estimator has no such bias.

The game: in each of up to three turns the agent goes on or stops; it goes on with a probability
of its own for each turn, the sigmoid of a logit. All groups of episodes are enumerated with their
probabilities, so that expected gradients are exact.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from turnwise.algo import compute_turn_grpo_advantage

LOGITS = (0.3, -0.4, 0.8)
MAX_TURNS = len(LOGITS)
# What an episode did in each turn: True is going on. After the third turn it is over anyway.
EPISODES = [(False,), (True, False), (True, True, False), (True, True, True)]

Payments = Callable[[tuple[bool, ...]], list[float]]


def paid_at_the_end(episode: tuple[bool, ...]) -> list[float]:
    """Every episode earns 1 in all."""
    return [0.0] * (len(episode) - 1) + [1.0]


def mixed(episode: tuple[bool, ...]) -> list[float]:
    """Pays along the way, and differently for the last action."""
    return [0.7 - 0.9 * k + 0.35 * went_on * (k + 1) ** 2 for k, went_on in enumerate(episode)]


def probability(episode: tuple[bool, ...], logits: tuple[float, ...]) -> float:
    chances = [1 / (1 + math.exp(-logit)) for logit in logits]
    return math.prod(
        chance if went_on else 1 - chance for went_on, chance in zip(episode, chances, strict=False)
    )


def true_gradient(payments: Payments) -> list[float]:
    """Of the expected return, with respect to each logit, by central differences."""

    def expected_return(logits: tuple[float, ...]) -> float:
        return math.fsum(probability(e, logits) * sum(payments(e)) for e in EPISODES)

    def moved(k: int, step: float) -> tuple[float, ...]:
        return tuple(logit + step * (j == k) for j, logit in enumerate(LOGITS))

    step = 1e-5
    return [
        (expected_return(moved(k, step)) - expected_return(moved(k, -step))) / (2 * step)
        for k in range(MAX_TURNS)
    ]


def expected_push(payments: Payments, group_size: int) -> list[float]:
    """Σ over groups of P(group) · mean_i Σ_k ∇ log π(a_ik) A_ik, with respect to each logit."""
    push = [0.0] * MAX_TURNS
    for group in itertools.product(EPISODES, repeat=group_size):
        chance = math.prod(probability(episode, LOGITS) for episode in group)
        advantages = ours([payments(episode) for episode in group])
        for episode, row in zip(group, advantages, strict=True):
            for k, (went_on, advantage) in enumerate(zip(episode, row, strict=True)):
                slope = went_on - 1 / (1 + math.exp(-LOGITS[k]))
                push[k] += chance * slope * advantage / group_size
    return push


def ours(rewards: list[list[float]]) -> list[list[float]]:
    """Turns of two tokens with an observation between; the reward is on a turn's last token."""
    length = 3 * MAX_TURNS
    mask = torch.zeros(len(rewards), length, dtype=torch.bool)
    token_level_rewards = torch.zeros(len(rewards), length, dtype=torch.float64)
    for i, row in enumerate(rewards):
        for k, reward in enumerate(row):
            mask[i, 3 * k : 3 * k + 2] = True
            token_level_rewards[i, 3 * k + 1] = reward
    advantages, _ = compute_turn_grpo_advantage(token_level_rewards, mask, [0] * len(rewards))
    return [[float(advantages[i, 3 * k]) for k in range(len(row))] for i, row in enumerate(rewards)]


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("payments", [paid_at_the_end, mixed])
def test_our_expected_push_is_the_true_gradient(payments: Payments, group_size: int) -> None:
    assert expected_push(payments, group_size) == pytest.approx(true_gradient(payments), abs=1e-6)
