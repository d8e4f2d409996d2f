"""Simulates asynchronous training on 8 to 1,024 GPUs: the real pacer, with a virtual clock.

    python bench/simulate.py                          # a model of 1.5B, updates of 1,024 episodes
    python bench/simulate.py --episodes-per-gpu 16    # larger updates on more GPUs
    python bench/simulate.py --model 7B --median 1 --almost-all 60

What a GPU does in a second are the figures of one H200 in bench/results.jsonl, with random weights
of real shapes (bench/gpu/real_shapes.py: 64 episodes with a prompt of 512 and 256 sampled tokens);
what the driver does, those of one CPU core (bench/scale.py). That a forward takes a third of the
time of an update, and the network, are assumptions. When groups start and which ones an update
trains on is decided by `turnwise.trainer.async_rollout.Pacer`, as in a run.

For each number of GPUs and each `max_staleness` one draw of random sleeps decides which split into
learners and engines is the fastest. Printed are the means of other draws with it: episodes per
second with the lowest and the highest, and the share of the time in which each part was busy. What
is nearest to 1 saturates. If nothing is, the updates wait for the slowest episodes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from results import RESULTS, Figure, add_record_option, record
from turnwise.trainer.async_rollout import Draw, Pacer

GROUP_SIZE = 8
WORKER_SLOTS = 256
"""Episodes that an engine has under way at most."""
NETWORK = 25e9
"""Bytes per second in and out of a GPU; all of a machine's GPUs have the same."""
FEW, MANY = 64, 256
"""Sequences at once of the recorded figures."""


@dataclass(frozen=True)
class Model:
    """What one H200 was measured to do with a model."""

    weights: float
    sampling: float
    """Sampled tokens per second of `FEW` sequences."""
    growth: float
    """How many times as many `MANY` sequences sample."""
    update: float
    """Trained tokens per second."""

    @property
    def prefill(self) -> float:
        """Observed tokens per second: a forward is a third of an update."""
        return 3 * self.update

    def decode_step(self, num_sequences: int) -> float:
        """Seconds of a decode step: linear in the number of sequences."""
        few, many = FEW / self.sampling, MANY / (self.growth * self.sampling)
        return few + (many - few) * (num_sequences - FEW) / (MANY - FEW)


MODELS = {
    "1.5B": (1.54e9, "gpu/update/1.5B/each"),
    "7B": (7.6e9, "gpu/update/7B-lora/each"),
}
"""Weights, and the recorded update; that of 7B is one of LoRA: of more than one GPU none is."""
UPDATE_TOKENS = 64 * (512 + 256)
"""Of the recorded updates."""


@dataclass(frozen=True)
class Work:
    """What is trained on: episodes of some turns, and what each turn takes."""

    episodes: int
    turns: int
    sampled: int
    observed: int
    median: float
    almost_all: float
    """Seconds that 99 % of the environment's steps are below."""

    def sleep(self, rng: random.Random) -> float:
        if not self.median:
            return 0.0
        spread = math.log(self.almost_all / self.median) / 2.326
        return self.median * rng.lognormvariate(0.0, spread)

    def num_sampled(self, rng: random.Random) -> int:
        return max(int(self.sampled * rng.lognormvariate(0.0, 0.5)), 1)


@dataclass
class Cluster:
    """Engines, learners and the driver, in virtual time."""

    model: Model
    work: Work
    num_learners: int
    num_engines: int
    pacer: Pacer
    reads_per_second: float
    rng: random.Random
    now: float = 0.0

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._sampling = [0] * self.num_engines
        """Sequences that each engine samples."""
        self._num_busy = self._num_under_way = 0
        self._engines = itertools.cycle(range(self.num_engines))
        self._unfinished: dict[Draw, int] = {}
        self._num_tokens: dict[Draw, int] = {}
        self._driver_is_free_at = 0.0
        self._is_updating = False
        self._update_seconds = self._driver_seconds = self._engine_seconds = 0.0
        self._last = 0.0

    def run(self) -> dict[str, float]:
        """Run all updates; return episodes per second and how busy each part was."""
        self._start()
        while self.pacer.version < self.pacer.num_updates:
            self.now, _, event = heapq.heappop(self._events)
            self._engine_seconds += (self.now - self._last) * self._num_busy / self.num_engines
            self._last = self.now
            event()
        return {
            "episodes per s": self.pacer.num_updates * self.work.episodes / self.now,
            "engines busy": self._engine_seconds / self.now,
            "learners busy": self._update_seconds / self.now,
            "driver busy": self._driver_seconds / self.now,
        }

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), event))

    def _start(self) -> None:
        if not self._is_updating and (batch := self.pacer.next_batch()) is not None:
            self._is_updating = True
            seconds = self._seconds_of_update(sum(map(self._num_tokens.pop, batch)))
            self._update_seconds += seconds
            self._after(seconds, self._end_update)
        while self._num_under_way + GROUP_SIZE <= WORKER_SLOTS * self.num_engines:
            draw = self.pacer.start()
            if draw is None:
                break
            self._unfinished[draw], self._num_tokens[draw] = GROUP_SIZE, 0
            for _ in range(GROUP_SIZE):
                self._num_under_way += 1
                self._take_turn(draw, next(self._engines), self.work.turns)

    def _seconds_of_update(self, num_tokens: int) -> float:
        """The learners' computation and communication (which overlap), then the new weights."""
        compute = num_tokens / (self.model.update * self.num_learners)
        # Per pack: weights for the forward and the backward, and gradients in float32.
        packs = math.ceil(num_tokens / self.num_learners / 32_768)
        share = (self.num_learners - 1) / self.num_learners
        exchange = packs * (2 + 2 + 4) * self.model.weights * share / NETWORK
        return max(compute, exchange) + 2 * self.model.weights / NETWORK

    def _take_turn(self, draw: Draw, engine: int, turns_left: int) -> None:
        self._sampling[engine] += 1
        self._num_busy += self._sampling[engine] == 1
        sequences, sampled = self._sampling[engine], self.work.num_sampled(self.rng)
        self._num_tokens[draw] += sampled + self.work.observed
        # The observations of all sequences that are sampled delay each of them.
        prefill = sequences * self.work.observed / self.model.prefill
        seconds = sampled * self.model.decode_step(sequences) + prefill

        def end_turn() -> None:
            self._sampling[engine] -= 1
            self._num_busy -= self._sampling[engine] == 0
            self._after(self.work.sleep(self.rng), end_step)

        def end_step() -> None:
            if turns_left > 1:
                self._take_turn(draw, engine, turns_left - 1)
            else:
                self._num_under_way -= 1
                self._read(draw)

        self._after(seconds, end_turn)

    def _read(self, draw: Draw) -> None:
        """The driver reads one episode after the other."""
        seconds = 1.0 / self.reads_per_second
        self._driver_seconds += seconds
        self._driver_is_free_at = max(self.now, self._driver_is_free_at) + seconds

        def end_read() -> None:
            self._unfinished[draw] -= 1
            if not self._unfinished[draw]:
                del self._unfinished[draw]
                self.pacer.finish(draw)
                self._start()

        self._after(self._driver_is_free_at - self.now, end_read)

    def _end_update(self) -> None:
        self._is_updating = False
        self.pacer.updated()
        self._start()


def recorded(work: str, figure: str) -> float:
    """A figure in bench/results.jsonl; the lower end of a range."""
    for line in RESULTS.read_text().splitlines():
        entry = json.loads(line)
        if entry["work"] == work:
            found = entry["figures"][figure]
            return float(min(found) if isinstance(found, list) else found)
    raise SystemExit(f"bench/results.jsonl has no {work!r}")


def recorded_model(name: str) -> Model:
    weights, update = MODELS[name]
    growth = recorded_sampling("1.5B", MANY) / recorded_sampling("1.5B", FEW)
    sampling = recorded_sampling(name, FEW)
    return Model(weights, sampling, growth, UPDATE_TOKENS / recorded(update, "s"))


def recorded_sampling(name: str, num_sequences: int) -> float:
    work = f"gpu/sampling/{name}, {num_sequences} x (512 + 256)/local"
    return recorded(work, "tokens/s")


@dataclass(frozen=True)
class Setting:
    """What is simulated, apart from the split of the GPUs and the draw of random sleeps."""

    num_gpus: int
    max_staleness: int
    model: Model
    work: Work
    num_updates: int
    reads_per_second: float

    def run(self, num_learners: int, seed: int) -> dict[str, float]:
        groups = self.work.episodes // GROUP_SIZE
        pacer = Pacer(groups, self.max_staleness, num_updates=self.num_updates)
        how = (num_learners, self.num_gpus - num_learners, pacer, self.reads_per_second)
        return Cluster(self.model, self.work, *how, random.Random(seed)).run()

    def figures(self, num_seeds: int) -> dict[str, Figure]:
        """The means of the fastest split into learners and engines."""
        splits = [self.num_gpus * share // 8 for share in (1, 2, 4, 6)]
        short = replace(self, num_updates=min(self.num_updates, 20))
        num_learners = max(splits, key=lambda split: short.run(split, 0)["episodes per s"])
        runs = [self.run(num_learners, seed) for seed in range(1, num_seeds + 1)]
        speeds = [run["episodes per s"] for run in runs]
        return {
            "GPUs": self.num_gpus,
            "GPUs of learners": num_learners,
            "lowest and highest": [min(speeds), max(speeds)],
            **{name: statistics.mean(run[name] for run in runs) for name in runs[0]},
        }


def in_words(figure: Figure) -> str:
    return " to ".join(f"{x:.3g}" for x in (figure if isinstance(figure, Sequence) else [figure]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 32, 128, 1024])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--model", choices=MODELS, default="1.5B")
    parser.add_argument("--episodes", type=int, default=1024, help="of an update")
    parser.add_argument("--episodes-per-gpu", type=int, help="of an update, instead of --episodes")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--sampled", type=int, default=256, help="median of the tokens of a turn")
    parser.add_argument("--observed", type=int, default=256, help="tokens of an observation")
    parser.add_argument("--median", type=float, default=0.1, help="seconds of an environment step")
    parser.add_argument("--almost-all", type=float, default=5.0, help="99 %% take less")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3, help="draws of random sleeps")
    add_record_option(parser)
    args = parser.parse_args()
    model, reads = recorded_model(args.model), recorded("scale/reading", "episodes/s")
    settings = []
    for num_gpus, max_staleness in itertools.product(args.gpus, args.staleness):
        episodes = num_gpus * args.episodes_per_gpu if args.episodes_per_gpu else args.episodes
        work = Work(episodes, args.turns, args.sampled, args.observed, args.median, args.almost_all)
        settings.append(Setting(num_gpus, max_staleness, model, work, args.updates, reads))
    size = f"{args.episodes_per_gpu} per GPU" if args.episodes_per_gpu else f"{args.episodes}"
    with ProcessPoolExecutor() as processes:
        found = processes.map(Setting.figures, settings, itertools.repeat(args.seeds))
        for setting, figures in zip(settings, found, strict=True):
            name = f"{setting.num_gpus} GPUs, max_staleness {setting.max_staleness}"
            texts = (f"{key} {in_words(value)}" for key, value in figures.items())
            print(f"{name}: {', '.join(texts)}", flush=True)
            if args.record:
                record(f"simulate/{args.model}, {size} episodes/{name}", figures)


if __name__ == "__main__":
    main()
