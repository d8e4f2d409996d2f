"""Evaluation: episodes on seeds and rows that are not trained on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Set

from turnwise.config import ConfigStore
from turnwise.episode import Collection, EpisodeCollector
from turnwise.episode.seeds import held_out_seed
from turnwise.episode.types import EpisodeTask
from turnwise.inference import SamplingParams
from turnwise.trainer.components import UserComponents
from turnwise.trainer.episode_metrics import (
    environments_with_success,
    episode_metrics,
    episodes_of,
    weighted_mean,
)
from turnwise.trainer.failures import described
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rows, run_tasks, seed_of
from turnwise.trainer.state import restore_generators_if_interrupted
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.training_step import Stopwatch

GREEDY = SamplingParams(temperature=0.0)
_KEPT = ("num_episodes", "reward", "reward_std", "success", "turns", "truncated", "errors")
_NUM_TASKS = "num_groups"
"""Kept where rows were played several times: confidence intervals count rows."""


def held_out_tasks(num_episodes: int, seed: int, rows: Rows | None = None) -> list[EpisodeTask]:
    """Return the tasks of an evaluation, the same each time.

    Where there are fewer rows than episodes, each row is played equally often: of 12 rows and 100
    episodes, 8 times. The episodes of a row are one group, which a confidence interval counts once.
    """
    if rows is None:
        seeds = [held_out_seed(seed, "eval", number) for number in range(num_episodes)]
        return [EpisodeTask(own_seed, number) for number, own_seed in enumerate(seeds)]
    tasks = []
    for number in range(num_of_rows(num_episodes, len(rows))):
        repeat, index = divmod(number, len(rows))
        row = rows[index]
        own_seed = seed_of(row, rows, held_out_seed(seed, "eval", number))
        tasks.append(EpisodeTask(own_seed, index, repeat, task=row))
    return tasks


def num_of_rows(num_episodes: int, num_rows: int) -> int:
    """Return how many episodes are played on this many rows, if `num_episodes` are requested.

    >>> num_of_rows(100, 12), num_of_rows(100, 500)
    (96, 100)
    """
    return num_episodes if num_episodes < num_rows else num_episodes // num_rows * num_rows


def _evaluation_metrics(played: Collection, success_reported: Set[str]) -> Metrics:
    """Return the metrics of the episodes that did not fail, and the share of those that did."""
    results = [*played, *played.dropped]
    ended_well = Collection([result for result in played if not result.status.is_error])
    metrics = episode_metrics(ended_well, success_reported)
    if results:
        metrics["errors"] = sum(result.status.is_error for result in results) / len(results)
    kept = (*_KEPT, _NUM_TASKS) if metrics[_NUM_TASKS] < metrics["num_episodes"] else _KEPT
    return {name: metrics[name] for name in kept if name in metrics}


class Evaluator:
    """Evaluates the current model of a run."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        user: UserComponents,
        reporter: Reporter,
        success_reported: set[str],
    ) -> None:
        self._collector = collector
        self._training = config.training
        self._user = user
        self._reporter = reporter
        self._success_reported = success_reported

    def after_step(self, step: int, records: Records, stop: StopRequest) -> Metrics:
        """Evaluate greedily and as sampled, if the settings enable it; keep the episodes."""
        number = self._training.eval_episodes
        if not number:
            return {}
        started = time.perf_counter()
        metrics: Metrics = {}
        with restore_generators_if_interrupted():
            for name, is_greedy in (("greedy", True), ("sampled", False)):
                clock = Stopwatch()
                with clock.timing("play"):
                    played = self.play(number, is_greedy, stop)
                if is_greedy:
                    self.report_failure(played)
                for environment, values in self.by_environment(played).items():
                    prefix = f"eval/{environment}/{name}" if environment else f"eval/{name}"
                    metrics |= {f"{prefix}/{key}": value for key, value in values.items()}
                records.keep_evaluation(step, played, name, clock)
        metrics["time/evaluate"] = time.perf_counter() - started
        return metrics

    def play(self, num_episodes: int, is_greedy: bool, stop: StopRequest) -> Collection:
        """Play held-out episodes; in a mix, that many of each environment."""
        sampling = GREEDY if is_greedy else self._collector.setup.sampling
        seed = self._training.seed
        if self._user.mix:
            tasks = [
                dataclasses.replace(task, group=number * num_episodes + task.group, part=part.name)
                for number, part in enumerate(self._user.mix)
                for task in held_out_tasks(num_episodes, seed, part.components.eval_rows)
            ]
        else:
            tasks = held_out_tasks(num_episodes, seed, self._user.eval_rows)
        return run_tasks(
            self._collector.sampling_with(sampling),
            tasks,
            stop,
            lambda done, total: self._reporter.progress("evaluation", done, total),
        )

    def report_failure(self, played: Collection) -> None:
        """Report an environment in which episodes failed, with the first failure."""
        for name in [part.name for part in self._user.mix] or [""]:
            episodes = episodes_of(played, name)
            results = [*episodes, *episodes.dropped]
            failed = [result for result in results if result.status.is_error]
            if failed:
                where = f" in {name}" if name else ""
                what = f"{len(failed)} of {len(results)} episodes of the evaluation{where} failed"
                if len(failed) == len(results):
                    what = f"every episode of the evaluation{where} failed, so there is no result"
                self._reporter.say(f"error: {what}; the first one with: {described(failed[0])}")

    def by_environment(self, played: Collection) -> dict[str, Metrics]:
        """Return the metrics of each environment of a mix, and of all under the empty name.

        In a mix the latter are means over the environments, each counted with its weight.
        """
        self._success_reported |= environments_with_success(played)
        mix, reported = self._user.mix, self._success_reported
        if not mix:
            return {"": _evaluation_metrics(played, reported)}
        by_part = {
            part.name: _evaluation_metrics(episodes_of(played, part.name), reported) for part in mix
        }
        whole = weighted_mean(by_part, {part.name: part.weight for part in mix})
        whole["num_episodes"] = sum(values["num_episodes"] for values in by_part.values())
        whole.pop(_NUM_TASKS, None)  # a weighted mean has no confidence interval
        return {"": whole, **by_part}
