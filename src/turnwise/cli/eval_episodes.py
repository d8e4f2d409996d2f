"""Plays the episodes of `turnwise eval`, and scores their players: means and pass@k with 95 %
intervals.

Episodes of one task are not independent, so each task counts as one observation: the mean of its
episodes. Where each task's value is 0 or 1, the interval is Wilson's; otherwise the tasks are
resampled (bootstrap percentiles).

pass@k is how often at least one of k attempts at a task solves it. With n attempts of which c
solved the task, 1 - C(n-c, k) / C(n, k) is the fraction of subsets of k attempts with a solved one:
an unbiased estimate of pass@k for every k up to n.
"""

import contextlib
import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from turnwise.cli.agents import SCRIPTED, ServedModel, agent_by_name, open_collector
from turnwise.cli.common import make_console, say
from turnwise.config import ConfigStore
from turnwise.deadlines import run_sync
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment, reset_environment
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource, PlayableEpisode
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.player_engine import chat_episode, player_episode
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.models import LoadedModel
from turnwise.progress.lines import count
from turnwise.runs.headline import Z, wilson_interval
from turnwise.trainer.components import UserComponents
from turnwise.trainer.episode_metrics import cut_below_own_limit, describe_failure
from turnwise.trainer.rollout import Rows, held_out_tasks, num_of_rows, run_tasks
from turnwise.trainer.stopping import Interrupted, StopRequest

_NUM_RESAMPLES = 2000
_AGENT_CONCURRENCY = 8
"""Concurrent episodes of a user's agent, which may wait for a server."""


@dataclass(frozen=True)
class Plan:
    """How many tasks are played, how often, and by whom."""

    num_tasks: int
    k: int | None
    """Attempts per task; None: one, without pass@k."""
    is_greedy: bool
    agent: str | None
    """Who plays instead of the model: `expert`, `random`, `file.py:function`, `model at URL`."""
    served: ServedModel | None
    """The model behind a URL that plays, if `agent` is its name."""
    players: tuple[LoadedModel, dict[str, LoadedModel]]

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
    """Return the environment of settings, named `name` in a mix, with the rows of a split.

    Without a split these are held-out rows, or training rows if there are none.
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
            f"--split eval plays held-out rows, and there are none{where}: all {len(rows or ()):,} "
            "rows were trained on. To hold rows out, train with eval_dataset or "
            "training.eval_fraction; for other rows now: --dataset FILE"
        )
    num_tasks = plan.num_tasks
    if rows is not None:
        if is_trained_on:
            evaluated_on = count(len(rows), "training row")
        choose = num_of_rows if plan.k is None else min  # of several attempts, a row is one task
        num_tasks = choose(num_tasks, len(rows))
    return Part(config, components, rows, evaluated_on, num_tasks)


def play_part(part: Part, plan: Plan, name: str) -> None:
    """Play the tasks by the model or agent, and by the scripted players that the part has."""
    config, where = part.config, f" of {name}" if name else ""
    console = make_console(stderr=True)
    status, stop = Status("", console=console), StopRequest(lambda text: None)
    tasks = held_out_tasks(part.num_tasks, config.training.seed, part.rows)
    attempts = [
        dataclasses.replace(task, member=member) for task in tasks for member in range(plan.k or 1)
    ]

    def play(who: str, collector: EpisodeCollector, tasks: Sequence[EpisodeTask]) -> None:
        def report(done: int, total: int) -> None:
            status.update(f"{who}: {done:,} of {total:,} episodes")

        part.played[who] = run_tasks(collector, tasks, stop, report)

    try:
        with contextlib.ExitStack() as closing:
            closing.enter_context(status)
            closing.enter_context(stop.listening(config.inference.stall_timeout))
            source = part.components.episode_source(config, closing)
            collector = open_collector(
                config, part.components, source, plan.players, closing, is_greedy=plan.is_greedy
            )
            if plan.agent is None:
                play("model", collector, attempts)
            else:
                play("agent", _collector_for(collector, source, plan.agent, plan.served), attempts)
            for who in _scripted_players(source, tasks[0].task):
                if who != plan.agent:
                    play(who, _collector_for(collector, source, who), tasks)
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise KeyboardInterrupt from None  # typer exits with 130
    results = part.played[plan.who]
    if (note := cut_below_own_limit(results)) is not None:
        say(note, err=True)
    if all(result.status.is_error for result in results):
        why = describe_failure(results[0])
        raise ConfigError(f"every episode{where} failed, the first one with: {why}")


def _scripted_players(
    source: EnvironmentFactory | EpisodeSource, task: Mapping[str, Any] | None
) -> list[str]:
    """Return which scripted players can act; none if an episode cannot even be reset."""
    if isinstance(source, EpisodeSource):
        return [] if source.expert is None else ["expert"]
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


@dataclass(eq=False)
class _PlayedBy(EpisodeSource):
    """Episodes that somebody plays in the model's place."""

    make: Callable[[EpisodeSetup, EpisodeTask], PlayableEpisode]

    def episode(
        self, setup: EpisodeSetup, task: EpisodeTask, attempt: int = 1, *, by_expert: bool = False
    ) -> PlayableEpisode:
        return self.make(setup, task)


def _collector_for(
    collector: EpisodeCollector,
    source: EnvironmentFactory | EpisodeSource,
    name: str,
    served: ServedModel | None = None,
) -> EpisodeCollector:
    """Return a collector of episodes that this player plays, or a model behind a URL."""

    def make(setup: EpisodeSetup, task: EpisodeTask) -> PlayableEpisode:
        if isinstance(source, EpisodeSource):
            return source.episode(setup, task, by_expert=True)
        if served is not None:
            return chat_episode(setup, source, served.reply, task)
        return player_episode(setup, source, agent(task.seed, task.member), task)

    limits, num_workers = collector.setup.limits, _AGENT_CONCURRENCY
    if isinstance(source, EpisodeSource):
        if name != "expert":
            raise ConfigError(f"--agent got {name!r}, and this run's agent has no such player")
    elif served is not None:
        # The server counts its own tokens; those of the conversation here are bytes.
        limits = dataclasses.replace(limits, max_tokens=None, max_context_tokens=None)
    else:
        agent = agent_by_name(name)
        num_workers = 1 if name in SCRIPTED else num_workers
    options = dataclasses.replace(collector.options, limits=limits, max_concurrency=num_workers)
    options = dataclasses.replace(options, on_error="retry", num_retries=0, stall_timeout=None)
    return EpisodeCollector(collector.setup.engine, _PlayedBy(make), options)


# ---- scores ----


def estimate(values: Sequence[float], seed: int, is_rate: bool = True) -> dict[str, float]:
    """Return the mean of one value per task, of at least one task, with its 95 % interval."""
    mean, number = statistics.fmean(values), len(values)
    if is_rate and all(value in (0.0, 1.0) for value in values):
        low, high = wilson_interval(mean, number)
        return {"value": mean, "low": low, "high": high, "num_tasks": number}
    # Of n tasks n - 1 are drawn, so that the variance of these means is the unbiased estimate
    # s**2 / n (Rao and Wu 1988); with n draws it would be (n - 1) / n of it.
    draws = np.random.default_rng(seed).integers(number, size=(_NUM_RESAMPLES, max(number - 1, 1)))
    means = np.asarray(values, dtype=np.float64)[draws].mean(axis=1)
    low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return {"value": mean, "low": low, "high": high, "num_tasks": number}


def score_players(
    played: Mapping[str, Sequence[EpisodeResult]], who: str, k: int | None, seed: int
) -> dict[str, Any]:
    """Return the scores of each player; with `k`, under "attempts" also those of the first, `who`,
    at each task."""
    reports = any(
        agent.trajectory.reports_success
        for results in played.values()
        for result in results
        for agent in result.agents
    )
    scores = {player: player_scores(results, reports, seed) for player, results in played.items()}
    scores = {player: its_scores for player, its_scores in scores.items() if its_scores}
    if k is not None:
        scores["attempts"] = attempt_scores(played[who], k, seed, reports)
    return scores


def player_scores(
    results: Sequence[EpisodeResult], reports: bool, seed: int
) -> dict[str, Any] | None:
    """Return the scores of one player; None if every episode failed with an error.

    Success and reward are means over tasks, with 95 % intervals. All episodes of a row are one
    task: counting each of them would make the intervals too narrow. Rates are fractions of the
    episodes. `reports`: whether the environment ever reports success.
    """
    whole = [result for result in results if not result.status.is_error]
    by_task: dict[int, list[tuple[float, bool]]] = {}
    for result in whole:
        for agent in result.agents:
            if agent.reward is not None:
                outcome = (agent.reward.total, agent.trajectory.success)
                by_task.setdefault(result.group, []).append(outcome)
    if not by_task:
        return None
    tasks = list(by_task.values())
    every = [outcome for outcomes in tasks for outcome in outcomes]
    if len(tasks) == 1:  # then the episodes of the only row are the observations
        tasks = [[outcome] for outcome in every]
    rewards = [statistics.fmean(reward for reward, _ in outcomes) for outcomes in tasks]
    rates = [statistics.fmean(solved for _, solved in outcomes) for outcomes in tasks]
    success = estimate(rates, seed) if reports else dict.fromkeys(("value", "low", "high"))
    # If all tasks have equally many episodes, it is the cluster-robust error of their mean.
    error = statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    return {
        "episodes": len(whole),
        "tasks": len({result.group for result in whole}),
        "success": success["value"],
        "success_low": success["low"],
        "success_high": success["high"],
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.stdev(reward for reward, _ in every) if len(every) > 1 else 0.0,
        "reward_margin": Z * error,  # half of the interval
        "turns": sum(result.num_turns for result in whole) / len(whole),
        "truncated": statistics.fmean(result.status.is_truncated for result in whole),
        "errors": 1 - len(whole) / len(results),
    }


def attempt_scores(
    results: Sequence[EpisodeResult], num_attempts: int, seed: int, reports: bool
) -> dict[str, Any]:
    """Return pass@k, mean@n and reward over all tasks, and the attempts at each.

    Attempts that failed with an error are not counted, and a pass@k leaves out tasks with fewer
    than k others. `reports`: whether the environment ever reports success.
    """
    if any(len(result.agents) > 1 for result in results):
        raise ConfigError("--k is for one agent, and an episode here has several. Leave out --k.")
    tasks: dict[int, dict[str, Any]] = {}
    rewards: dict[int, list[float]] = {}
    for result in results:
        new = {"seed": result.seed, "attempts": 0, "solved": 0, "reward": None}
        task = tasks.setdefault(result.group, new)
        if not result.status.is_error and result.reward is not None:
            task["attempts"] += 1
            task["solved"] += result.trajectory.success
            rewards.setdefault(result.group, []).append(result.reward.total)
            task["reward"] = statistics.fmean(rewards[result.group])
    played = [task for task in tasks.values() if task["attempts"]]
    counts = [(task["attempts"], task["solved"]) for task in played]
    pass_at = {}
    powers = [2**power for power in range(num_attempts.bit_length())]
    for k in dict.fromkeys([*powers, num_attempts]) if reports else ():
        if rates := [pass_at_k(number, solved, k) for number, solved in counts if number >= k]:
            pass_at[str(k)] = estimate(rates, seed)
    rates = [solved / number for number, solved in counts]
    return {
        "k": num_attempts,
        "pass_at_k": pass_at or None,
        "mean_at_k": estimate(rates, seed) if reports else None,
        "reward": estimate([task["reward"] for task in played], seed, is_rate=False),
        "reason": None if pass_at else "only the mean reward is given: no step has info['success']",
        "tasks": list(tasks.values()),
    }


def pass_at_k(num_attempts: int, num_solved: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k attempts solves the task.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 1, 4), pass_at_k(4, 0, 4)
    (0.5, 1.0, 0.0)
    """
    return 1.0 - math.comb(num_attempts - num_solved, k) / math.comb(num_attempts, k)


def show_scores(console: Console, scores: Mapping[str, Any], who: str, name: str) -> None:
    """Print a table of all players, of whom `who` is called `name`; one of pass@k comes first."""

    def show(rows: Sequence[Sequence[str]]) -> None:
        right = [Column(justify="right", no_wrap=True) for _ in rows[0][1:]]
        table = Table.grid(Column(style="bold"), *right, padding=(0, 3))
        for cells in rows:
            table.add_row(*cells, style=None if cells[0] else "dim")
        console.print(table)

    def interval(mean: Mapping[str, float], form: str = ".3f") -> str:
        return f"{mean['value']:{form}} ({mean['low']:{form}} to {mean['high']:{form}})"

    players = dict(scores)
    if (attempts := players.pop("attempts", None)) is not None:
        del players[who]
        means = {f"pass@{k}": mean for k, mean in (attempts["pass_at_k"] or {}).items()}
        if attempts["mean_at_k"] is not None:
            means[f"mean@{attempts['k']}"] = attempts["mean_at_k"]
        rows = [(f"{name} {kind}", interval(mean)) for kind, mean in means.items()]
        show([*rows, (f"{name} reward", interval(attempts["reward"], ".4g"))])
        if attempts["reason"] is not None:
            console.print(attempts["reason"], style="yellow")
    columns = ["reward", "std", "turns", "truncated"]
    if any(values["success"] is not None for values in players.values()):
        columns.insert(0, "success")
    if any(values["errors"] for values in players.values()):
        columns.append("errors")
    table = [["", *columns]]
    keys = {"value": "success", "low": "success_low", "high": "success_high"}
    for player, values in players.items():
        cells = {
            "success": interval({end: values[key] or 0.0 for end, key in keys.items()}),
            "reward": f"{values['reward']:.4g} ± {values['reward_margin']:.2g}",
            "std": f"{values['reward_std']:.3g}",
            "turns": f"{values['turns']:.2f}",
            "truncated": f"{values['truncated']:.1%}",
            "errors": f"{values['errors']:.1%}",
        }
        table.append([name if player == who else player, *(cells[column] for column in columns)])
    show(table)
