"""A Gymnasium environment, played in words: FrozenLake, with a reward of one's own.

The adapter puts any registered environment into text: it tells the actions, describes what is
observed, and reads the answer. Here its words are replaced by shorter ones, since the tiny model
reads letter by letter, and the reward, which FrozenLake gives at the goal only, by one that also
counts how near the agent came.

    pip install 'turnwise[gym]'
    python examples/gymnasium_frozen_lake.py            some minutes on two cores
    python examples/gymnasium_frozen_lake.py --quick    seconds: a few steps, to see that it runs

It first watches for a moment how the adapter's own solver walks, which brings it to the goal in
about half of its walks. Reward makes it more as it tries things out, though not steadily; with
the likeliest letters (eval/greedy) it arrives.
"""

import re
import sys

from turnwise import ConfigStore, Trainer
from turnwise.env import GymnasiumEnvironment

SIZE = 4


def lake(config=None):
    """A factory: the trainer makes as many environments as it plays at once."""
    return GymnasiumEnvironment(
        "FrozenLake-v1",
        config,
        is_slippery=False,  # what the adapter does not know goes to gymnasium.make
        task="Go to 4 4.",
        describe=lambda state: f"{state // SIZE + 1} {state % SIZE + 1}",
    )


def nearness(trajectory):
    """One number a turn: a tenth for each step nearer to the goal than ever before, 1 at it."""
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
    config.training.warm_start = "expert"  # the adapter solves the lake's table of transitions
    config.training.warm_start_steps = 2 if quick else 8  # few: the rest it has to find out
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
            print(f"{name} {history[0][name]:.2f} at first, {history[-1][name]:.2f} at last")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
