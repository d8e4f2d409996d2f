"""Trains on Ray, on one machine whose raylet freezes after the first step if `freezes` is given."""

import os
import signal
import sys

from scale.rayed import PPO
from trainer.runs import Listener
from trainer.worlds import Memory, small_trainer
from turnwise.errors import import_extra
from turnwise.scale.ray import cluster

ON_RAY = ("ray.use_ray=true", "ray.num_actors=1", "ray.num_learners=1", "checkpoint.save_steps=1")


class Freezer(Listener):
    def step(self, metrics):
        worker = import_extra("ray._private.worker", "ray")
        (raylet,) = worker._global_node.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGSTOP)
        print("frozen", raylet.process.pid, flush=True)


if __name__ == "__main__":
    cluster.SECONDS_TO_ANSWER, cluster.SECONDS_BETWEEN_CALLS = 10.0, 0.5
    reporter = Freezer() if "freezes" in sys.argv else Listener()
    with small_trainer(sys.argv[1], Memory, *PPO, *ON_RAY, reporter=reporter) as trainer:
        print("steps", len(trainer.fit()))
