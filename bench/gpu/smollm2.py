"""Trains SmolLM2-135M on games with one GPU.

    python bench/gpu/smollm2.py                        every game below, one after another
    python bench/gpu/smollm2.py shop grid-world        these
    python bench/gpu/smollm2.py --model tiny --quick   to see that everything runs; any device

Each run begins with a short imitation of the expert or of random play, just until the model knows
the format of an action and has less than 0.4 of the expert's success; the rest is reinforcement
learning. `turnwise plot RUN -o curve.png` draws the curve of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import add_record_option, record
from turnwise import ConfigStore, Trainer
from turnwise.env import environment_factory, play_episode
from turnwise.env.players import expert_player
from turnwise.trainer.rollout import held_out_tasks
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.warm_start import imitation_batches

MOST_AT_FIRST, ENOUGH = 0.4, 0.8
"""Shares of the expert's success: at most after the warm start, at least at the end."""
EVAL_EPISODES = 256
_FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = {
    "shop": f"{_FOLDER}/shop.py:Shop",
    "alphabet-sort": f"{_FOLDER}/alphabet_sort.py:AlphabetSort",
}
"""The games that are no built-in ones."""


@dataclass(frozen=True)
class Task:
    """A game and its settings."""

    name: str
    settings: Sequence[str] = ()
    wanted_start: tuple[float, float] = (0.12, 0.32)
    """The range of the expert's success in which imitation ends."""


COMMON = [
    "training.adv_estimator=grpo",
    "training.batch_size=32",
    "training.group_size=8",
    "training.mini_batch_size=64",
    "training.update_epochs=2",
    "training.learning_rate=2e-5",
    "training.warmup_steps=3",
    "training.kl_loss_coef=0.01",
    "training.micro_batch_tokens=32768",
    "training.warm_start=expert",
    "training.warm_start_learning_rate=1e-5",
    "training.num_epochs=8",
    "training.steps_per_epoch=20",
    "checkpoint.save_steps=100000",
    "checkpoint.keep_last_n=1",
]
TASKS = {
    task.name: task
    for task in (
        Task("grid-world", ["inference.max_tokens=4", "inference.max_turns=16"]),
        # The expert never buys without a search, so imitating it would leave nothing to explore.
        Task(
            "shop",
            [
                "inference.max_tokens=48",
                "inference.max_turns=8",
                "training.warm_start=random",
                "training.warm_start_steps=45",
            ],
            (0.3, 0.35),
        ),
        Task(
            "alphabet-sort",
            [
                "inference.max_tokens=64",
                "inference.max_turns=3",
                "environment.params.num_names=2",
                "training.warm_start_learning_rate=3e-5",
            ],
        ),
        Task(
            "guess-number",
            [
                "inference.max_tokens=6",
                "inference.max_turns=7",
                "environment.max_steps=7",
                "environment.params.low=1",
                "environment.params.high=100",
            ],
        ),
    )
}


@dataclass
class Outcome:
    """The result of one game: success on held-out seeds, sampled unless named greedy."""

    name: str
    expert: float
    warm_start_steps: int
    start: float
    end: float = 0.0
    greedy: float = 0.0
    best: float = 0.0
    steps: int = 0
    minutes: float = 0.0
    run: str = ""
    settings: list[str] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return self.start < MOST_AT_FIRST * self.expert and self.end >= ENOUGH * self.expert


def expert_success(config: ConfigStore) -> float:
    make = environment_factory(config.environment.name, config.environment)
    tasks = held_out_tasks(EVAL_EPISODES, config.training.seed)
    return sum(play_episode(make(), expert_player, t.seed).success for t in tasks) / len(tasks)


def find_warm_start(config: ConfigStore, wanted: tuple[float, float]) -> tuple[int, float]:
    """Returns the imitation steps that bring the success into this range, or the last below."""
    training, stop = config.training, StopRequest(print)
    with Trainer(config, resume="never") as trainer, trainer._rollout() as rollout:
        parts = trainer.components
        num_steps, last = 0, (1, 0.0)
        steps = range(training.warm_start_steps)
        tasks = rollout.imitation_tasks
        for batch in imitation_batches(training, parts.collector, tasks, steps, stop):
            parts.learner.imitate(batch, training.warm_start_learning_rate)
            num_steps += 1
            if num_steps % 3:
                continue
            parts.publish_weights()
            success = trainer.evaluate(128, greedy=False).get("success", 0.0)
            print(f"  {config.environment.name}: imitation {num_steps}, {success:.2f}", flush=True)
            if success >= wanted[0]:
                return (num_steps, success) if success <= wanted[1] else last
            last = (num_steps, success)
        return last


def interrupt_after(seconds: float) -> threading.Timer:
    """Sends SIGINT after some seconds: the run saves and ends."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


def learn(
    task: Task, model: str, folder: Path, settings: Sequence[str], most_minutes: float
) -> Outcome:
    started = time.perf_counter()
    timer = interrupt_after(60 * most_minutes)
    chosen = [*COMMON, *task.settings, *settings]
    config = ConfigStore.load(
        None, [f"environment.name={EXAMPLES.get(task.name, task.name)}", *chosen]
    )
    config.model.model_name = model
    config.checkpoint.output_dir = str(folder)
    expert = expert_success(config)
    low, high = (expert * share for share in task.wanted_start)
    num_steps, _ = find_warm_start(config, (low, high))
    config.training.warm_start_steps = num_steps
    config.training.eval_episodes = EVAL_EPISODES
    with Trainer(config, resume="never") as trainer:
        with contextlib.suppress(KeyboardInterrupt):
            trainer.fit()
        history = trainer.metrics_history
    timer.cancel()
    evaluations = [m["eval/sampled/success"] for m in history if "eval/sampled/success" in m]
    return Outcome(
        task.name,
        expert,
        num_steps,
        history[0].get("success", 0.0),
        evaluations[-1] if evaluations else history[-1].get("success", 0.0),
        next((m[key] for m in reversed(history) if (key := "eval/greedy/success") in m), 0.0),
        max([*evaluations, 0.0]),
        len(history),
        (time.perf_counter() - started) / 60,
        str(trainer.run_folder),
        list(chosen),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="GAME", help=", ".join(TASKS))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of each game")
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2"))
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--quick", action="store_true", help="two small steps of each")
    add_record_option(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"there is no {unknown.pop()} here; there are {', '.join(TASKS)}")
    settings: list[str] = list(options.set)
    if options.quick:
        settings += [
            "training.warm_start_steps=3",
            "training.batch_size=4",
            "training.num_epochs=1",
            "training.steps_per_epoch=2",
        ]
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{date.today()}, {name}, torch {torch.__version__}, {options.model}", flush=True)
    rows: list[dict[str, Any]] = []
    is_enough = True
    for key in options.tasks or TASKS:
        found = learn(TASKS[key], options.model, options.out / key, settings, options.minutes)
        is_enough &= found.is_enough
        rows.append(vars(found))
        print(
            f"{found.name}: expert {found.expert:.2f}, after {found.warm_start_steps} steps of "
            f"imitation {found.start:.2f}, after {found.steps} of reinforcement {found.end:.2f} "
            f"sampled, {found.greedy:.2f} greedy (best {found.best:.2f}); "
            f"{found.minutes:.1f} minutes; {found.run}",
            flush=True,
        )
        if options.record and not options.quick:
            figures = {
                "after imitation": found.start,
                "end, sampled": found.end,
                "end, greedy": found.greedy,
                "steps": found.steps,
                "minutes": found.minutes,
            }
            record(f"gpu/smollm2/{found.name}", figures, "cuda")
        (options.out / key / "outcome.json").write_text(json.dumps(vars(found), indent=1))
    return 0 if is_enough else 1


if __name__ == "__main__":
    raise SystemExit(main())
