"""Processes that train, and what may happen to them.

They are forked from a server that has imported all and computed nothing, so that each begins
within milliseconds.
"""

import asyncio
import os
import re
import signal
import sys
import time

import torch

from forked import fork_server
from trainer.worlds import Memory, Uneven, small_trainer, training
from turnwise import whole_files
from turnwise.runs import checkpoints

# Each of these changes what is on the disk, or makes sure of it.
POINTS = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")
SMALL = (
    *training("batch_size=4 num_epochs=5 steps_per_epoch=1 warm_start_steps=2 eval_episodes=2"),
    "inference.max_tokens=2",
    "checkpoint.run_name=killed",
)
BLOCKED_SECONDS = 600
"""Far longer than anything takes on a busy machine."""
now = {
    "place": "warm start",
    "slow": None,
    "wait_at": None,
    "is_saving": False,
    "is_stopping": False,
}


def say(text):
    """One line in one piece: threads and signal handlers speak at the same time."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


class Blocking(Memory):
    """Its steps may block, in threads of their own."""

    quick = False

    def step(self, action):
        if now["place"] == now["slow"]:
            say("blocked")
            time.sleep(BLOCKED_SECONDS)
        return super().step(action)


class BlockingQuick(Blocking):
    """The same on the event loop itself."""

    quick = True


class HoldingGil(Memory):
    """Matches a regular expression that backtracks for years, and does not release the GIL."""

    def step(self, action):
        if now["place"] == now["slow"]:
            say("blocked")
            re.match(r"(a+)+$", "a" * 40 + "b")
        return super().step(action)


class HoldingGilInThread(HoldingGil):
    quick = False


class BlockingAsync(Blocking):
    """Blocks the event loop from a coroutine."""

    async def step(self, action):
        return super().step(action)


class Stubborn(Memory):
    """Ignores that it is cancelled."""

    async def step(self, action):
        while now["place"] == now["slow"]:
            say("blocked")
            try:
                await asyncio.sleep(BLOCKED_SECONDS)
            except asyncio.CancelledError:
                say("ignored")
        return super().step(action)


WORLDS = {
    "uneven": Uneven,
    "thread": Blocking,
    "quick": BlockingQuick,
    "async": BlockingAsync,
    "gil": HoldingGil,
    "gil in a thread": HoldingGilInThread,
    "stubborn": Stubborn,
}


class Teller:
    """Says on standard output what it is told."""

    def begin(self, run):
        now["place"] = f"step {run.first_step + 1}" if run.first_step else "warm start"
        say(f"begun at {run.first_step}")

    def step(self, metrics):
        now["place"] = f"step {metrics['step'] + 1}"
        say(f"step {metrics['step']}")

    def say(self, text):
        if text.startswith("warm start"):
            now["place"] = "step 1"
        now["is_stopping"] |= text.startswith("stopping")
        say(text)

    def progress(self, what, done, total):
        say(f"{what} {done}")
        while now["wait_at"] == f"{what} {done}" and not now["is_stopping"]:
            time.sleep(0.01)

    def end(self, outcome):
        say(outcome)


def die_in_a_save(number, point):
    """Kill this process before the so many-th step on the disk of a save, which is told first."""
    left = {"saves": number, "points": point}
    write_folder = checkpoints.write_folder

    def counted(*args, **kwargs):
        left["saves"] -= 1
        now["is_saving"] = True
        try:
            return write_folder(*args, **kwargs)
        finally:
            now["is_saving"] = False

    def guarded(function):
        def call(*args, **kwargs):
            if now["is_saving"] and left["saves"] == 0:
                left["points"] -= 1
                if left["points"] == 0:
                    say("dies inside a save")
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    checkpoints.write_folder = counted
    for name in POINTS:
        setattr(whole_files.os, name, guarded(getattr(os, name)))


def delay_saves():
    """Let the save of a run that stops never end."""
    rename = os.rename

    def slowly(*args, **kwargs):
        if now["is_stopping"]:
            say("saving")
            time.sleep(BLOCKED_SECONDS)
        return rename(*args, **kwargs)

    whole_files.os.rename = slowly


def train(
    folder,
    die_at_save=None,
    slow_at=None,
    world="thread",
    slow_save=False,
    wait_at=None,
    settings=(),
    resume="auto",
):
    """Train in `folder`, and say on standard output how far it is.

    `die_at_save=(2, 7)`: killed, as by kill -9, before the 7th change that its 2nd save makes on
    the disk. `slow_at`: where steps of the environment block, "warm start" or "step 2"; `world` is
    how, or "uneven" for steps of varying length. `slow_save`: the save of a run that is to stop
    never ends. `wait_at`: where it waits until it is to stop,
    such as "episodes 2". `settings` are settings in addition to `SMALL`. `resume` is the trainer's.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    torch.set_num_threads(1)
    if die_at_save is not None:
        die_in_a_save(*die_at_save)
    if slow_save:
        delay_saves()
    now["slow"], now["wait_at"] = slow_at, wait_at
    environment = Memory if slow_at is None and world != "uneven" else WORLDS[world]
    given = {"reporter": Teller(), "resume": resume}
    with small_trainer(folder, environment, *SMALL, *settings, **given) as trainer:
        trainer.fit()


def _train_telling(pipe, *args, **kwargs):
    for stream in (1, 2):
        os.dup2(pipe.fileno(), stream)
    train(*args, **kwargs)


class Child:
    """A process that runs `train` with these arguments."""

    def __init__(self, folder, *args, **kwargs):
        context = fork_server()
        self.lines = []
        self._reader, writer = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_train_telling, args=(writer, folder, *args), kwargs=kwargs, daemon=True
        )
        self._process.start()
        writer.close()
        self._said = os.fdopen(os.dup(self._reader.fileno()))

    def hear(self, wanted):
        """Wait until it says a line that begins so."""
        for line in self._said:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(wanted):
                return
        raise AssertionError("\n".join(self.lines))

    def send(self, number):
        os.kill(self._process.pid, number)

    def end(self):
        """How it ended, as a shell has it; what it said is in `lines`."""
        self.lines += self._said.read().splitlines()
        self._process.join(120)
        code = self._process.exitcode
        return 128 - code if code < 0 else code


def finish(folder, **kwargs):
    """Start it without any disturbance; what it said."""
    child = Child(folder, **kwargs)
    assert child.end() == 0, "\n".join(child.lines)
    assert child.lines[-1] == "finished"
    return child.lines
