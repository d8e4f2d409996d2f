"""The metrics of a step's episodes: all metrics that do not come from the learner."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from turnwise.episode import AgentRecord, Collection, EpisodeResult, TurnRecord
from turnwise.inference import FinishReason
from turnwise.tools import ToolFailure
from turnwise.trainer.reporter import Metrics

_TIMED = ("engine", "environment", "tools", "reward")
_PER_ENVIRONMENT = (
    *("num_groups", "num_episodes", "reward", "reward_std", "success", "turns"),
    *("tokens_per_episode", "truncated", "errors", "invalid_actions"),
)
"""Metrics that a step logs for each environment of a mix."""


def step_metrics(played: Collection, success_reported: Set[str] = frozenset()) -> Metrics:
    """Return the metrics of all episodes, and of each environment of a mix: `maze/reward` ...

    `success_reported` has the environments of a mix ("" without one) whose earlier episodes have
    reported success. An environment that reports only successes had none where it reports nothing;
    of one that never reported any, nothing is known, and there is no `success`.
    """
    metrics = episode_metrics(played, success_reported)
    for name in sorted({result.part for result in [*played, *played.dropped]} - {""}):
        values = episode_metrics(episodes_of(played, name), success_reported)
        metrics |= {f"{name}/{key}": values[key] for key in _PER_ENVIRONMENT if key in values}
    return metrics


def environments_with_success(played: Collection) -> set[str]:
    """Return the environments of a mix whose episodes report success; "" without a mix."""
    return {
        result.part
        for result in played
        if any(agent.trajectory.reports_success for agent in result.agents)
    }


def episodes_of(played: Collection, name: str) -> Collection:
    """Return the episodes of one environment of a mix."""
    return Collection(
        [result for result in played if result.part == name],
        [result for result in played.dropped if result.part == name],
    )


def weighted_mean(by_environment: Mapping[str, Metrics], weights: Mapping[str, float]) -> Metrics:
    """Return the mean of an evaluation's metrics, each environment counted with its mix weight.

    So they estimate what the metrics of a training step do, in which each environment has its
    share of the episodes. A metric that some environments lack is averaged over the others.
    """
    metrics: Metrics = {}
    for name in dict.fromkeys(key for found in by_environment.values() for key in found):
        own = {env: found[name] for env, found in by_environment.items() if name in found}
        total = sum(weights[env] for env in own)
        metrics[name] = sum(weights[env] * value for env, value in own.items()) / total
    if "reward_std" in metrics:  # of the mixture: the means of the environments differ too
        squares = {
            env: {"square": found["reward_std"] ** 2 + found["reward"] ** 2}
            for env, found in by_environment.items()
            if "reward" in found
        }
        mean_square = weighted_mean(squares, weights)["square"]
        metrics["reward_std"] = math.sqrt(max(0.0, mean_square - metrics["reward"] ** 2))
    return metrics


def episode_metrics(collection: Collection, success_reported: Set[str] = frozenset()) -> Metrics:
    """Return rewards, success, lengths, how episodes ended, and how tools were used.

    For `success_reported` see `step_metrics`.
    """
    reporting = success_reported | environments_with_success(collection)
    results = [*collection, *collection.dropped]
    agents = [agent for result in collection for agent in result.agents]
    turns = [turn for agent in agents for turn in agent.actions]
    return {
        "num_episodes": len(results),
        "num_groups": len({result.group for result in results}),
        **_rewards(agents),
        **_success([r for r in collection if r.part in reporting]),
        **_credit(agents),
        **_lengths(agents, turns, len(collection)),
        **_endings(results, turns),
        **_tools(turns, len(collection)),
    }


def _rewards(agents: Sequence[AgentRecord]) -> Metrics:
    scored = [agent for agent in agents if agent.reward is not None]
    rewards = [agent.reward for agent in scored if agent.reward is not None]
    if not rewards:
        return {}
    totals = [reward.total for reward in rewards]
    metrics = {
        "reward": statistics.fmean(totals),
        "reward_std": statistics.pstdev(totals),
        "reward_min": min(totals),
        "reward_max": max(totals),
    }
    for name in sorted({name for reward in rewards for name in reward.parts}):
        metrics[f"reward/{name}"] = statistics.fmean(r.parts.get(name, 0.0) for r in rewards)
    num_turns = sum(len(agent.actions) for agent in scored)
    if num_turns:
        metrics["reward_per_turn"] = sum(totals) / num_turns
    return metrics


def _success(results: Iterable[EpisodeResult]) -> Metrics:
    scored = [agent for r in results for agent in r.agents if agent.reward is not None]
    if not scored:
        return {}
    return {"success": statistics.fmean(agent.trajectory.success for agent in scored)}


def _credit(agents: Sequence[AgentRecord]) -> Metrics:
    """Return how well the reward follows success, and whether it is on the turn that earned it."""
    scored = [agent for agent in agents if agent.reward is not None and agent.actions]
    solved = [agent for agent in scored if agent.trajectory.success]
    failed = [agent for agent in scored if not agent.trajectory.success]
    shown = [agent for agent in solved if _repeats_the_prompt(agent)]
    metrics: Metrics = {"answers_shown": len(shown) / len(scored)} if shown else {}
    if not solved or not failed:
        return metrics
    metrics["reward_if_success"] = statistics.fmean(sum(agent.turn_rewards) for agent in solved)
    metrics["reward_if_failure"] = statistics.fmean(sum(agent.turn_rewards) for agent in failed)
    if all(len(a.actions) > 1 for a in solved) and any(len(a.actions) > 1 for a in failed):
        early = _share(a.turn_rewards[-1] <= 0 < max(a.turn_rewards) for a in solved)
        by_others = _share(max(a.turn_rewards[:-1], default=0.0) > 0 for a in failed)
        metrics["misplaced_reward"] = max(early - by_others, 0.0)
    return metrics


def _repeats_the_prompt(agent: AgentRecord) -> bool:
    """Whether its first action ended the episode and is a word of its prompt or first state."""
    trajectory = agent.trajectory
    action = trajectory.actions[0].strip() if len(trajectory.actions) == 1 else ""
    shown = "\n".join([*trajectory.prompts, *trajectory.states[:1]])
    return bool(action) and re.search(rf"(?<!\w){re.escape(action)}(?!\w)", shown) is not None


def _lengths(
    agents: Sequence[AgentRecord], turns: Sequence[TurnRecord], num_episodes: int
) -> Metrics:
    num_sampled = sum(agent.num_sampled_tokens for agent in agents)
    num_tokens = sum(len(agent.stream) for agent in agents)
    metrics: Metrics = {"num_sampled_tokens": num_sampled}
    if num_episodes:
        metrics["turns"] = len(turns) / num_episodes
        metrics["tokens_per_episode"] = num_sampled / num_episodes
        metrics["context_tokens_per_episode"] = (num_tokens - num_sampled) / num_episodes
    if turns:
        metrics["tokens_per_turn"] = num_sampled / len(turns)
    if num_summaries := sum(len(agent.turns) for agent in agents) - len(turns):
        metrics["summaries"] = num_summaries / num_episodes
    return metrics


def _endings(results: Sequence[EpisodeResult], turns: Sequence[TurnRecord]) -> Metrics:
    if not results:
        return {}
    statuses = Counter(result.status for result in results)
    number = len(results)
    cut = [status for status in statuses if status.is_truncated]
    failed = [status for status in statuses if status.is_error]
    metrics = {"truncated": sum(statuses[status] for status in cut) / number}
    for status in sorted(cut):
        metrics[f"truncated/{status.removeprefix('truncated_by_')}"] = statuses[status] / number
    metrics["errors"] = sum(statuses[status] for status in failed) / number
    for status in sorted(failed):
        metrics[f"errors/{status.removesuffix('_error')}"] = statuses[status] / number
    if num_abandoned := sum(result.abandoned_calls for result in results):
        metrics["abandoned_calls"] = num_abandoned
    if turns:
        metrics["cut_turns"] = _share(t.finish_reason is FinishReason.LENGTH for t in turns)
        metrics["invalid_actions"] = _share(bool(t.info.get("invalid_action")) for t in turns)
    return metrics


def _tools(turns: Sequence[TurnRecord], num_episodes: int) -> Metrics:
    results = [result for turn in turns for result in turn.tool_results]
    malformed = [turn.malformed is not None for turn in turns]
    unread = Counter(turn.other_format for turn in turns if turn.other_format is not None)
    if not results and not any(malformed) and not unread:
        return {}
    metrics = {"malformed_calls": _share(malformed), "tool_calls": len(results) / num_episodes}
    if unread:
        metrics["unread_calls"] = unread.total() / len(turns)
    for name, number in sorted(unread.items()):
        metrics[f"unread_calls/{name}"] = number / len(turns)
    # Unknown tool names are left out: a model can invent any number of them.
    known = [r.name for r in results if r.failure is not ToolFailure.UNKNOWN_TOOL]
    for name, number in sorted(Counter(known).items()):
        metrics[f"tool_calls/{name}"] = number / num_episodes
    if results:
        metrics["tool_failures"] = _share(result.failure is not None for result in results)
    return metrics


def staleness(collection: Collection, weight_version: int) -> Metrics:
    """Return by how many updates the sampling weights were behind, if they were.

    `weights_behind` is that of the oldest token; `staleness/N` is the share of tokens that were N
    updates behind.
    """
    num_tokens: Counter[int] = Counter()
    for turn in (turn for result in collection for agent in result.agents for turn in agent.turns):
        for version, number in turn.tokens_by_version.items():
            num_tokens[weight_version - version] += number
    oldest, total = max(num_tokens, default=0), num_tokens.total()
    if oldest <= 0:
        return {}
    mean = sum(behind * number for behind, number in num_tokens.items()) / total
    shares = {f"staleness/{n}": num_tokens[n] / total for n in range(oldest + 1)}
    return {"weights_behind": oldest, "staleness/mean": mean, **shares}


def split_seconds(collection: Collection, seconds: float) -> Metrics:
    """Split the wall time of playing by what the concurrent episodes waited for.

    `time/idle` is the rest: work of the event loop itself, threads being started.
    """
    spent: Counter[str] = Counter()
    for result in [*collection, *collection.dropped]:
        spent.update(result.seconds)
    total = spent["total"] or 1.0
    shares = {name: spent[name] / total for name in _TIMED}
    names = {"engine": "generate"}
    metrics = {f"time/{names.get(name, name)}": seconds * shares[name] for name in _TIMED}
    metrics["time/idle"] = seconds * max(0.0, 1.0 - sum(shares.values()))
    return metrics


def _share(values: Iterable[bool]) -> float:
    return statistics.fmean(values)
