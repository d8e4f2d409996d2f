"""The same held-out episodes, played by a model and by the players that an environment has."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.config import ConfigStore
from turnwise.deadlines import run_sync
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment, reset_environment
from turnwise.env.players import Player, expert_player, random_player
from turnwise.episode import Episode, EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeTask
from turnwise.inference import create_inference_engine
from turnwise.models import LoadedModel
from turnwise.trainer.assembly import UserParts
from turnwise.trainer.evaluation import GREEDY, held_out_tasks
from turnwise.trainer.rollout import run_tasks
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.warm_start import PlayerEngine

OnEpisode = Callable[[str, int, int], None]
"""Told who plays, and how many episodes of how many are over."""


def play_held_out(
    loaded: LoadedModel,
    config: ConfigStore,
    num_episodes: int,
    is_greedy: bool,
    stop: StopRequest,
    on_episode: OnEpisode,
) -> dict[str, Sequence[EpisodeResult]]:
    """By who played: `model`, and `expert` and `random` where the environment has them."""
    parts = UserParts().filled_from(config)
    factory = parts.factory(config)
    rows = parts.dataset if parts.eval_dataset is None else parts.eval_dataset
    tasks = held_out_tasks(num_episodes, config.training.seed, rows)
    with (
        contextlib.ExitStack() as closing,
        create_inference_engine(loaded.model, tokenizer=loaded.tokenizer) as engine,
    ):
        options = parts.episode_options(config, closing)
        if is_greedy:
            options["sampling"] = GREEDY
        collector = EpisodeCollector(engine, factory, **options)
        played: dict[str, Sequence[EpisodeResult]] = {
            "model": run_tasks(
                collector, tasks, stop, lambda done, total: on_episode("model", done, total)
            )
        }
        for who in _players_of(factory, tasks[0].task):
            if not stop.is_wanted:
                played[who] = _play_as(who, collector, factory, tasks, stop, on_episode)
    return played


def _players_of(factory: EnvironmentFactory, task: Mapping[str, Any] | None) -> list[str]:
    """Which of them can act in a fresh episode; none where an episode cannot even begin."""
    env = factory()
    env.task = task
    try:
        run_sync(reset_environment(env, 0))
        can = {
            "expert": env.expert_action() is not None,
            "random": env.sample_action(random.Random(0)) is not None,
        }
    except Exception:  # the model's episodes have failed in the same way, and are told
        return []
    finally:
        close_environment(env)
    return [who for who, able in can.items() if able]


def _play_as(
    who: str,
    collector: EpisodeCollector,
    factory: EnvironmentFactory,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
    on_episode: OnEpisode,
) -> list[EpisodeResult]:
    """As the model plays: the same limits, the same rewards."""

    async def play_all() -> list[EpisodeResult]:
        results = []
        for task in tasks:
            if stop.is_wanted:
                break
            player: Player = expert_player if who == "expert" else random_player(task.seed)
            engine = PlayerEngine(player, collector.setup.chat)
            setup = copy.copy(collector.setup)
            setup.engine = engine
            setup.reward_limit = None
            results.append(
                await Episode(setup, engine.making(factory), seed=task.seed, task=task.task).run()
            )
            on_episode(who, len(results), len(tasks))
        await collector.score_together(results)
        return results

    return run_sync(play_all())
