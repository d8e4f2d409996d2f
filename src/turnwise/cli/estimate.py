"""`turnwise train --estimate`: measures two steps, and estimates the whole run."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.common import print_json, working
from turnwise.config import ConfigStore
from turnwise.progress.lines import clock_time, count, one_line
from turnwise.trainer.reporter import Reporters

if TYPE_CHECKING:
    from rich.console import Console

NUM_STEPS = 2
MOST_WARM_START_STEPS = 20


class _WarmStartTimes(Reporters):
    """Prints nothing, and records when each step of the warm start ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "warm start":
            self.times.append(time.perf_counter())


def estimate_run(config: ConfigStore, console: Console, as_json: bool = False) -> None:
    """Measure in a temporary folder, and print the estimate: seconds, bytes and tokens."""
    from rich.filesize import decimal

    from turnwise.trainer.trainer import DEFAULT_STEPS, Trainer

    training, warm_start, trial = config.training, _WarmStartTimes(), copy.deepcopy(config)
    trial.checkpoint.run_name = "trial"
    trial.logging.sinks, trial.logging.wandb = [], {}
    trial.training.warm_start_steps = min(training.warm_start_steps, MOST_WARM_START_STEPS)
    with (
        tempfile.TemporaryDirectory(prefix="turnwise-estimate-") as folder,
        working(f"measuring {NUM_STEPS} steps"),
    ):
        trial.checkpoint.output_dir = folder
        with Trainer(trial, reporter=warm_start, resume="never") as trainer:
            trainer.fit(1, NUM_STEPS)
            steps, per_epoch = trainer.metrics_history, trainer.steps_per_epoch
            saved = trainer.save_checkpoint(Path(folder, "saved"))
        checkpoint_bytes = _size(saved)
        episode_bytes = _size(Path(folder, "trial", "episodes"))
    last = steps[-1]
    num_steps = training.max_steps or training.num_epochs * per_epoch
    warm = 0.0
    times = warm_start.times
    if len(times) > 1:  # the first step includes one-time costs
        pace = (times[-1] - times[0]) / (len(times) - 1)
        warm = pace * training.warm_start_steps
    between_evaluations = training.eval_steps or min(per_epoch, DEFAULT_STEPS)
    num_evaluations = -(-num_steps // between_evaluations)
    evaluations = last.get("time/evaluate", 0.0) * num_evaluations
    sampled = sum(metrics["num_sampled_tokens"] for metrics in steps) / NUM_STEPS
    episodes = min(episode_bytes // NUM_STEPS * num_steps, config.logging.episodes_gb * 2**30)
    disk = int((config.checkpoint.keep_last_n + 1) * checkpoint_bytes + episodes)
    estimate = {
        "num_steps": num_steps,
        "step_seconds": last["time/step"],
        "warm_start_seconds": warm,
        "evaluation_seconds": evaluations,
        "whole_seconds": num_steps * last["time/step"] + warm + evaluations,
        "memory_gib": last["time/memory_gib"],
        "sampled_tokens": sampled * num_steps,
        "disk_bytes": disk,
    }
    if as_json:
        print_json(estimate)
        return
    phases = {
        name.removeprefix("time/"): value
        for name, value in last.items()
        if name.startswith("time/")
        and name not in ("time/step", "time/memory_gib")
        and not name.endswith("_per_second")
    }
    parts = ", ".join(f"{name} {value:.3g} s" for name, value in phases.items() if value >= 0.01)
    tokens = estimate["sampled_tokens"]
    rows = {
        "a step": f"{last['time/step']:.3g} s: {parts}",
        "warm start": f"{clock_time(warm)} for {count(training.warm_start_steps, 'step')}",
        "evaluations": f"{clock_time(evaluations)}, {num_evaluations:,} of them",
        "whole run": f"{clock_time(estimate['whole_seconds'])} for {count(num_steps, 'step')}",
        "memory": f"{estimate['memory_gib']:.2f} GiB at most",
        "tokens": f"{tokens:,.0f} sampled, {tokens * training.update_epochs:,.0f} trained on",
        "disk": f"{decimal(disk)}: checkpoints of {decimal(checkpoint_bytes)}, and episodes",
    }
    if not times:
        del rows["warm start"]
    model = one_line(config.model.local_path or config.model.model_name)
    environment = one_line(config.environment_name)
    console.print(f"{model} on {environment}, measured on {NUM_STEPS} steps\n")
    for name, text in rows.items():
        console.print(f"{name:<13}{text}")
    console.print("\nThe length of episodes changes as the model learns, and so does the time.")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
