"""`turnwise train --estimate`: measures two steps, and estimates the whole run."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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


@dataclass
class Measured:
    """A reporter that records the times of two steps, and the sizes of their files."""

    show: Console
    steps: list[Mapping[str, float]] = field(default_factory=list)
    warm_start: list[float] = field(default_factory=list)
    """The time at which each warm-start step ended."""
    checkpoint_bytes: int = 0
    checkpoint_seconds: float = 0.0
    episode_bytes: int = 0
    steps_per_epoch: int = 0

    def begin(self, run: RunInfo) -> None:
        self.warm_start.append(time.perf_counter())

    def step(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(dict(metrics))

    def say(self, text: str) -> None:
        """Ignore messages: the measured run is deleted."""

    def progress(self, what: str, done: int, total: int) -> None:
        if what == "warm start":
            self.warm_start.append(time.perf_counter())

    def end(self, outcome: str) -> None:
        """Nothing to record."""


def estimate_run(config: ConfigStore, console: Console, as_json: bool = False) -> None:
    """Measure in a temporary folder, and print the estimate."""
    with tempfile.TemporaryDirectory(prefix="turnwise-estimate-") as folder:
        measured = Measured(console)
        with working(f"measuring {NUM_STEPS} steps"):
            _measure(config, measured, Path(folder))
    estimate = _estimate(config, measured)
    if as_json:
        print_json(dataclasses.asdict(estimate))
    else:
        console.print("\n".join(_report(config, estimate)))


def _measure(config: ConfigStore, measured: Measured, folder: Path) -> None:
    from turnwise.trainer.trainer import Trainer

    trial = copy.deepcopy(config)
    trial.checkpoint.output_dir = str(folder)
    trial.checkpoint.run_name = "trial"
    trial.logging.sinks = []
    training = trial.training
    training.warm_start_steps = min(training.warm_start_steps, MOST_WARM_START_STEPS)
    with Trainer(trial, reporter=measured, resume="never") as trainer:
        trainer.fit(1, NUM_STEPS)
        measured.steps_per_epoch = trainer.steps_per_epoch
        started = time.perf_counter()
        saved = trainer.save_checkpoint(folder / "saved")
        measured.checkpoint_seconds = time.perf_counter() - started
        measured.checkpoint_bytes = _size(saved)
        measured.episode_bytes = _size(folder / "trial" / "episodes") // NUM_STEPS


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run in seconds, bytes and tokens."""

    num_steps: int
    step_seconds: float
    parts: Mapping[str, float]
    """Seconds of a step by phase."""
    warm_start_seconds: float
    evaluation_seconds: float
    """Seconds of one evaluation."""
    num_evaluations: int
    checkpoint_seconds: float
    checkpoint_bytes: int
    num_checkpoints: int
    """Checkpoints that are kept at the same time."""
    episode_bytes: float
    whole_seconds: float
    memory_gib: float
    sampled_tokens: float


def _estimate(config: ConfigStore, measured: Measured) -> Estimate:
    from turnwise.trainer.lifecycle import DEFAULT_STEPS

    training, checkpoint, per_epoch = config.training, config.checkpoint, measured.steps_per_epoch
    num_steps = training.max_steps or training.num_epochs * per_epoch
    last = measured.steps[-1]
    step = last["time/step"]
    _, *warm_ends = measured.warm_start
    warm = 0.0
    if len(warm_ends) > 1:  # the first step includes one-time costs
        pace = (warm_ends[-1] - warm_ends[0]) / (len(warm_ends) - 1)
        warm = pace * training.warm_start_steps
    evaluation = last.get("time/evaluate", 0.0)
    between_evaluations = training.eval_steps or min(per_epoch, DEFAULT_STEPS)
    num_evaluations = -(-num_steps // between_evaluations) if evaluation else 0
    between_saves = min(checkpoint.save_interval * per_epoch, DEFAULT_STEPS)
    num_saves = -(-num_steps // (checkpoint.save_steps or between_saves))
    saving = measured.checkpoint_seconds * num_saves
    sampled = sum(metrics["num_sampled_tokens"] for metrics in measured.steps) / NUM_STEPS
    most_bytes = config.logging.episodes_gb * 2**30
    return Estimate(
        num_steps=num_steps,
        step_seconds=step,
        parts={name: last[key] for key, name in PHASES.items() if last.get(key, 0) >= 0.01 * step},
        warm_start_seconds=warm,
        evaluation_seconds=evaluation,
        num_evaluations=num_evaluations,
        checkpoint_seconds=measured.checkpoint_seconds,
        checkpoint_bytes=measured.checkpoint_bytes,
        num_checkpoints=min(checkpoint.keep_last_n + 1, num_saves + 1),
        episode_bytes=min(measured.episode_bytes * num_steps, most_bytes),
        whole_seconds=num_steps * step + warm + evaluation * num_evaluations + saving,
        memory_gib=last["time/memory_gib"],
        sampled_tokens=sampled * num_steps,
    )


def _report(config: ConfigStore, found: Estimate) -> list[str]:
    from rich.filesize import decimal

    training = config.training
    trained = found.sampled_tokens * training.update_epochs
    disk = found.num_checkpoints * found.checkpoint_bytes + found.episode_bytes
    parts = ", ".join(f"{name} {_seconds(value)}" for name, value in found.parts.items())
    warm, evaluation = found.warm_start_seconds, found.evaluation_seconds
    rows = {
        "a step": f"{_seconds(found.step_seconds)}: {parts}",
        "warm start": f"{clock_time(warm)} for {count(training.warm_start_steps, 'step')}"
        if warm
        else "",
        "evaluation": f"{_seconds(evaluation)} each, {found.num_evaluations:,} of them"
        if evaluation
        else "",
        "checkpoint": f"{_seconds(found.checkpoint_seconds)} each",
        "whole run": f"{clock_time(found.whole_seconds)} for {count(found.num_steps, 'step')}",
        "memory": f"{found.memory_gib:.2f} GiB at most",
        "tokens": f"{found.sampled_tokens:,.0f} sampled, {trained:,.0f} trained on",
        "disk": f"{decimal(int(disk))}: {found.num_checkpoints} checkpoints of "
        f"{decimal(found.checkpoint_bytes)}, episodes {decimal(int(found.episode_bytes))}",
    }
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
    return [head, "", *(f"{name:<12}{text}" for name, text in rows.items() if text), *notes]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else clock_time(seconds)
