"""How good the model is now: episodes on seeds that training never sees."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.episode import Collection, EpisodeCollector
from turnwise.episode.collector import EpisodeTask
from turnwise.episode.seeds import derive_seed
from turnwise.inference import SamplingParams
from turnwise.trainer.figures import episode_figures
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.rollout import OnEpisode, Rows, run_tasks, seed_of
from turnwise.trainer.stopping import StopRequest

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
