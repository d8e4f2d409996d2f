"""Trains on a Ray cluster: only the settings change, not the environment.

Episode workers, each with a copy of the model, play the episodes; learner workers share each
update. A cluster is started on this machine and stopped at the end, or `--address` names a
running one. A worker that dies is replaced within the step.

    pip install 'turnwise[ray]'
    python examples/ray_cluster.py                     two episode workers and two learners, here
    python examples/ray_cluster.py --address auto      on a running cluster
    python examples/ray_cluster.py --quick             a few steps; Ray itself takes some seconds

With the same seed and settings the metrics are those of one process, up to rounding. On two cores
it is no faster.
"""

import argparse

from turnwise import BaseEnvironment, ConfigStore, create_trainer


class Echo(BaseEnvironment):
    """Say the letter that you read."""

    max_steps = 1
    quick = True

    def reset(self):
        self._done = False
        self.letter = self.rng.choice("abcd")
        return self.letter

    def step(self, action):
        self._done = True
        is_right = action.strip() == self.letter
        return "", float(is_right), True, {"success": is_right}

    def get_state_description(self):
        return f"the letter is {self.letter}"

    def sample_action(self, rng):
        return rng.choice("abcd")


def settings(quick, address):
    config = ConfigStore()
    config.inference.max_tokens = 2
    config.training.warm_start = "random"
    config.training.warm_start_steps = 2 if quick else 20
    config.training.batch_size = 8 if quick else 64
    config.training.update_epochs = 2
    config.training.learning_rate = 5e-4
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 4
    config.ray.num_actors = 2  # episode workers
    config.ray.num_learners = 1 if quick else 2  # learner workers
    config.ray.gpus_per_worker = 0.0  # or 1.0; 0.5 lets two workers share one
    config.ray.address = address
    return config


def main(arguments):
    config = settings(arguments.quick, arguments.address)
    with create_trainer(config, Echo, engine="ray") as trainer:  # engine="local": one process
        history = trainer.fit()
        first, last = (metrics.get("success", 0.0) for metrics in (history[0], history[-1]))
        print(f"success {first:.2f} -> {last:.2f} in the last")


if __name__ == "__main__":  # Ray's workers must not run this
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", help="auto, or host:port of a running cluster")
    parser.add_argument("--quick", action="store_true")
    main(parser.parse_args())
