"""Trains with VERL: its trainer, workers and optimizer, with the same environment.

VERL trains on turnwise episodes: the same prompts, tools, masks and rewards as with `Trainer`.
Other settings of VERL are overrides, as on its command line.

    pip install 'turnwise[verl]'
    python examples/verl_trainer.py              trains; VERL takes about half a minute to start
    python examples/verl_trainer.py --dry-run    prints the complete VERL config, and starts nothing
    python examples/verl_trainer.py --quick      the same, or how to install VERL if it is missing

Without a GPU it runs too, slowly, to try a script before it goes to a cluster.
"""

import argparse
import sys

from turnwise import BaseEnvironment, ConfigStore, MissingExtraError, create_trainer


class Echo(BaseEnvironment):
    """Say the letter that you read."""

    max_steps = 1
    quick = True

    def reset(self):
        self._done = False
        self.letter = self.rng.choice("abcd")
        return f"Say {self.letter}."

    def step(self, action):
        self._done = True
        is_right = self.letter in action
        return "", float(is_right) - 0.01 * len(action), True, {"success": is_right}

    def get_state_description(self):
        return f"the letter is {self.letter}"


def settings():
    config = ConfigStore()
    config.model.model_name = "tiny"  # on GPUs: a Hugging Face id
    config.inference.max_tokens = 4
    config.inference.max_turns = 1
    config.training.adv_estimator = "grpo"
    config.training.batch_size = 4
    config.training.group_size = 4
    config.training.learning_rate = 1e-3
    config.training.steps_per_epoch = 4
    config.training.num_epochs = 1
    return config


def main(arguments):
    is_dry = arguments.quick or arguments.dry_run
    overrides = ["trainer.log_val_generations=0"]  # settings of VERL, as on its command line
    try:
        with create_trainer(settings(), Echo, engine="verl", verl_overrides=overrides) as trainer:
            if is_dry:
                print(trainer.dry_run())
                return
            history = trainer.fit()
    except MissingExtraError as error:
        print(error)
        sys.exit(0 if arguments.quick else 1)
    print(f"reward {history[0]['reward']:.2f} -> {history[-1]['reward']:.2f} in the last")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--quick", action="store_true")
    main(parser.parse_args())
