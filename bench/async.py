"""Trains with slow, uneven environments: episodes per second and reward, by `max_staleness`.

    python bench/async.py                             # one seed, 100 s for each of 0, 1 and 4
    python bench/async.py --seeds 5 --updates 30      # one after the other
    python bench/async.py --seeds 5 --updates 120 --pace 10 --learning-rate 2.5e-4
    python bench/async.py --ray 2                     # two episode workers on Ray

Each step of an episode sleeps by a log-normal law with a median of 0.1 s and 99 % below 5 s, like
an environment that waits for web pages or compilers. A task is to repeat three letters, one a turn.
Before it is timed a run imitates replies of which half are random. With `--pace 10` all sleeps are
a tenth, to see what many updates lead to.

The last column compares the share of slow tasks (a sleep above 1 s) among those that were trained
on with their share among those that were drawn, by a chi-square test: a small p would be a bias.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from results import add_record_option, record
from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder

NUM_TURNS = 3
MEDIAN, ALMOST_ALL = 0.1, 5.0
SPREAD = math.log(ALMOST_ALL / MEDIAN) / 2.326  # of a normal law, 99 % are below 2.326
SLOW = 1.0
LETTERS = "abcd"


def sleeps_of(seed: int) -> list[float]:
    """The sleeps of a task, which its seed decides."""
    rng = random.Random(seed)
    return [MEDIAN * rng.lognormvariate(0.0, SPREAD) for _ in range(NUM_TURNS)]


class Sleeper(BaseEnvironment):
    """Asks for the letter that it shows, three times, and sleeps after each reply."""

    pace = 1.0
    """What all sleeps are divided by."""

    def reset(self, seed: int = 0) -> str:
        self._done = False
        self.step_count = 0
        self.sleeps, self.letters = sleeps_of(seed), random.Random(seed).choices(LETTERS, k=4)
        return self.letters[0]

    async def step(  # type: ignore[override] # steps may be async
        self, action: str
    ) -> tuple[str, float, bool, dict[str, Any]]:
        is_right = action == self.letters[self.step_count]
        await asyncio.sleep(self.sleeps[self.step_count] / self.pace)
        self.step_count += 1
        self._done = self.step_count == NUM_TURNS
        reward = float(is_right) / NUM_TURNS
        return self.letters[self.step_count], reward, self._done, {"success": is_right}

    def get_state_description(self) -> str:
        return self.letters[self.step_count]


def noisy_replies(number: int, seed: int) -> Iterator[str]:
    """Conversations of the environment's form as JSON, in which every other reply is random."""
    rng = random.Random(seed)
    for _ in range(number):
        messages = []
        for letter in rng.choices(LETTERS, k=NUM_TURNS):
            reply = letter if rng.random() < 0.5 else rng.choice(LETTERS)
            messages += [{"role": "user", "content": letter}]
            messages += [{"role": "assistant", "content": reply}]
        yield json.dumps({"messages": messages})


class IsOver(Exception):
    """Ends a run after its time or its number of updates."""


@dataclass
class Clock:
    """A reporter that keeps the time of each update, and ends the run."""

    seconds: float
    updates: int
    started: float = 0.0
    ends: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def begin(self, run: Any) -> None:
        self.started = time.perf_counter()

    def step(self, metrics: Any) -> None:
        self.ends.append(time.perf_counter() - self.started)
        self.rewards.append(metrics["reward"])
        if self.ends[-1] > self.seconds or len(self.ends) >= self.updates:
            raise IsOver

    def say(self, text: str) -> None:
        if text.startswith("warm start"):  # the same for all
            self.started = time.perf_counter()

    def progress(self, what: str, done: int, total: int) -> None: ...

    def end(self, outcome: str) -> None: ...


@dataclass
class Trained:
    """What a run reached."""

    episodes_per_second: float
    reward: float
    staleness: float
    idle_engine: float
    idle_learner: float
    slow_tasks: int
    num_tasks: int
    rewards: list[float]
    """By update."""


def train(max_staleness: int, seed: int, args: argparse.Namespace) -> Trained:
    clock = Clock(args.seconds, args.updates or 10**9)
    with tempfile.TemporaryDirectory() as folder:
        replies = Path(folder) / "replies.jsonl"
        replies.write_text("\n".join(noisy_replies(2000, seed)))
        config = ConfigStore.load(
            overrides=[
                f"checkpoint.output_dir={folder}/run",
                f"training.seed={seed}",
                f"training.max_staleness={max_staleness}",
                "training.adv_estimator=grpo",  # of equal rewards it learns nothing
                "training.group_size=4",
                "training.batch_size=8",
                "training.num_epochs=1000",
                "training.steps_per_epoch=1000",
                f"training.learning_rate={args.learning_rate}",
                f"training.warm_start={replies}",
                "training.warm_start_steps=60",
                "training.warm_start_learning_rate=3e-3",
                "inference.max_tokens=2",
                "logging.level=error",
                *(["ray.use_ray=true", f"ray.num_actors={args.ray}"] if args.ray else []),
            ]
        )
        with Trainer(config, Sleeper, reporter=clock, resume="never") as trainer:
            with contextlib.suppress(IsOver):
                trainer.fit()
            history, run_folder = trainer.metrics_history, trainer.run_folder
        assert run_folder is not None
        store = EpisodeStore(RunFolder(run_folder).episodes, 2**40)
        episodes = [episode for step in store.steps("train") for episode in store.read(step)]
        seeds = [episode.seed for episode in episodes if episode.member == 0]
    last = clock.rewards[-max(len(clock.rewards) // 5, 1) :]
    return Trained(
        sum(metrics["num_episodes"] for metrics in history) / clock.ends[-1],
        statistics.fmean(last),
        statistics.fmean(metrics.get("staleness/mean", 0.0) for metrics in history),
        share_of_time("idle/engine", history),
        share_of_time("idle/learner", history),
        sum(max(sleeps_of(seed)) > SLOW for seed in seeds),
        len(seeds),
        clock.rewards,
    )


def share_of_time(name: str, history: Sequence[Mapping[str, float]]) -> float:
    """The share of the whole time, of shares that are recorded by step; NaN if they are not."""
    seconds = [metrics["time/step"] for metrics in history]
    shares = [metrics.get(name, math.nan) for metrics in history]
    return statistics.fmean(shares, weights=seconds)


def p_of_share(slow: int, number: int) -> float:
    """The p of a chi-square test, with one degree of freedom, of the share of slow tasks."""
    quick = 0.5 * (1.0 + math.erf(math.log(SLOW / MEDIAN) / SPREAD / math.sqrt(2.0)))
    expected = number * (1.0 - quick**NUM_TURNS)
    chi_square = (slow - expected) ** 2 * (1.0 / expected + 1.0 / (number - expected))
    return math.erfc(math.sqrt(chi_square / 2.0))


def figures_of(runs: Sequence[Trained]) -> dict[str, float]:
    rewards = [run.reward for run in runs]
    slow, number = sum(run.slow_tasks for run in runs), sum(run.num_tasks for run in runs)
    return {
        "episodes per s": statistics.fmean(run.episodes_per_second for run in runs),
        "reward": statistics.fmean(rewards),
        "lowest reward": min(rewards),
        "highest reward": max(rewards),
        "updates behind": statistics.fmean(run.staleness for run in runs),
        "engine waits": statistics.fmean(run.idle_engine for run in runs),
        "learner waits": statistics.fmean(run.idle_learner for run in runs),
        "tasks": number,
        "share of slow tasks": slow / number,
        "p of that share": p_of_share(slow, number),
    }


def plot(runs: dict[int, list[Trained]], path: Path) -> None:
    """Draws the reward by update: the mean of the seeds, and from the lowest to the highest."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
    for max_staleness, of_seeds in runs.items():
        number = min(len(run.rewards) for run in of_seeds)
        window = np.ones(min(5, number))
        weights = np.convolve(np.ones(number), window, "same")
        curves = [np.convolve(run.rewards[:number], window, "same") / weights for run in of_seeds]
        updates = np.arange(1, number + 1)
        line = axes.plot(updates, np.mean(curves, axis=0), label=f"max_staleness {max_staleness}")[
            0
        ]
        lowest, highest = np.min(curves, axis=0), np.max(curves, axis=0)
        axes.fill_between(updates, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel="reward", ylim=(0.0, 1.05))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seconds", type=float, help="of a run; 100 unless --updates is given")
    parser.add_argument("--updates", type=int, help="of a run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ray", type=int, default=0, help="episode workers on Ray")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--plot", type=Path, help="a picture of the rewards over time")
    parser.add_argument("--pace", type=float, default=1.0, help="divides all sleeps")
    add_record_option(parser)
    args = parser.parse_args()
    Sleeper.pace = args.pace
    args.seconds = args.seconds or (math.inf if args.updates else 100.0)
    runs: dict[int, list[Trained]] = {}
    for max_staleness in args.staleness:
        runs[max_staleness] = [train(max_staleness, seed, args) for seed in range(args.seeds)]
        figures = figures_of(runs[max_staleness])
        first = figures_of(runs[args.staleness[0]])["episodes per s"]
        figures = {"times": figures["episodes per s"] / first, **figures}
        print(f"max_staleness {max_staleness}: ", end="")
        print(", ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)
        if args.record:
            where = f"on Ray with {args.ray} workers" if args.ray else "in one process"
            where += " on a GPU" if torch.cuda.is_available() else ""
            known = {name: value for name, value in figures.items() if not math.isnan(value)}
            device = "cuda" if torch.cuda.is_available() else "cpu"
            if args.pace == 1.0:
                record(f"async/max_staleness {max_staleness} {where}", known, device)
            else:
                rate = f"learning rate {args.learning_rate:g}"
                record(f"async_many/max_staleness {max_staleness}, {rate}", known, device)
    if args.plot:
        plot(runs, args.plot)


if __name__ == "__main__":
    main()
