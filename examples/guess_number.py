"""Compares two advantage estimators on a built-in environment: GAE and GRPO.

The agent has to find a number from 1 to 7 in four guesses; each observation says higher or lower.
GAE trains a critic; GRPO plays each start several times and compares the returns.

    python examples/guess_number.py            a few minutes on two cores
    python examples/guess_number.py --quick    a few steps in seconds, to see that it runs

It prints the success of both on held-out seeds, and plots both curves to guess_number.png
(pip install 'turnwise[plot]'). Random play finds the number in half of the games.
"""

import subprocess
import sys

from turnwise import ConfigStore, Trainer


def settings(estimator, quick):
    config = ConfigStore()
    config.environment.name = "guess-number"  # any name that `turnwise envs` lists
    config.environment.params = {"low": 1, "high": 7}
    config.environment.max_steps = 4
    config.inference.max_tokens = 2  # a digit, and the end of the turn
    config.training.adv_estimator = estimator
    config.training.warm_start = "random"  # teaches the format of a guess, not the right one
    config.training.warm_start_steps = 2 if quick else 30
    config.training.warm_start_learning_rate = 3e-3
    # The same number of episodes for both: GRPO plays each start eight times.
    group_size = 8 if estimator == "grpo" else 1
    config.training.group_size = group_size
    config.training.batch_size = (8 if quick else 64) // group_size
    config.training.mini_batch_size = 16
    config.training.update_epochs = 3
    config.training.learning_rate = 1.2e-3
    config.training.warmup_steps = 5
    config.training.lr_schedule = "linear"
    config.training.kl_loss_coef = 0.04
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 6
    config.training.eval_episodes = 8 if quick else 64
    return config


def main(quick):
    folders = []
    for estimator in ("gae", "grpo"):
        with Trainer(settings(estimator, quick)) as trainer:
            history = trainer.fit()
            folders.append(str(trainer.run_folder))
            held_out = history[-1]["eval/greedy/success"]
            print(f"{estimator}: {held_out:.2f} of the held-out numbers found in four guesses")
    draw = [sys.executable, "-m", "turnwise", "plot", *folders, "-o", "guess_number.png"]
    subprocess.run([*draw, "--label", "GAE", "--label", "GRPO"], check=False)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
