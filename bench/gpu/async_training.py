"""Trains a model of a real shape with slow environments on one GPU: who waits, by `max_staleness`.

    python bench/gpu/async_training.py                 Qwen2.5-1.5B, max_staleness 0 and 4
    python bench/gpu/async_training.py --shape tiny    to see that everything runs; any device

The grid-world and the shop, whose tools are called in its steps, sleep by a log-normal law (median
0.05 s, 99 % below 1 s). Weights are random, so a run first imitates the expert, untimed. The busy
shares are of the time of the steps: the engine's is the time in which it had turns to sample, the
learner's that of updates.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import math
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from real_shapes import SHAPES, make_model

from results import add_record_option, record
from turnwise import ConfigStore, Trainer
from turnwise.env import GridWorldEnvironment
from turnwise.models import load_tokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEDIAN, ALMOST_ALL = 0.05, 1.0
SPREAD = math.log(ALMOST_ALL / MEDIAN) / 2.326


class Slow:
    """Makes the steps of an environment sleep, once the warm start is over."""

    is_slow = False

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if Slow.is_slow:
            await asyncio.sleep(MEDIAN * random.lognormvariate(0.0, SPREAD))
        found: tuple[str, float, bool, dict[str, Any]] = super().step(action)  # type: ignore[misc]
        return found


class SlowGridWorld(Slow, GridWorldEnvironment): ...  # type: ignore[misc]


class SlowShop(Slow, importlib.import_module("shop").Shop): ...  # type: ignore[misc]


class IsOver(Exception):
    """Ends a run without a checkpoint, which takes long and is not what is timed."""


@dataclass
class Clock:
    """A reporter that keeps the time, and the engine's idle time, after each step."""

    updates: int
    trainer: Trainer | None = None
    seen: list[tuple[float, float]] = field(default_factory=list)

    def begin(self, run: Any) -> None: ...

    def step(self, metrics: Any) -> None:
        assert self.trainer is not None
        engine: Any = self.trainer.components.engine
        self.seen.append((time.perf_counter(), engine.idle_seconds))
        if len(self.seen) == self.updates:
            raise IsOver

    def say(self, text: str) -> None:
        Slow.is_slow |= text.startswith("warm start")

    def progress(self, what: str, done: int, total: int) -> None: ...

    def end(self, outcome: str) -> None: ...


def train(
    environment: type, max_staleness: int, args: argparse.Namespace, own_stream: bool
) -> dict[str, float]:
    model, tokenizer = make_model(args.shape, DEVICE), load_tokenizer("tiny")
    if DEVICE == "cpu":
        model = model.float()
    config = ConfigStore.load(
        overrides=[
            f"checkpoint.output_dir={tempfile.mkdtemp()}",
            f"training.max_staleness={max_staleness}",
            "training.adv_estimator=grpo",
            "training.group_size=8",
            "training.batch_size=8",
            "training.learning_rate=1e-6",
            "training.max_log_prob_gap=null",
            "training.warm_start=expert",
            f"training.warm_start_steps={args.warm_start_steps}",
            "training.warm_start_learning_rate=1e-4",
            "inference.max_tokens=24",
            "inference.max_turns=8",
            "logging.level=error",
        ]
    )
    if max_staleness:
        config.inference.options = {"own_stream": own_stream}
    clock, Slow.is_slow = Clock(args.updates), False
    with Trainer(
        config, environment, model=model, tokenizer=tokenizer, reporter=clock, resume="never"
    ) as trainer:
        clock.trainer = trainer
        with suppress(IsOver):
            trainer.fit(1, args.updates + 1)
        history = trainer.metrics_history[1:]
    # The first step captures graphs and compiles kernels.
    seconds, idle = (
        last - first for first, last in zip(clock.seen[0], clock.seen[-1], strict=True)
    )
    return {
        "episodes per s": sum(metrics["num_episodes"] for metrics in history) / seconds,
        "engine busy": 1.0 - idle / seconds,
        "learner busy": sum(metrics["time/update"] for metrics in history) / seconds,
        "update s": fmean(metrics["time/update"] for metrics in history),
        "updates behind": fmean(metrics.get("staleness/mean", 0.0) for metrics in history),
        "reward": fmean(metrics["reward"] for metrics in history),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--warm-start-steps", type=int, default=20)
    add_record_option(parser)
    args = parser.parse_args()
    for name, environment in (("grid-world", SlowGridWorld), ("shop", SlowShop)):
        for max_staleness, own_stream in ((0, False), (4, False), (4, True)):
            found = train(environment, max_staleness, args, own_stream)
            how = f"max_staleness {max_staleness}"
            how += " in one stream" if max_staleness and not own_stream else ""
            print(f"{name}, {how}: ", end="")
            print(", ".join(f"{what} {value:.3g}" for what, value in found.items()), flush=True)
            if args.record:
                record(f"gpu/async/{args.shape}/{name}, {how}", found, DEVICE)


if __name__ == "__main__":
    main()
