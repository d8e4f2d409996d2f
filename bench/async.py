"""Trains with slow, uneven environments: episodes per second and reward, by `max_staleness`.

    python bench/async.py                          # one seed, 60 s for each of 0, 1 and 4
    python bench/async.py --seeds 5 --seconds 180  # bands over seeds, in 45 minutes

Each step of an episode sleeps by a log-normal law with a median of 0.1 s and 99 % below 5 s, like
an environment that waits for web pages or compilers. A task is to name three letters, one a turn.

The last column compares the share of slow tasks (a sleep above 1 s) among those that were trained
on with their share among those that were drawn, by a chi-square test: a small p would be a bias.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

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
    """Asks for the letter that it shows, three times, and sleeps after each answer."""

    def reset(self, seed: int = 0) -> str:
        self._done = False
        self.step_count = 0
        self.sleeps, self.letters = sleeps_of(seed), random.Random(seed).choices(LETTERS, k=4)
        return self.letters[0]

    async def step(  # type: ignore[override] # steps may be async
        self, action: str
    ) -> tuple[str, float, bool, dict[str, Any]]:
        is_right = action == self.letters[self.step_count]
        await asyncio.sleep(self.sleeps[self.step_count])
        self.step_count += 1
        self._done = self.step_count == NUM_TURNS
        reward = float(is_right) / NUM_TURNS
        return self.letters[self.step_count], reward, self._done, {"success": is_right}

    def get_state_description(self) -> str:
        return self.letters[self.step_count]

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(LETTERS)


class TimeIsUp(Exception):
    """Ends a run after its time."""


@dataclass
class Clock:
    """A reporter that keeps the time of each step, and ends the run after some seconds."""

    seconds: float
    started: float = 0.0
    ends: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def begin(self, run: Any) -> None: ...

    def step(self, metrics: Any) -> None:
        self.ends.append(time.perf_counter() - self.started)
        self.rewards.append(metrics["reward"])
        if self.ends[-1] > self.seconds:
            raise TimeIsUp

    def say(self, text: str) -> None:
        if text.startswith("warm start"):  # it plays without a model, and is the same for all
            self.started = time.perf_counter()

    def progress(self, what: str, done: int, total: int) -> None: ...

    def end(self, outcome: str) -> None: ...


@dataclass
class Trained:
    """What a run reached in its time."""

    episodes_per_second: float
    reward: float
    staleness: float
    idle_learner: float
    slow_tasks: int
    num_tasks: int
    curve: list[tuple[float, float]]


def train(max_staleness: int, seconds: float, seed: int) -> Trained:
    clock = Clock(seconds)
    with tempfile.TemporaryDirectory() as folder:
        config = ConfigStore.load(
            overrides=[
                f"checkpoint.output_dir={folder}",
                f"training.seed={seed}",
                f"training.max_staleness={max_staleness}",
                "training.adv_estimator=reinforce_plus_plus",
                "training.batch_size=32",
                "training.num_epochs=1000",
                "training.steps_per_epoch=1000",
                "training.learning_rate=1e-3",
                "training.warm_start=random",
                "training.warm_start_steps=20",
                "training.warm_start_learning_rate=3e-3",
                "inference.max_tokens=2",
                "logging.level=error",
            ]
        )
        with Trainer(config, Sleeper, reporter=clock, resume="never") as trainer:
            with contextlib.suppress(TimeIsUp):
                trainer.fit()
            history, run_folder = trainer.metrics_history, trainer.run_folder
        assert run_folder is not None
        store = EpisodeStore(RunFolder(run_folder).episodes, 2**40)
        seeds = [episode.seed for step in store.steps("train") for episode in store.read(step)]
    last = clock.rewards[-max(len(clock.rewards) // 5, 1) :]
    return Trained(
        sum(metrics["num_episodes"] for metrics in history) / clock.ends[-1],
        statistics.fmean(last),
        statistics.fmean(metrics.get("staleness/mean", 0.0) for metrics in history),
        statistics.fmean(metrics.get("idle/learner", math.nan) for metrics in history),
        sum(max(sleeps_of(seed)) > SLOW for seed in seeds),
        len(seeds),
        list(zip(clock.ends, clock.rewards, strict=True)),
    )


def p_of_share(slow: int, number: int) -> float:
    """The p of a chi-square test, with one degree of freedom, of the share of slow tasks."""
    quick = 0.5 * (1.0 + math.erf(math.log(SLOW / MEDIAN) / SPREAD / math.sqrt(2.0)))
    expected = number * (1.0 - quick**NUM_TURNS)
    chi_square = (slow - expected) ** 2 * (1.0 / expected + 1.0 / (number - expected))
    return math.erfc(math.sqrt(chi_square / 2.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1)
    add_record_option(parser)
    args = parser.parse_args()
    first: float | None = None
    for max_staleness in args.staleness:
        runs = [train(max_staleness, args.seconds, seed) for seed in range(args.seeds)]
        speed = statistics.fmean(run.episodes_per_second for run in runs)
        first = first or speed
        rewards = [run.reward for run in runs]
        slow, number = sum(run.slow_tasks for run in runs), sum(run.num_tasks for run in runs)
        figures = {
            "episodes per s": speed,
            "times": speed / first,
            "reward": statistics.fmean(rewards),
            "lowest reward": min(rewards),
            "highest reward": max(rewards),
            "updates behind": statistics.fmean(run.staleness for run in runs),
            "share of slow tasks": slow / number,
            "p of that share": p_of_share(slow, number),
        }
        print(f"max_staleness {max_staleness}: ", end="")
        print(", ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)
        if args.record:
            record(f"async/max_staleness {max_staleness}", figures)


if __name__ == "__main__":
    main()
