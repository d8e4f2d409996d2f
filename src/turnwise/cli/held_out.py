"""The same held-out episodes, played by a model or an agent, and by the environment's players."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.cli.agents import SCRIPTED, AgentMaker, agent_by_name
from turnwise.cli.eval_rows import EvalRows
from turnwise.config import ConfigStore
from turnwise.deadlines import run_sync
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment, reset_environment
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeTask, together
from turnwise.episode.player_engine import player_episode
from turnwise.inference import BaseInferenceEngine, ScriptedEngine, create_inference_engine
from turnwise.models import LoadedModel
from turnwise.trainer.components import UserComponents
from turnwise.trainer.evaluation import GREEDY, held_out_tasks, num_of_rows
from turnwise.trainer.rollout import run_tasks
from turnwise.trainer.stopping import StopRequest, run_unless_stopped

OnEpisode = Callable[[str, int, int], None]
"""Told who plays, and how many episodes of how many are over."""

_AGENT_CONCURRENCY = 8
"""Episodes of a user's agent at once: it may wait for a server."""


@dataclass(frozen=True)
class Plan:
    """What is played, and how."""

    num_tasks: int
    k: int | None = None
    """Attempts at each task; None: one, without pass@k."""
    is_greedy: bool = True
    agent: str | None = None
    """Who plays instead of the model: `expert`, `random`, `file.py:function`."""

    def num_episodes(self, chosen: EvalRows) -> int:
        """Episodes of the first player, attempts at a task aside; with `k` a row is played once."""
        if chosen.rows is None:
            return self.num_tasks
        if self.k is not None:
            return min(self.num_tasks, len(chosen.rows))
        return num_of_rows(self.num_tasks, len(chosen.rows))

    @property
    def num_attempts(self) -> int:
        return self.k or 1

    @property
    def who(self) -> str:
        """The first of those whose episodes are played: `model` or `agent`."""
        return "model" if self.agent is None else "agent"


def play_held_out(
    player: LoadedModel,
    config: ConfigStore,
    parts: UserComponents,
    chosen: EvalRows,
    plan: Plan,
    stop: StopRequest,
    on_episode: OnEpisode,
) -> dict[str, Sequence[EpisodeResult]]:
    """By who played: `model` or `agent`, then `expert` and `random` where there are such.

    Without a model, `player` has its tokenizer alone: an agent's words become tokens too.
    """
    factory = parts.factory(config)
    tasks = held_out_tasks(plan.num_episodes(chosen), config.training.seed, chosen.rows)
    attempts = tasks
    if plan.k is not None:
        attempts = [
            dataclasses.replace(task, member=member)
            for task in tasks
            for member in range(plan.num_attempts)
        ]
    with contextlib.ExitStack() as closing, _engine(player) as engine:
        options = parts.episode_options(config, closing)
        if plan.is_greedy:
            options = dataclasses.replace(options, sampling=GREEDY)
        collector = EpisodeCollector(engine, factory, options)

        def play_as(who: str, name: str, asked: Sequence[EpisodeTask]) -> list[EpisodeResult]:
            many = 1 if name in SCRIPTED else _AGENT_CONCURRENCY
            agent = agent_by_name(name)
            return _play_as(agent, collector, factory, asked, stop, _telling(on_episode, who), many)

        played: dict[str, Sequence[EpisodeResult]] = {}
        if plan.agent is None:
            told = _telling(on_episode, "model")
            played["model"] = run_tasks(collector, attempts, stop, told)
        else:
            played["agent"] = play_as("agent", plan.agent, attempts)
        for who in _players_of(factory, tasks[0].task):
            if not stop.is_wanted and who != plan.agent:
                played[who] = play_as(who, who, tasks)
    return played


def _engine(player: LoadedModel) -> BaseInferenceEngine:
    if player.model is None:
        return ScriptedEngine(player.tokenizer)
    return create_inference_engine(player.model, tokenizer=player.tokenizer)


def _telling(on_episode: OnEpisode, who: str) -> Callable[[int, int], None]:
    return lambda done, total: on_episode(who, done, total)


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
    agent: AgentMaker,
    collector: EpisodeCollector,
    factory: EnvironmentFactory,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
    on_episode: Callable[[int, int], None],
    max_concurrency: int,
) -> list[EpisodeResult]:
    """As the model plays: the same tools, limits and rewards."""
    results: dict[int, EpisodeResult] = {}

    async def play_all() -> list[EpisodeResult]:
        waiting = iter(enumerate(tasks))

        async def work() -> None:
            for place, task in waiting:  # shared: whoever is free takes the next one
                player = agent(task.seed, task.member)
                results[place] = await player_episode(collector.setup, factory, player, task).run()
                on_episode(len(results), len(tasks))

        await together(work() for _ in range(min(max_concurrency, len(tasks))))
        in_order = [results[place] for place in range(len(tasks))]
        await collector.score_together(in_order)
        return in_order

    return run_unless_stopped(play_all(), stop)
