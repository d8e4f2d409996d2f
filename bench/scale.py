"""Episodes a second with 1, 2 and 4 episode workers on Ray, and what playing ahead saves.

    python bench/scale.py

The environment sleeps, as one that waits for a browser or a server does, so two cores suffice to
see whether workers add up. Each worker plays so many episodes at once; `lost` is the share of the
time in which they did not sleep: the model, the engine, Ray, and this process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

from turnwise import BaseEnvironment, ConfigStore, RayPPOTrainer
from turnwise.config import RayConfig
from turnwise.deadlines import run_sync
from turnwise.episode.collector import EpisodeTask
from turnwise.inference import SamplingParams
from turnwise.learner import make_learner
from turnwise.models import load_model
from turnwise.scale.ray.arrays import to_arrays
from turnwise.scale.ray.cluster import Cluster
from turnwise.scale.ray.episode_pool import EpisodePool
from turnwise.scale.ray.episode_worker import EpisodeSpec, ModelSource, Weights
from turnwise.scale.ray.failures import Failures
from turnwise.trainer.assembly import UserParts, policy_weights

NUM_TURNS = 4


class Sleeper(BaseEnvironment):
    """Answers after a while."""

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        return "go on"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        time.sleep(float(self.config.get("seconds", 0.1)))
        self.step_count += 1
        self._done = self.step_count == NUM_TURNS
        return "go on", 0.0, self._done, {}

    def get_state_description(self) -> str:
        return f"{self.step_count} of {NUM_TURNS}"


def settings(seconds: float, *overrides: str) -> ConfigStore:
    return ConfigStore.load(
        overrides=[
            f"environment.params.seconds={seconds}",
            "inference.max_tokens=4",
            "ray.use_ray=true",
            *overrides,
        ]
    )


def play(num_workers: int, num_episodes: int, at_once: int, seconds: float) -> tuple[float, int]:
    """Seconds that the episodes took, and how many tokens were sampled."""
    import ray

    config = settings(seconds)
    loaded = load_model("tiny", device="cpu")
    parts = UserParts(Sleeper)
    options = parts.episode_options(config) | {
        "max_concurrency": at_once,
        "environment_calls": "thread",
    }
    cluster = Cluster(RayConfig(num_actors=num_workers), weight_bytes=2**24)
    try:
        spec = EpisodeSpec(
            config, ModelSource(config), loaded.tokenizer, parts.factory(config), options
        )
        pool = EpisodePool(cluster, num_workers, spec, Failures(0))
        pool.context_length()
        learner = make_learner(config, loaded.model)
        weights = Weights(0, (ray.put(to_arrays(policy_weights(learner))),))
        tasks = [EpisodeTask(seed, seed) for seed in range(num_episodes)]
        how = (SamplingParams(), 0, weights)
        run_sync(pool.play(tasks[: num_workers * at_once], *how))  # weights, threads, first calls
        started = time.perf_counter()
        results = run_sync(pool.play(tasks, *how))
        took = time.perf_counter() - started
        return took, sum(result.agent.num_sampled_tokens for result in results)
    finally:
        cluster.close()


def train(mode: str, seconds: float) -> float:
    """Seconds a step, once it is warm."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(
            seconds,
            f"checkpoint.output_dir={folder}",
            f"ray.mode={mode}",
            "training.batch_size=64",
            "training.update_epochs=4",
            "training.num_epochs=1",
            "training.steps_per_epoch=6",
            "logging.level=error",
        )
        with RayPPOTrainer(config, Sleeper) as trainer:
            _ = trainer.machinery
            times = []
            for _ in range(2):
                started = time.perf_counter()
                history = trainer.fit(1, 6)
                times.append((time.perf_counter() - started) / 6)
            assert len(history) == 12
    return times[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--at-once", type=int, default=4, help="episodes at once in a worker")
    parser.add_argument("--seconds", type=float, default=0.1, help="that a step sleeps")
    args = parser.parse_args()
    print(f"{'workers':>8} {'seconds':>8} {'episodes/s':>11} {'tokens/s':>9} {'lost':>6}")
    for number in args.workers:
        took, num_tokens = play(number, args.episodes, args.at_once, args.seconds)
        asleep = args.episodes * NUM_TURNS * args.seconds / (number * args.at_once)
        lost = 1.0 - asleep / took
        print(
            f"{number:>8} {took:>8.2f} {args.episodes / took:>11.1f} {num_tokens / took:>9.0f} "
            f"{lost:>6.0%}"
        )
    for mode in ("sync", "one_step_off"):
        print(f"{mode:>14}: {train(mode, args.seconds):.2f} s a step")


if __name__ == "__main__":
    main()
