"""Times Ray: throughput by number of workers, one step off-policy, recovery, memory of learners.

    python bench/scale.py            # everything, in three to four minutes
    python bench/scale.py --parts play

The environment sleeps, like one that waits for a browser or a server, so two cores are enough to
see whether throughput grows with the workers. The first line is the same episodes in one process
without Ray; what a worker falls short of that is lost to coordination.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import os
import pickle
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from results import add_record_option, record
from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.algo import Algorithm
from turnwise.config import RayConfig
from turnwise.deadlines import run_sync
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.types import EpisodeTask
from turnwise.inference import SamplingParams
from turnwise.learner import LearnerOptions, PPOBatch, make_learner
from turnwise.learner.build import make_policy
from turnwise.models import load_model
from turnwise.scale.ray.cluster import Cluster, Failures, exported_python_path
from turnwise.scale.ray.episode_pool import EpisodePool
from turnwise.scale.ray.episode_worker import EpisodeSpec, Sampling
from turnwise.scale.ray.learner import LearnerGroup, RemoteLearner
from turnwise.scale.ray.transfer import ModelSource, Weights, to_arrays
from turnwise.trainer.assembly import make_engine
from turnwise.trainer.components import UserComponents
from turnwise.trainer.learning import policy_weights

NUM_TURNS = 4
NUM_STEPS = 7
LONGEST = 600.0


class Sleeper(BaseEnvironment):
    """Sleeps in every step."""

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        return "go on"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        time.sleep(float(self.config.get("seconds", 0.1)))
        self.step_count += 1
        self._done = self.step_count == NUM_TURNS
        return "go on", float(len(action)), self._done, {}

    def get_state_description(self) -> str:
        return f"{self.step_count} of {NUM_TURNS}"


def settings(seconds: float, *overrides: str) -> ConfigStore:
    return ConfigStore.load(
        overrides=[
            f"environment.params.seconds={seconds}",
            "inference.max_tokens=4",
            "logging.level=error",
            "ray.use_ray=true",
            *overrides,
        ]
    )


@contextlib.contextmanager
def one_cluster(num_places: int) -> Iterator[None]:
    """Starts one Ray cluster for all measurements: starting takes longer than most of them."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as own:
        with exported_python_path():
            ray.init(
                address="local",
                num_cpus=num_places,
                object_store_memory=2**30,
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=own,
            )
        try:
            yield
        finally:
            ray.shutdown()


class Players:
    """Plays the same episodes in this process or on workers."""

    def __init__(self, at_once: int, seconds: float) -> None:
        self.config = settings(seconds)
        self.loaded = load_model("tiny", device="cpu")
        parts = UserComponents(Sleeper)
        self.factory = parts.factory(self.config)
        self.options = dataclasses.replace(
            parts.episode_options(self.config), max_concurrency=at_once, environment_calls="thread"
        )

    def here(self, tasks: Sequence[EpisodeTask]) -> tuple[float, list[EpisodeResult]]:
        """Returns the seconds that the episodes took, and their results."""
        engine = make_engine(self.config, self.loaded.model, self.loaded.tokenizer)
        try:
            collector = EpisodeCollector(engine, self.factory, self.options)
            run_sync(collector.play(tasks[:4]))
            started = time.perf_counter()
            played = list(run_sync(collector.play(tasks)))
            return time.perf_counter() - started, played
        finally:
            engine.close()

    def by_workers(
        self, num_workers: int, tasks: Sequence[EpisodeTask]
    ) -> tuple[float, list[EpisodeResult]]:
        cluster = Cluster(RayConfig(num_actors=num_workers), weight_bytes=2**24)
        try:
            source = ModelSource(self.config)
            spec = EpisodeSpec(source, self.loaded.tokenizer, self.factory, self.options)
            pool = EpisodePool(cluster, num_workers, spec, Failures(0))
            pool.context_length()
            learner = make_learner(self.config, self.loaded.model)
            weights = Weights(1, (ray.put(to_arrays(policy_weights(learner))),))
            sampling = Sampling(SamplingParams(), 0, weights)

            def play(tasks: Sequence[EpisodeTask]) -> list[EpisodeResult]:
                waiting, played = iter(tasks), list[EpisodeResult]()

                async def next_task() -> tuple[None, EpisodeTask] | None:
                    task = next(waiting, None)
                    return None if task is None else (None, task)

                def keep(_: None, result: EpisodeResult) -> None:
                    played.append(result)

                run_sync(
                    pool.play_from(next_task, keep, len(tasks), lambda: sampling, in_shares=True)
                )
                return played

            play(tasks[: 4 * num_workers])  # weights, threads, first calls
            started = time.perf_counter()
            played = play(tasks)
            return time.perf_counter() - started, played
        finally:
            cluster.close()


def compare_workers(args: argparse.Namespace) -> None:
    """Prints episodes per second, and the share of the workers' time that Ray costs."""
    players = Players(args.at_once, args.seconds)
    print(f"{'workers':>8} {'seconds':>8} {'episodes/s':>11} {'tokens/s':>9} {'lost':>6}")
    rate_here = 0.0
    for number in (0, *args.workers):
        # The same number for each worker, or the last few episodes would dominate.
        tasks = [EpisodeTask(seed, seed) for seed in range(args.episodes * max(1, number))]
        took, played = players.by_workers(number, tasks) if number else players.here(tasks)
        num_tokens = sum(result.agent.num_sampled_tokens for result in played)
        rate = len(tasks) / took
        rate_here = rate_here or rate
        share_lost = 1.0 - rate / (number * rate_here) if number else 0.0
        lost = f"{share_lost:.0%}" if number else ""
        if args.record:
            figures = {"episodes/s": rate, "tokens/s": num_tokens / took}
            workers = f"{number} worker{'s' * (number > 1)}" if number else "one process, no Ray"
            extra = {"lost %": 100 * share_lost} if number else {}
            record(f"scale/play/{workers}", figures | extra)
        print(
            f"{number or 'none':>8} {took:>8.2f} {rate:>11.1f} {num_tokens / took:>9.0f} {lost:>6}",
            flush=True,
        )

    measure_reading(args, played)


def measure_reading(args: argparse.Namespace, played: Sequence[EpisodeResult]) -> None:
    """Prints how many episodes per second one core unpickles: the trainer reads them all."""
    packed = [pickle.dumps(result, protocol=5) for result in played]
    started = time.perf_counter()
    for data in packed:
        pickle.loads(data)
    rate = len(packed) / (time.perf_counter() - started)
    num_tokens = sum(len(result.agent.stream) for result in played)
    if args.record:
        record("scale/reading", {"episodes/s": rate})
    print(
        f"{'reading':>14}: {rate:.0f} episodes/s by one core, "
        f"{sum(map(len, packed)) / num_tokens:.0f} bytes a token, "
        f"{rate * num_tokens / len(played):.0f} tokens/s",
        flush=True,
    )


class Clock:
    """A reporter that keeps the time at the end of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def begin(self, run: Any) -> None:
        self.times.append(time.perf_counter())

    def step(self, metrics: Any) -> None:
        self.times.append(time.perf_counter())

    def say(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...

    def end(self, outcome: str) -> None: ...

    @property
    def seconds_a_step(self) -> float:
        """The median step, without the first, whose episodes were not played ahead."""
        steps = [end - start for start, end in zip(self.times[1:-1], self.times[2:], strict=True)]
        return statistics.median(steps)


def compare_modes(args: argparse.Namespace) -> None:
    """Prints seconds per step, by `max_staleness`, and after a kill."""
    figures = {}
    for max_staleness in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            config = settings(
                args.seconds,
                f"checkpoint.output_dir={folder}",
                f"training.max_staleness={max_staleness}",
                "training.batch_size=32",
                "training.update_epochs=4",
                "training.num_epochs=1",
                f"training.steps_per_epoch={NUM_STEPS}",
            )
            clock = Clock()
            with Trainer(config, Sleeper, reporter=clock) as trainer:
                trainer.fit()
                mode = f"max_staleness {max_staleness}" if max_staleness else "sync"
                figures[f"{mode} s"] = clock.seconds_a_step
                print(f"{mode:>16}: {clock.seconds_a_step:.2f} s per step", flush=True)
                if not max_staleness:
                    kill_workers(args, trainer, clock.seconds_a_step)
    if args.record:
        record("scale/step", figures)


def kill_workers(args: argparse.Namespace, trainer: Trainer, usual: float) -> None:
    """Prints how much longer a step takes in which a worker is replaced."""
    learner = trainer.components.learner
    assert isinstance(learner, RemoteLearner)
    pools: dict[str, Any] = {
        "episode worker": trainer.components.engine.pool,  # type: ignore[attr-defined]
        "learner": learner.group,
    }
    figures = {}
    for who, pool in pools.items():
        os.kill(pool.pids()[0], signal.SIGKILL)
        started = time.perf_counter()
        trainer.fit(1, 1)
        took = time.perf_counter() - started - usual
        figures[f"{who} s"] = took
        print(f"{'recovery':>14}: {took:.1f} s after one {who} was killed", flush=True)
    if args.record:
        record("scale/recovery", figures)


def measure_memory(args: argparse.Namespace) -> None:
    """Prints the memory of a learner after an update, by the number that share the model."""
    figures = {}
    shape = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(shape)  # type: ignore[no-untyped-call]
    num_weights = sum(p.numel() for p in model.parameters())
    ids = torch.arange(64).repeat(8, 1)
    batch = PPOBatch(ids, ids > 8)
    for number in (1, 2):
        config = settings(0.0, f"ray.num_learners={number}", "training.adv_estimator=rloo")
        cluster = Cluster(config.ray, weight_bytes=4 * num_weights)
        try:
            algorithm = Algorithm.from_settings(config.training)
            source = ModelSource(config, model)
            group = LearnerGroup(cluster, config, source, algorithm, Failures(0))
            policy = make_policy(config, model, algorithm)
            learner = RemoteLearner(policy, LearnerOptions.from_config(config), group=group)
            learner.imitate(batch)
            most = max(_own_megabytes(pid) for pid in group.pids())
            figures["one learner MB" if number == 1 else "two learners MB"] = most
            print(
                f"{'memory':>14}: {most:.0f} MB per learner, with {number} for "
                f"{num_weights / 1e6:.0f} million weights",
                flush=True,
            )
            group.close()
        finally:
            cluster.close()
    if args.record:
        record("scale/memory", figures)


def _own_megabytes(pid: int) -> float:
    """Returns the anonymous memory of a process: without files and shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


PARTS = {"play": compare_workers, "train": compare_modes, "memory": measure_memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--episodes", type=int, default=64, help="episodes per worker")
    parser.add_argument("--at-once", type=int, default=4, help="concurrent episodes per worker")
    parser.add_argument("--seconds", type=float, default=0.1, help="sleep in each step")
    add_record_option(parser)
    args = parser.parse_args()
    # If it hangs, it prints all stacks and exits.
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    with one_cluster(max(4, *args.workers) + 1):
        for name in args.parts:
            PARTS[name](args)


if __name__ == "__main__":
    main()
