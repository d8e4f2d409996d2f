"""Plays the episodes of `turnwise eval`: by a model or an agent, and by scripted players."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.status import Status

from turnwise.cli.agents import SCRIPTED, ServedModel, agent_by_name, engine_for
from turnwise.cli.common import INTERRUPTED, legible, make_console, say
from turnwise.config import ConfigStore
from turnwise.deadlines import run_sync
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment, reset_environment
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource, PlayableEpisode, together
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.player_engine import chat_episode, player_episode
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.models import LoadedModel
from turnwise.trainer.components import UserComponents
from turnwise.trainer.episode_metrics import cut_below_own_limit, describe_failure
from turnwise.trainer.rollout import GREEDY, Rows, held_out_tasks, num_of_rows, run_tasks
from turnwise.trainer.stopping import Interrupted, StopRequest, run_unless_stopped

_AGENT_CONCURRENCY = 8
"""Concurrent episodes of a user's agent, which may wait for a server."""


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
    policies: Mapping[str, LoadedModel] = field(default_factory=dict)
    """The models of the run's players that have their own."""

    @property
    def who(self) -> str:
        """The first player: `model` or `agent`."""
        return "model" if self.agent is None else "agent"


@dataclass
class Part:
    """An environment that is evaluated: the only one of a run, or one of a mix."""

    config: ConfigStore
    components: UserComponents
    rows: Rows | None
    """None: there is no dataset, and episodes differ by their seeds."""
    evaluated_on: str
    """`held-out seeds`, `16 held-out rows`, `984 training rows`."""
    num_tasks: int
    played: dict[str, Sequence[EpisodeResult]] = field(default_factory=dict)
    """The episodes by player: `model` or `agent`, then `expert` and `random` if they exist."""


def make_part(config: ConfigStore, split: str | None, name: str, plan: Plan) -> Part:
    """Return the environment of settings with the rows of a split, which are to be played.

    Without a split these are held-out rows, or training rows if there are none. `name` is the
    environment of a mix.
    """
    components = UserComponents().filled_from(config)
    where = f" of {name}" if name else ""
    rows, evaluated_on = components.eval_rows, components.evaluates_on
    is_trained_on = rows is not None and not components.holds_rows_out
    if split == "train":
        rows, is_trained_on = components.train_rows, True
        if rows is None:
            raise ConfigError(
                f"--split train plays the rows that were trained on, and there is no dataset{where}"
                ": episodes differ by their seeds. Leave out --split."
            )
    elif split == "eval" and is_trained_on:
        raise ConfigError(
            f"--split eval plays held-out rows, and there are none{where}: all "
            f"{len(rows or ()):,} rows were trained on. To hold rows out, train with "
            "eval_dataset or training.eval_fraction; for other rows now: --dataset FILE"
        )
    num_tasks = plan.num_tasks
    if rows is not None:
        if is_trained_on:
            evaluated_on = f"{len(rows):,} training row{'' if len(rows) == 1 else 's'}"
        # Of several attempts, each row is one task.
        num_tasks = num_of_rows(num_tasks, len(rows))
        if plan.k is not None:
            num_tasks = min(plan.num_tasks, len(rows))
    return Part(config, components, rows, evaluated_on, num_tasks)


def play_part(part: Part, player: LoadedModel, plan: Plan, name: str) -> None:
    """Play the tasks by the model or agent, and by the scripted players that the part has.

    `name` is that of an environment of a mix.
    """
    config, components = part.config, part.components
    console = make_console(stderr=True)
    status, stop = Status("", console=console), StopRequest(lambda text: None)
    tasks = held_out_tasks(part.num_tasks, config.training.seed, part.rows)
    attempts = [
        dataclasses.replace(task, member=member) for task in tasks for member in range(plan.k or 1)
    ]

    def play(who: str, name: str | None, tasks: Sequence[EpisodeTask]) -> Sequence[EpisodeResult]:
        def report(done: int, total: int) -> None:
            status.update(f"{who}: {done:,} of {total:,} episodes")

        if name is None:
            return run_tasks(collector, tasks, stop, report)
        make = _episode_maker(collector.setup, source, name, plan)
        is_scripted = name in SCRIPTED and not isinstance(source, EpisodeSource)
        num_workers = 1 if is_scripted else min(_AGENT_CONCURRENCY, len(tasks))
        results: dict[int, EpisodeResult] = {}
        waiting = iter(enumerate(tasks))

        async def work() -> None:
            for number, task in waiting:  # shared by all workers
                results[number] = await make(task).run()
                report(len(results), len(tasks))

        async def play_all() -> list[EpisodeResult]:
            await together(work() for _ in range(num_workers))
            in_order = [results[number] for number in range(len(tasks))]
            await collector.score_together(in_order)
            return in_order

        return run_unless_stopped(play_all(), stop)

    try:
        with (
            status,
            stop.listening(config.inference.stall_timeout),
            contextlib.ExitStack() as closing,
            engine_for(player) as engine,
        ):
            options = components.episode_options(config, closing)
            engines = {
                name: closing.enter_context(engine_for(model))
                for name, model in plan.policies.items()
            }
            options = dataclasses.replace(options, engines=engines)
            if plan.is_greedy:
                options = dataclasses.replace(options, sampling=GREEDY)
            source = components.episode_source(config, closing)
            collector = EpisodeCollector(engine, source, options)
            part.played[plan.who] = play(plan.who, plan.agent, attempts)
            for who in _scripted_players(source, tasks[0].task):
                if not stop.is_requested and who != plan.agent:
                    part.played[who] = play(who, who, tasks)
        if stop.is_requested:
            raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    results = part.played[plan.who]
    if (note := cut_below_own_limit(results)) is not None:
        say(note, err=True)
    if all(result.status.is_error for result in results):
        where = f" of {name}" if name else ""
        why = legible(describe_failure(results[0]))
        raise ConfigError(f"every episode{where} failed, the first one with: {why}")


def _scripted_players(
    source: EnvironmentFactory | EpisodeSource, task: Mapping[str, Any] | None
) -> list[str]:
    """Return which scripted players can act; none if an episode cannot even be reset."""
    if isinstance(source, EpisodeSource):
        return ["expert"] if source.has_expert else []
    env = source()
    env.task = task
    try:
        run_sync(reset_environment(env, 0))
        actions = {"expert": env.expert_action(), "random": env.sample_action(random.Random(0))}
    except Exception:  # the model's episodes have failed in the same way, and are reported
        return []
    finally:
        close_environment(env)
    return [who for who, action in actions.items() if action is not None]


def _episode_maker(
    setup: EpisodeSetup,
    source: EnvironmentFactory | EpisodeSource,
    name: str,
    plan: Plan,
) -> Callable[[EpisodeTask], PlayableEpisode]:
    """Return what makes the episode of a task: played by a model behind a URL, or by this name."""
    served = plan.served if name == plan.agent else None
    if isinstance(source, EpisodeSource):
        if served is not None:
            raise ConfigError(
                "--url plays in environments, and this is an agent with its own loop: let it call "
                "that server itself, and score what it returns."
            )
        if name != "expert":
            raise ConfigError(f"--agent got {name!r}, and this run's agent has no such player")
        return lambda task: source.expert_episode(setup, task)
    if served is None:
        agent = agent_by_name(name)
        return lambda task: player_episode(setup, source, agent(task.seed, task.member), task)
    # The server counts its own tokens; those of the conversation here are bytes.
    limits = dataclasses.replace(setup.limits, max_tokens=None, max_context_tokens=None)
    setup = setup.with_limits(limits)
    return lambda task: chat_episode(setup, source, served.reply, task)
