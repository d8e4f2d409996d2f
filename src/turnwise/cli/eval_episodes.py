"""Plays the episodes of `turnwise eval`: by a model or an agent, and by scripted players."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.cli.agents import SCRIPTED, ServedModel, agent_by_name
from turnwise.config import ConfigStore
from turnwise.deadlines import run_sync
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment, reset_environment
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource, PlayableEpisode, together
from turnwise.episode.player_engine import chat_episode, player_episode
from turnwise.episode.setup import EpisodeSetup
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.inference import BaseInferenceEngine, ScriptedEngine, create_inference_engine
from turnwise.models import LoadedModel
from turnwise.trainer.components import UserComponents
from turnwise.trainer.evaluation import GREEDY, held_out_tasks, num_of_rows
from turnwise.trainer.rollout import Rows, run_tasks
from turnwise.trainer.stopping import StopRequest, run_unless_stopped

OnEpisode = Callable[[str, int, int], None]
"""Receives who plays, how many episodes are finished, and how many there are."""

_AGENT_CONCURRENCY = 8
"""Concurrent episodes of a user's agent, which may wait for a server."""


@dataclass(frozen=True)
class EvalRows:
    """The rows to play, and their description."""

    rows: Rows | None
    """None: there is no dataset, and episodes differ by their seeds."""
    words: str
    """`held-out seeds`, `16 held-out rows`, `984 training rows`."""

    @property
    def is_seeds(self) -> bool:
        return self.rows is None

    def often(self, num_episodes: int) -> str:
        """Return how often each row is played in so many episodes, as text."""
        num_rows = len(self.rows or ())
        if not num_rows or num_episodes < num_rows:
            return ""
        if num_episodes == num_rows:
            return ", each once"
        if num_rows == 1:
            return " (the interval is over its episodes, and says nothing about other rows)"
        return f", each {num_episodes // num_rows:,} times (intervals are over rows)"


def rows_of_split(parts: UserComponents, split: str | None, name: str = "") -> EvalRows:
    """Return the rows of a split; without one, held-out rows, or training rows if there are none.

    `name` is the environment of a mix.
    """
    where = f" of {name}" if name else ""
    if split == "train":
        if parts.train_rows is None:
            raise ConfigError(
                f"--split train plays the rows that were trained on, and there is no dataset{where}"
                ": episodes differ by their seeds, and evaluations are on seeds that training "
                "never plays. Leave out --split."
            )
        return _counted(parts.train_rows, "training")
    if split == "eval" and parts.eval_rows is not None and not parts.holds_rows_out:
        raise ConfigError(
            f"--split eval plays held-out rows, and there are none{where}: all "
            f"{len(parts.eval_rows):,} rows were trained on. To hold rows out, train with "
            "eval_dataset (a file of other rows), or with training.eval_fraction (5 % by default) "
            "and at least 64 different rows. To evaluate on other rows now: --dataset FILE; on the "
            "rows that were trained on: --split train."
        )
    if parts.eval_rows is None or parts.holds_rows_out:
        return EvalRows(parts.eval_rows, parts.evaluates_on)
    return _counted(parts.eval_rows, "training")


def _counted(rows: Rows, kind: str) -> EvalRows:
    return EvalRows(rows, f"{len(rows):,} {kind} row{'' if len(rows) == 1 else 's'}")


@dataclass(frozen=True)
class Plan:
    """How many tasks are played, how often, and by whom."""

    num_tasks: int
    k: int | None = None
    """Attempts per task; None: one, without pass@k."""
    is_greedy: bool = True
    agent: str | None = None
    """Who plays instead of the model: `expert`, `random`, `file.py:function`, `model at URL`."""
    served: ServedModel | None = None
    """The model behind a URL that plays, if `agent` is its name."""

    def num_episodes(self, chosen: EvalRows) -> int:
        """Return the number of tasks that are played; with `k`, each row is one task."""
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
        """The first player: `model` or `agent`."""
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
    """Return the episodes by player: `model` or `agent`, then `expert` and `random` if they exist.

    For an agent, `player` has only a tokenizer, since the agent's actions become tokens too.
    """
    tasks = held_out_tasks(plan.num_episodes(chosen), config.training.seed, chosen.rows)
    attempts = tasks
    if plan.k is not None:
        attempts = [
            dataclasses.replace(task, member=member)
            for task in tasks
            for member in range(plan.num_attempts)
        ]
    with contextlib.ExitStack() as closing, engine_of(player) as engine:
        options = parts.episode_options(config, closing)
        if plan.is_greedy:
            options = dataclasses.replace(options, sampling=GREEDY)
        source = parts.episode_source(config, closing)
        collector = EpisodeCollector(engine, source, options)

        def play_as(who: str, name: str, asked: Sequence[EpisodeTask]) -> list[EpisodeResult]:
            is_scripted = name in SCRIPTED and not isinstance(source, EpisodeSource)
            many = 1 if is_scripted else _AGENT_CONCURRENCY
            if plan.served is not None and name == plan.agent:
                make = _served_episodes(collector.setup, source, plan.served)
            else:
                make = _episode_maker(collector.setup, source, name)
            return _play_as(make, collector, asked, stop, _progress(on_episode, who), many)

        played: dict[str, Sequence[EpisodeResult]] = {}
        if plan.agent is None:
            progress = _progress(on_episode, "model")
            played["model"] = run_tasks(collector, attempts, stop, progress)
        else:
            played["agent"] = play_as("agent", plan.agent, attempts)
        for who in _players_of(source, tasks[0].task):
            if not stop.is_requested and who != plan.agent:
                played[who] = play_as(who, who, tasks)
    return played


def engine_of(player: LoadedModel) -> BaseInferenceEngine:
    """Return the engine of a model; of a scripted player, one that only has the tokenizer."""
    if player.model is None:
        return ScriptedEngine(player.tokenizer)
    return create_inference_engine(player.model, tokenizer=player.tokenizer)


def _progress(on_episode: OnEpisode, who: str) -> Callable[[int, int], None]:
    return lambda done, total: on_episode(who, done, total)


def _players_of(
    source: EnvironmentFactory | EpisodeSource, task: Mapping[str, Any] | None
) -> list[str]:
    """Return which scripted players can act; none if an episode cannot even be reset."""
    if isinstance(source, EpisodeSource):
        return ["expert"] if source.has_expert else []
    env = source()
    env.task = task
    try:
        run_sync(reset_environment(env, 0))
        can = {
            "expert": env.expert_action() is not None,
            "random": env.sample_action(random.Random(0)) is not None,
        }
    except Exception:  # the model's episodes have failed in the same way, and are reported
        return []
    finally:
        close_environment(env)
    return [who for who, able in can.items() if able]


def _episode_maker(
    setup: EpisodeSetup, source: EnvironmentFactory | EpisodeSource, name: str
) -> Callable[[EpisodeTask], PlayableEpisode]:
    """Return what makes the episode of a task, played by the player of this name."""
    if isinstance(source, EpisodeSource):
        if name != "expert":
            raise ConfigError(f"--agent got {name!r}, and this run's agent has no such player")
        return lambda task: source.expert_episode(setup, task)
    agent = agent_by_name(name)
    return lambda task: player_episode(setup, source, agent(task.seed, task.member), task)


def _served_episodes(
    setup: EpisodeSetup, source: EnvironmentFactory | EpisodeSource, served: ServedModel
) -> Callable[[EpisodeTask], PlayableEpisode]:
    """Return what makes the episode of a task, played by a model behind a URL."""
    if isinstance(source, EpisodeSource):
        raise ConfigError(
            "--url plays in environments, and this is an agent with its own loop: let it call that "
            "server itself, and score what it returns."
        )
    # The server counts its own tokens; those of the conversation here are bytes.
    limits = dataclasses.replace(setup.limits, max_tokens=None, max_context_tokens=None)
    setup = dataclasses.replace(setup, limits=limits)
    return lambda task: chat_episode(setup, source, served.reply, task)


def _play_as(
    make: Callable[[EpisodeTask], PlayableEpisode],
    collector: EpisodeCollector,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
    on_episode: Callable[[int, int], None],
    max_concurrency: int,
) -> list[EpisodeResult]:
    """Play with the same tools, limits and rewards as the model."""
    results: dict[int, EpisodeResult] = {}

    async def play_all() -> list[EpisodeResult]:
        waiting = iter(enumerate(tasks))

        async def work() -> None:
            for place, task in waiting:  # shared by all workers
                results[place] = await make(task).run()
                on_episode(len(results), len(tasks))

        await together(work() for _ in range(min(max_concurrency, len(tasks))))
        in_order = [results[place] for place in range(len(tasks))]
        await collector.score_together(in_order)
        return in_order

    return run_unless_stopped(play_all(), stop)
