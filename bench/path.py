"""How long the way through the code is: the files of one step, and the calls of two walks.

    python bench/path.py

The second step of a small run on the CPU is traced with `sys.setprofile`, so that imports do not
count. A walk goes on where a task was made; the engine's thread has a walk of its own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import turnwise
from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.trainer import Callback

SOURCE = str(Path(turnwise.__file__).parent)
SETTINGS = {
    "training.batch_size": 4,
    "training.num_epochs": 1,
    "training.steps_per_epoch": 2,
    "inference.max_tokens": 4,
}
Call = tuple[str, str]


ENDS = {
    "an episode": ("episode/episode.py", "run"),
    "the engine": ("inference/worker.py", "sample"),
    "a token": ("inference/local/engine.py", "_draw_tokens"),
}
"""The files and functions in which the walks end."""


class OneTurn(BaseEnvironment):
    """Rewards long answers."""

    max_steps = 1

    def reset(self) -> str:
        self._done = False
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._done = True
        return "", float(len(action)), True, {}

    def get_state_description(self) -> str:
        return "one turn"


class Tracer:
    """Which of our files run, and by which calls an episode and a request are reached."""

    def __init__(self) -> None:
        self.is_counting = False
        self.files: set[str] = set()
        self.walks: dict[str, list[Call]] = {}
        self._makers: dict[FrameType, list[Call]] = {}
        """The walk to the call that made a task, by the frame of the task's coroutine."""

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not self.is_counting or not code.co_filename.startswith(SOURCE):
            return
        self.files.add(code.co_filename)
        if code.co_name == "submit":  # the episodes' own thread makes the task
            self._makers[frame.f_locals["coroutine"].cr_frame] = self.walk(frame.f_back)
        for name, (file, function) in ENDS.items():
            if code.co_name == function and code.co_filename.endswith(file):
                self.walks.setdefault(name, self.walk(frame))

    def walk(self, frame: FrameType | None) -> list[Call]:
        calls: list[Call] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
                calls.append((code.co_filename[len(SOURCE) + 1 :], code.co_qualname))
            if frame in self._makers:
                return [*self._makers[frame], *reversed(calls)]
            frame = frame.f_back
        return calls[::-1]

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        """A task factory that remembers where a task was made."""
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and frame not in self._makers:
            self._makers[frame] = self.walk(sys._getframe(1))
        return asyncio.Task(coroutine, loop=loop, **options)


def after(calls: list[Call], function: str) -> list[Call]:
    """The calls after the last one of this function."""
    names = [name for _, name in calls]
    return calls[len(names) - names[::-1].index(function) :]


def main() -> None:
    tracer = Tracer()
    new_event_loop = asyncio.new_event_loop

    def traced_event_loop() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        loop.set_task_factory(tracer.make_task)
        return loop

    asyncio.new_event_loop = traced_event_loop

    class CountSecondStep(Callback):
        def on_step(self, trainer: Trainer, metrics: Any) -> None:
            tracer.is_counting = not tracer.is_counting

    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"{key}={value}" for key, value in SETTINGS.items()]
        config = ConfigStore.load(overrides=[*overrides, f"checkpoint.output_dir={folder}/run"])
        threading.setprofile(tracer.trace)
        sys.setprofile(tracer.trace)
        with Trainer(config, OneTurn, reporter=None, callbacks=[CountSecondStep()]) as trainer:
            trainer.fit()
        sys.setprofile(None)
    print(f"one step passes {len(tracer.files)} files")
    for title, calls in (
        ("fit to an episode", after(tracer.walks["an episode"], "Trainer.fit")),
        ("an episode to the engine", after(tracer.walks["the engine"], "Episode._play")),
        ("the engine's thread to a token", after(tracer.walks["a token"], "WorkerEngine._work")),
    ):
        print(f"\n{title}: {len(calls)} calls")
        for file, function in calls:
            print(f"  {file}  {function}")


if __name__ == "__main__":
    main()
