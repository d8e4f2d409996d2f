"""Trains on a Gymnasium environment as text: FrozenLake, with a custom reward.

The adapter turns any registered environment into text: it lists the actions, describes
observations, and parses the reply. Here the texts are shorter, since a token of the tiny model is
a byte, and the reward, which FrozenLake gives only at the goal, also counts progress towards it.

    pip install 'turnwise[gym]'
    python examples/gymnasium_frozen_lake.py            a few minutes on two cores
    python examples/gymnasium_frozen_lake.py --quick    a few steps in seconds, to see that it runs

The model first imitates the adapter's own solver for a few steps and then reaches the goal in
about half of its episodes. Training raises this, though not steadily; greedy evaluation reaches
the goal.
"""

import re
import sys

from turnwise import ConfigStore, Trainer
from turnwise.env import GymnasiumEnvironment

SIZE = 4


def lake(config=None):
    """Makes one environment; the trainer calls it for each concurrent episode."""
    return GymnasiumEnvironment(
        "FrozenLake-v1",
        config,
        is_slippery=False,  # unknown parameters are passed to gymnasium.make
        task="Go to 4 4.",
        describe=lambda state: f"{state // SIZE + 1} {state % SIZE + 1}",
    )


def nearness(trajectory):
    """Returns a reward per turn: 0.1 for each new smallest distance to the goal, 1 at the goal."""
    nearest, rewards = 2 * (SIZE - 1), []
    for observation, earned in zip(trajectory.observations, trajectory.rewards, strict=True):
        row, column = map(int, re.findall(r"[1-9]", observation)[:2])
        distance = 2 * SIZE - row - column
        rewards.append(earned + 0.1 * max(nearest - distance, 0))
        nearest = min(nearest, distance)
    return rewards


def settings(quick):
    config = ConfigStore()
    config.environment.max_steps = 10
    config.inference.max_turns = 10
    config.inference.max_tokens = 6  # right, down, left, up, and the end of the turn
    config.training.warm_start = "expert"  # the adapter solves the transition table
    config.training.warm_start_steps = 2 if quick else 8  # few: the rest is learned from rewards
    config.training.batch_size = 8 if quick else 48
    config.training.learning_rate = 3e-4
    config.training.lr_schedule = "linear"
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 3
    config.training.eval_episodes = 4 if quick else 16
    return config


def main(quick):
    with Trainer(settings(quick), lake, reward_fn=nearness) as trainer:
        history = trainer.fit()
        for name in ("success", "reward"):
            first, last = (metrics.get(name, 0.0) for metrics in (history[0], history[-1]))
            print(f"{name} {first:.2f} -> {last:.2f} in the last")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
