"""A process that trains: `python training_child.py FOLDER [section.name=value ...]`.

What goes wrong in it is said by the environment variables:
DIE_AT_SAVE: "2.7" kills it, as kill -9 does, before the 7th change of its 2nd save to the disk.
SLOW_AT: steps of the environment that block for a minute, "warm start" or "step 2".
Lines on standard output tell how far it is.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from trainer.worlds import Memory, small_trainer
from turnwise.trainer import checkpoint, whole_folders

# Each of these changes what is on the disk, or makes sure of it.
POINTS = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")
SMALL = (
    "training.batch_size=4",
    "training.num_epochs=5",
    "training.steps_per_epoch=1",
    "training.warm_start_steps=2",
    "training.eval_episodes=2",
    "inference.max_tokens=2",
    "checkpoint.run_name=killed",
)
now = {"place": "warm start", "is_saving": False}


class Blocking(Memory):
    """Its steps may block, in threads of their own."""

    quick = False

    def step(self, action):
        if now["place"] == os.environ.get("SLOW_AT"):
            print("blocked", flush=True)
            time.sleep(60)
        return super().step(action)


class Teller:
    """Says on standard output what it is told."""

    def begin(self, run):
        now["place"] = f"step {run.first_step + 1}" if run.first_step else "warm start"
        print(f"begun at {run.first_step}", flush=True)

    def step(self, metrics):
        now["place"] = f"step {metrics['step'] + 1}"
        print(f"step {metrics['step']}", flush=True)

    def say(self, text):
        if text.startswith("warm start"):
            now["place"] = "step 1"
        print(text, flush=True)

    def progress(self, what, done, total):
        print(f"{what} {done}", flush=True)

    def end(self, outcome):
        print(outcome, flush=True)


def die_in_a_save(number, point):
    """Kill this process before the so many-th step on the disk of a save, which is told first."""
    left = {"saves": number, "points": point}
    save_at = checkpoint.save_at

    def counted(*args, **kwargs):
        left["saves"] -= 1
        now["is_saving"] = True
        try:
            return save_at(*args, **kwargs)
        finally:
            now["is_saving"] = False

    def guarded(function):
        def call(*args, **kwargs):
            if now["is_saving"] and left["saves"] == 0:
                left["points"] -= 1
                if left["points"] == 0:
                    print("dies inside a save", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    from turnwise.trainer import checkpoints

    checkpoints.save_at = counted
    for name in POINTS:
        setattr(whole_folders.os, name, guarded(getattr(os, name)))


def main(folder, *overrides):
    if moment := os.environ.get("DIE_AT_SAVE"):
        die_in_a_save(*map(int, moment.split(".")))
    environment = Blocking if "SLOW_AT" in os.environ else Memory
    trainer = small_trainer(Path(folder), environment, *SMALL, *overrides, reporter=Teller())
    trainer.fit()
    print(f"{threading.active_count()} threads", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
