"""How good the model is now: episodes on seeds that training never sees."""

from __future__ import annotations

import time
from collections.abc import Sequence

from turnwise.config import ConfigStore
from turnwise.episode import Collection, EpisodeCollector
from turnwise.episode.collector import EpisodeTask
from turnwise.episode.seeds import derive_seed
from turnwise.inference import SamplingParams
from turnwise.trainer.figures import episode_figures
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import OnEpisode, Rows, run_tasks, seed_of
from turnwise.trainer.state import undone_if_interrupted
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.stopwatch import Stopwatch

GREEDY = SamplingParams(temperature=0.0)
_KEPT = ("reward", "reward_std", "success", "turns", "truncated", "errors")


def held_out_tasks(num_episodes: int, seed: int, rows: Rows | None = None) -> list[EpisodeTask]:
    """The same episodes whenever they are asked for."""
    tasks = []
    for number in range(num_episodes):
        row = None if rows is None else rows[number % len(rows)]
        own_seed = seed_of(row, rows, derive_seed(seed, "eval", number))
        tasks.append(EpisodeTask(own_seed, number, task=row))
    return tasks


def evaluate(
    collector: EpisodeCollector,
    tasks: Sequence[EpisodeTask],
    sampling: SamplingParams,
    stop: StopRequest,
    on_episode: OnEpisode | None = None,
) -> tuple[Metrics, Collection]:
    """Play them; reward, success and so on, and the episodes themselves."""
    played = run_tasks(collector.sampling_with(sampling), tasks, stop, on_episode)
    figures = episode_figures(played)
    return {name: figures[name] for name in _KEPT if name in figures}, played


class Evaluator:
    """Evaluates the model of a run as it is now."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        rows: Rows | None,
        reporter: Reporter,
    ) -> None:
        self._collector = collector
        self._training = config.training
        self._rows = rows
        self._reporter = reporter

    def after_epoch(self, step: int, records: Records, stop: StopRequest) -> Metrics:
        """Evaluate greedily and as sampled, if the settings ask for it; the episodes are kept."""
        number = self._training.eval_episodes
        if not number:
            return {}
        started = time.perf_counter()
        figures: Metrics = {}
        with undone_if_interrupted():
            for name, is_greedy in (("greedy", True), ("sampled", False)):
                clock = Stopwatch()
                with clock.timing("play"):
                    found, played = self.play(number, is_greedy, stop)
                figures |= {f"eval/{name}/{key}": value for key, value in found.items()}
                records.keep_evaluation(step, played, name, clock)
        figures["time/evaluate"] = time.perf_counter() - started
        return figures

    def play(
        self, num_episodes: int, is_greedy: bool, stop: StopRequest
    ) -> tuple[Metrics, Collection]:
        """Play held-out episodes; reward, success and so on, and the episodes themselves."""
        sampling = GREEDY if is_greedy else self._collector.setup.sampling
        tasks = held_out_tasks(num_episodes, self._training.seed, self._rows)
        return evaluate(
            self._collector,
            tasks,
            sampling,
            stop,
            lambda done, total: self._reporter.progress("evaluation", done, total),
        )
