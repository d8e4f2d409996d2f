"""How good the model is now: episodes on seeds that training never sees."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from turnwise.config import ConfigStore
from turnwise.episode import Collection, EpisodeCollector
from turnwise.episode.seeds import held_out_seed
from turnwise.episode.types import EpisodeTask
from turnwise.inference import SamplingParams
from turnwise.trainer.components import MixEnvironment
from turnwise.trainer.episode_metrics import episode_metrics, episodes_of, weighted_mean
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import OnEpisode, Rows, run_tasks, seed_of
from turnwise.trainer.state import undone_if_interrupted
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.stopwatch import Stopwatch

GREEDY = SamplingParams(temperature=0.0)
_KEPT = ("num_episodes", "reward", "reward_std", "success", "turns", "truncated", "errors")
_NUM_TASKS = "num_groups"
"""Kept where rows were played several times: intervals count rows."""


def held_out_tasks(num_episodes: int, seed: int, rows: Rows | None = None) -> list[EpisodeTask]:
    """The same episodes whenever they are asked for.

    Where there are fewer rows than episodes, each row is played equally often: of 12 rows and 100
    episodes, 8 times. The episodes of a row are one group, by which intervals count them once.
    """
    if rows is None:
        seeds = [held_out_seed(seed, "eval", number) for number in range(num_episodes)]
        return [EpisodeTask(own_seed, number) for number, own_seed in enumerate(seeds)]
    tasks = []
    for number in range(num_of_rows(num_episodes, len(rows))):
        repeat, place = divmod(number, len(rows))
        row = rows[place]
        own_seed = seed_of(row, rows, held_out_seed(seed, "eval", number))
        tasks.append(EpisodeTask(own_seed, place, repeat, task=row))
    return tasks


def num_of_rows(num_episodes: int, num_rows: int) -> int:
    """How many episodes are played of so many rows, if so many are asked for.

    >>> num_of_rows(100, 12), num_of_rows(100, 500)
    (96, 100)
    """
    return num_episodes if num_episodes < num_rows else num_episodes // num_rows * num_rows


def evaluate(
    collector: EpisodeCollector,
    tasks: Sequence[EpisodeTask],
    sampling: SamplingParams,
    stop: StopRequest,
    on_episode: OnEpisode | None = None,
) -> tuple[Metrics, Collection]:
    """Play them; reward, success and so on, and the episodes themselves."""
    played = run_tasks(collector.sampling_with(sampling), tasks, stop, on_episode)
    return _figures(played), played


def _figures(played: Collection) -> Metrics:
    figures = episode_metrics(played)
    kept = (*_KEPT, _NUM_TASKS) if figures[_NUM_TASKS] < figures["num_episodes"] else _KEPT
    return {name: figures[name] for name in kept if name in figures}


def held_out_mix(mix: Sequence[MixEnvironment], num_episodes: int, seed: int) -> list[EpisodeTask]:
    """So many held-out episodes of each part of a mix."""
    return [
        dataclasses.replace(task, group=number * num_episodes + task.group, part=part.name)
        for number, part in enumerate(mix)
        for task in held_out_tasks(num_episodes, seed, part.eval_rows)
    ]


class Evaluator:
    """Evaluates the model of a run as it is now."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        rows: Rows | None,
        reporter: Reporter,
        mix: Sequence[MixEnvironment] = (),
    ) -> None:
        self._collector = collector
        self._training = config.training
        self._rows = rows
        self._reporter = reporter
        self._mix = mix

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
                for part, values in self.by_part(found, played).items():
                    prefix = f"eval/{part}/{name}" if part else f"eval/{name}"
                    figures |= {f"{prefix}/{key}": value for key, value in values.items()}
                records.keep_evaluation(step, played, name, clock)
        figures["time/evaluate"] = time.perf_counter() - started
        return figures

    def play(
        self, num_episodes: int, is_greedy: bool, stop: StopRequest
    ) -> tuple[Metrics, Collection]:
        """Play held-out episodes; reward, success and so on, and the episodes themselves."""
        sampling = GREEDY if is_greedy else self._collector.setup.sampling
        seed = self._training.seed
        if self._mix:
            tasks = held_out_mix(self._mix, num_episodes, seed)
        else:
            tasks = held_out_tasks(num_episodes, seed, self._rows)
        return evaluate(
            self._collector,
            tasks,
            sampling,
            stop,
            lambda done, total: self._reporter.progress("evaluation", done, total),
        )

    def by_part(self, figures: Metrics, played: Collection) -> dict[str, Metrics]:
        """The metrics by part of the mix, those of the whole under the empty name.

        The whole is the mean over the parts, each counted with its weight. Without a mix it is all.
        """
        if not self._mix:
            return {"": figures}
        found = {part.name: _figures(episodes_of(played, part.name)) for part in self._mix}
        weights = {part.name: part.weight for part in self._mix}
        whole = weighted_mean(found, weights)
        whole["num_episodes"] = sum(values["num_episodes"] for values in found.values())
        whole.pop(_NUM_TASKS, None)  # no interval is given of a weighted mean
        return {"": whole, **found}
