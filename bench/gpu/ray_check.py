"""Trains on Ray with one GPU that two episode workers, with their engines, and a learner share.

    python bench/gpu/ray_check.py            SmolLM2-135M in bfloat16
    python bench/gpu/ray_check.py --quick    tiny, to see that everything runs; any device

Runs the same few steps in one process and on Ray, synchronous and one step off-policy. The learner
and each engine have a copy of the model; the log-prob gap shows whether engines got new weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import add_record_option, record
from turnwise import ConfigStore, create_trainer

NUM_STEPS = 6
MOST_GAP = 1.0
"""The largest log-prob gap that bfloat16 explains; with stale weights it is larger."""


def settings(folder: str, model: str, gpus: float, max_staleness: int | None) -> ConfigStore:
    config = ConfigStore()
    config.model.model_name = model
    config.inference.max_turns, config.inference.max_tokens = 4, 8
    config.environment.name = "guess-number"
    training = config.training
    training.adv_estimator, training.group_size, training.batch_size = "grpo", 8, 8
    training.learning_rate = 1e-5
    training.num_epochs, training.steps_per_epoch = 1, NUM_STEPS
    config.checkpoint.output_dir = folder
    if max_staleness is not None:
        config.ray.use_ray, training.max_staleness = True, max_staleness
        config.ray.num_actors, config.ray.gpus_per_worker = 2, gpus
    return config


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on Ray with one GPU.")
    parser.add_argument("--quick", action="store_true")
    add_record_option(parser)
    options = parser.parse_args()
    has_gpu = torch.cuda.is_available() and not options.quick
    model = "tiny" if options.quick else "smollm2-135m"
    where = torch.cuda.get_device_name() if has_gpu else "CPU"
    print(f"{date.today()}, {where}, torch {torch.__version__}, {model}", flush=True)
    is_fine, figures = True, {}
    ways = {"one process": None, "sync": 0, "max_staleness 1": 1}
    for way, max_staleness in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            config = settings(folder, model, 0.3 if has_gpu else 0.0, max_staleness)
            trainer = create_trainer(config, "guess-number")
            history = trainer.fit()
            trainer.cleanup()
        seconds, playing, learning = (
            median(row[f"time/{part}"] for row in history[2:])
            for part in ("step", "generate", "update")
        )
        gap = max(row["gap_max"] for row in history)
        num_episodes = sum(row["num_episodes"] for row in history)
        is_right = len(history) == NUM_STEPS and num_episodes == NUM_STEPS * 64 and gap < MOST_GAP
        is_fine &= is_right
        figures[f"{way} s"] = seconds
        figures["largest gap"] = max(gap, figures.get("largest gap", 0.0))
        print(
            f"{way}: {len(history)} steps of {seconds:.2f} s "
            f"(playing {playing:.2f}, update {learning:.2f}), "
            f"{num_episodes:g} episodes, largest log-prob gap {gap:.3f}: "
            f"{'pass' if is_right else 'FAIL'}",
            flush=True,
        )
    if options.record and not options.quick:
        record("gpu/ray/SmolLM2-135M, 64 episodes", figures, "cuda")
    return 0 if is_fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
