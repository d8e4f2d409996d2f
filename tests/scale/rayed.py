"""Runs that are the same on Ray and in one process, and worlds in which workers die."""

import dataclasses
import os
import signal
from pathlib import Path

import torch

from agents.serving import ask
from trainer.worlds import Memory, small_trainer, training
from turnwise.algo.losses.policy import compute_policy_loss
from turnwise.learner.base import placed_weights

PPO = (
    *training(
        "adv_estimator=gae batch_size=6 mini_batch_size=4 update_epochs=2 num_epochs=1 "
        "steps_per_epoch=3 warm_start_steps=2 learning_rate=1e-4 warm_start_learning_rate=1e-4"
    ),
    "inference.max_tokens=2",
)
ON_RAY = ("ray.use_ray=true", "ray.num_actors=2", "ray.num_learners=2")


TESTS = os.environ.setdefault("TURNWISE_TESTS_PID", str(os.getpid()))
"""The one process that must not be killed: it plays, too, in a warm start."""


class Deadly(Memory):
    """Kills the worker that plays it at one of its steps, where a file says so: once a file.

    It does not close well, which is told in a worker's log.
    """

    def step(self, action):
        burn(Path(self.config.get("fuses", "/nowhere")), f"episode{self.step_count}")
        return super().step(action)

    def close(self):
        if str(os.getpid()) != TESTS:
            raise OSError("the door is stuck")


def chats(task, llm):
    """An agent with two conversations; its worker dies of a fuse in the task's folder."""
    said = []
    for text in ("Say it.", f"Say {task['word']}."):
        body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
        said.append(ask(llm, "/chat/completions", body)[1]["choices"][0]["message"]["content"])
        burn(Path(task.get("fuses", "/nowhere")), "agent")
    return {"length": sum(map(len, said)) / 10, "success": said[0] != said[1]}


def echoes(messages, tools):
    return messages[-1]["content"][4]


class AlwaysDeadly(Memory):
    def step(self, action):
        die()


def die():
    assert str(os.getpid()) != TESTS
    os.kill(os.getpid(), signal.SIGKILL)


def burn(folder, kind):
    """End this worker if a fuse of this kind is left."""
    if str(os.getpid()) == TESTS:
        return
    for fuse in sorted(folder.glob(f"{kind}-*")):
        try:
            fuse.unlink()
        except FileNotFoundError:
            continue  # another process took it
        die()


def deadly_loss(folder):
    """PPO's loss; in the middle of an update the learner dies, once for each fuse."""

    def loss(*arguments, **options):
        burn(Path(folder), "update")
        return compute_policy_loss(*arguments, **options)

    return loss


def lay_fuses(folder, kind, number):
    for count in range(number):
        (folder / f"{kind}-{count}").touch()


def train(folder, environment, *overrides, before=lambda trainer: None, **options):
    """Train to the end: the metrics, the weights, the episodes' folder."""
    with small_trainer(folder, environment, *PPO, *overrides, **options) as trainer:
        before(trainer)
        history = trainer.fit()
        weights = weights_of(trainer.components.learner)
    return history, weights, trainer.run_folder


def weights_of(learner):
    """A copy of the trained weights, wherever they are."""
    shards = {}
    for name, _, rows in placed_weights(learner):
        shards.setdefault(name, []).append(rows.detach().clone())
    return {name: torch.cat(found) for name, found in shards.items()}


def largest_difference(left, right):
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def arm(fuses):
    """For `train`: learners die of these fuses."""

    def before(trainer):
        learner = trainer.components.learner
        learner.options = dataclasses.replace(learner.options, policy_loss=deadly_loss(fuses))

    return before
