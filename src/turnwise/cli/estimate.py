"""`turnwise train --estimate`: measures two steps, and estimates the whole run."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.common import print_json, working
from turnwise.config import ConfigStore
from turnwise.progress.run_state import clock_time, count, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.trainer.reporter import RunInfo

NUM_STEPS = 2
MOST_WARM_START_STEPS = 20
# The phases of a step: the metric, and its label.
PHASES = {
    "time/generate": "generating",
    "time/environment": "environment",
    "time/tools": "tools",
    "time/reward": "reward",
    "time/log_probs": "log-probs",
    "time/update": "update",
    "time/idle": "waiting",
}


class _Times:
    """A reporter that records the metrics of steps, and when each warm-start step ended."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.warm_start: list[float] = []

    def begin(self, run: RunInfo) -> None: ...

    def step(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(dict(metrics))

    def say(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "warm start":
            self.warm_start.append(time.perf_counter())

    def end(self, outcome: str) -> None: ...


def estimate_run(config: ConfigStore, console: Console, as_json: bool = False) -> None:
    """Measure in a temporary folder, and print the estimate."""
    with (
        tempfile.TemporaryDirectory(prefix="turnwise-estimate-") as folder,
        working(f"measuring {NUM_STEPS} steps"),
    ):
        estimate = _measure(config, Path(folder))
    if as_json:
        print_json(estimate)
    else:
        console.print("\n".join(_report(config, estimate)))


def _measure(config: ConfigStore, folder: Path) -> dict[str, Any]:
    """Return the estimated cost of the whole run in seconds, bytes and tokens."""
    from turnwise.trainer.lifecycle import DEFAULT_STEPS
    from turnwise.trainer.trainer import Trainer

    training, checkpoint, times = config.training, config.checkpoint, _Times()
    trial = copy.deepcopy(config)
    trial.checkpoint.output_dir = str(folder)
    trial.checkpoint.run_name = "trial"
    trial.logging.sinks = []
    trial.training.warm_start_steps = min(training.warm_start_steps, MOST_WARM_START_STEPS)
    with Trainer(trial, reporter=times, resume="never") as trainer:
        trainer.fit(1, NUM_STEPS)
        per_epoch = trainer.steps_per_epoch
        started = time.perf_counter()
        saved = trainer.save_checkpoint(folder / "saved")
        checkpoint_seconds = time.perf_counter() - started
    num_steps = training.max_steps or training.num_epochs * per_epoch
    last = times.steps[-1]
    step = last["time/step"]
    warm = 0.0
    if len(times.warm_start) > 1:  # the first step includes one-time costs
        pace = (times.warm_start[-1] - times.warm_start[0]) / (len(times.warm_start) - 1)
        warm = pace * training.warm_start_steps
    evaluation = last.get("time/evaluate", 0.0)
    between_evaluations = training.eval_steps or min(per_epoch, DEFAULT_STEPS)
    num_evaluations = -(-num_steps // between_evaluations) if evaluation else 0
    between_saves = min(per_epoch, DEFAULT_STEPS)
    if checkpoint.save_interval is not None:
        between_saves = checkpoint.save_interval * per_epoch
    num_saves = -(-num_steps // (checkpoint.save_steps or between_saves))
    whole = num_steps * step + warm + evaluation * num_evaluations + checkpoint_seconds * num_saves
    sampled = sum(metrics["num_sampled_tokens"] for metrics in times.steps) / NUM_STEPS
    episode_bytes = _size(folder / "trial" / "episodes") // NUM_STEPS * num_steps
    return {
        "num_steps": num_steps,
        "step_seconds": step,
        "parts": {  # seconds of a step by phase
            name: last[key] for key, name in PHASES.items() if last.get(key, 0) >= 0.01 * step
        },
        "warm_start_seconds": warm,
        "evaluation_seconds": evaluation,  # of one evaluation
        "num_evaluations": num_evaluations,
        "checkpoint_seconds": checkpoint_seconds,
        "checkpoint_bytes": _size(saved),
        "num_checkpoints": min(checkpoint.keep_last_n + 1, num_saves + 1),  # kept at a time
        "episode_bytes": min(episode_bytes, config.logging.episodes_gb * 2**30),
        "whole_seconds": whole,
        "memory_gib": last["time/memory_gib"],
        "sampled_tokens": sampled * num_steps,
    }


def _report(config: ConfigStore, estimate: Mapping[str, Any]) -> list[str]:
    from rich.filesize import decimal

    training, tokens = config.training, estimate["sampled_tokens"]
    parts = ", ".join(f"{name} {_seconds(value)}" for name, value in estimate["parts"].items())
    rows = {"a step": f"{_seconds(estimate['step_seconds'])}: {parts}"}
    if warm := estimate["warm_start_seconds"]:
        rows["warm start"] = f"{clock_time(warm)} for {count(training.warm_start_steps, 'step')}"
    if evaluation := estimate["evaluation_seconds"]:
        rows["evaluation"] = f"{_seconds(evaluation)} each, {estimate['num_evaluations']:,} of them"
    rows["checkpoint"] = f"{_seconds(estimate['checkpoint_seconds'])} each"
    steps = count(estimate["num_steps"], "step")
    rows["whole run"] = f"{clock_time(estimate['whole_seconds'])} for {steps}"
    rows["memory"] = f"{estimate['memory_gib']:.2f} GiB at most"
    rows["tokens"] = f"{tokens:,.0f} sampled, {tokens * training.update_epochs:,.0f} trained on"
    number, size = estimate["num_checkpoints"], estimate["checkpoint_bytes"]
    episodes = int(estimate["episode_bytes"])
    rows["disk"] = (
        f"{decimal(number * size + episodes)}: {number} checkpoints of {decimal(size)}, episodes "
        f"{decimal(episodes)}"
    )
    model = config.model.local_path or config.model.model_name
    head = (
        f"{one_line(model)} on {one_line(config.environment_name)}, measured on {NUM_STEPS} steps"
    )
    notes = ["", "The length of episodes changes as the model learns, and so does the time."]
    if training.warm_start is not None and training.warm_start_steps > MOST_WARM_START_STEPS:
        notes.append(
            f"The measured episodes follow {MOST_WARM_START_STEPS} steps of warm start instead of "
            f"{training.warm_start_steps:,}."
        )
    return [head, "", *(f"{name:<12}{text}" for name, text in rows.items()), *notes]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else clock_time(seconds)
