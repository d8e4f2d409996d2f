"""`turnwise train --estimate`: measures two steps, and estimates the whole run."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from statistics import fmean

from rich.filesize import decimal

from turnwise.cli.common import print_json, say, working
from turnwise.config import ConfigStore
from turnwise.progress.lines import clock_time, count
from turnwise.trainer.reporter import Reporters
from turnwise.trainer.schedule import DEFAULT_STEPS
from turnwise.trainer.trainer import Trainer

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


def estimate_run(config: ConfigStore, as_json: bool) -> None:
    """Measure in a temporary folder, and print the estimate: seconds, bytes and tokens."""
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
    times, warm = warm_start.times, 0.0
    if len(times) > 1:  # the first step includes one-time costs
        warm = (times[-1] - times[0]) / (len(times) - 1) * training.warm_start_steps
    num_evaluations = -(-num_steps // (training.eval_steps or min(per_epoch, DEFAULT_STEPS)))
    evaluations = last.get("time/evaluate", 0.0) * num_evaluations
    episodes = min(episode_bytes // NUM_STEPS * num_steps, config.logging.episodes_gb * 2**30)
    estimate = {
        "num_steps": num_steps,
        "step_seconds": last["time/step"],
        "warm_start_seconds": warm,
        "evaluation_seconds": evaluations,
        "whole_seconds": num_steps * last["time/step"] + warm + evaluations,
        "memory_gib": last["time/memory_gib"],
        "sampled_tokens": fmean(m["num_sampled_tokens"] for m in steps) * num_steps,
        "disk_bytes": int((config.checkpoint.keep_last_n + 1) * checkpoint_bytes + episodes),
    }
    if as_json:
        print_json(estimate)
        return
    phases = [
        f"{name.removeprefix('time/')} {value:.3g} s"
        for name, value in last.items()
        if name.startswith("time/")
        and not name.endswith(("/step", "/memory_gib", "_per_second"))
        and value >= 0.01
    ]
    tokens, disk = estimate["sampled_tokens"], decimal(int(estimate["disk_bytes"]))
    rows = {
        "a step": f"{last['time/step']:.3g} s: {', '.join(phases)}",
        "warm start": f"{clock_time(warm)} for {count(training.warm_start_steps, 'step')}",
        "evaluations": f"{clock_time(evaluations)}, {num_evaluations:,} of them",
        "whole run": f"{clock_time(estimate['whole_seconds'])} for {count(num_steps, 'step')}",
        "memory": f"{last['time/memory_gib']:.2f} GiB at most",
        "tokens": f"{tokens:,.0f} sampled, {tokens * training.update_epochs:,.0f} trained on",
        "disk": f"{disk}: checkpoints of {decimal(checkpoint_bytes)}, and episodes",
    }
    if not times:
        del rows["warm start"]
    if not training.eval_episodes:
        del rows["evaluations"]
    model = config.model.local_path or config.model.model_name
    say(f"{model} on {config.environment_name}, measured on {NUM_STEPS} steps\n")
    say("\n".join(f"{name:<13}{text}" for name, text in rows.items()))
    say("\nThe length of episodes changes as the model learns, and so does the time.")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
