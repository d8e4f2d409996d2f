"""What a step's episodes say, in numbers: the metrics that do not come from the learner."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from turnwise.episode import AgentRecord, Collection, EpisodeResult, TurnRecord
from turnwise.inference import FinishReason
from turnwise.tools import ToolFailure
from turnwise.trainer.reporter import Metrics

PARTS = ("engine", "environment", "tools", "reward")


def episode_figures(collection: Collection) -> Metrics:
    """Rewards, success, lengths, how episodes ended, how tools were used."""
    results = [*collection, *collection.dropped]
    agents = [agent for result in collection for agent in result.agents]
    turns = [turn for agent in agents for turn in agent.turns]
    return {
        "num_episodes": len(results),
        "num_groups": len({result.group for result in results}),
        **_rewards(agents),
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
    figures = {
        "reward": statistics.fmean(totals),
        "reward_std": statistics.pstdev(totals),
        "reward_min": min(totals),
        "reward_max": max(totals),
        "success": statistics.fmean(agent.trajectory.success for agent in scored),
    }
    for name in sorted({name for reward in rewards for name in reward.parts}):
        figures[f"reward/{name}"] = statistics.fmean(r.parts.get(name, 0.0) for r in rewards)
    num_turns = sum(len(agent.turns) for agent in scored)
    if num_turns:
        figures["reward_per_turn"] = sum(totals) / num_turns
    return figures


def _credit(agents: Sequence[AgentRecord]) -> Metrics:
    """Whether the reward follows success, stands on the turn that brought it, and was earned."""
    scored = [agent for agent in agents if agent.reward is not None and agent.turns]
    solved = [agent for agent in scored if agent.trajectory.success]
    failed = [agent for agent in scored if not agent.trajectory.success]
    shown = [agent for agent in solved if _repeats_the_opening(agent)]
    figures: Metrics = {"answers_shown": len(shown) / len(scored)} if shown else {}
    if not solved or not failed:
        return figures
    figures["reward_if_success"] = statistics.fmean(sum(agent.turn_rewards) for agent in solved)
    figures["reward_if_failure"] = statistics.fmean(sum(agent.turn_rewards) for agent in failed)
    if all(len(agent.turns) > 1 for agent in solved) and any(len(a.turns) > 1 for a in failed):
        early = _share(a.turn_rewards[-1] <= 0 < max(a.turn_rewards) for a in solved)
        by_others = _share(max(a.turn_rewards[:-1], default=0.0) > 0 for a in failed)
        figures["misplaced_reward"] = max(early - by_others, 0.0)
    return figures


def _repeats_the_opening(agent: AgentRecord) -> bool:
    """Whether its first action ended the episode, and stands in what it was shown before."""
    trajectory = agent.trajectory
    action = trajectory.actions[0].strip() if len(trajectory.actions) == 1 else ""
    shown = "\n".join([*trajectory.prompts, *trajectory.states[:1]])
    return bool(action) and re.search(rf"(?<!\w){re.escape(action)}(?!\w)", shown) is not None


def _lengths(
    agents: Sequence[AgentRecord], turns: Sequence[TurnRecord], num_episodes: int
) -> Metrics:
    num_sampled = sum(agent.num_sampled_tokens for agent in agents)
    num_tokens = sum(len(agent.stream) for agent in agents)
    figures: Metrics = {"num_sampled_tokens": num_sampled}
    if num_episodes:
        figures["turns"] = len(turns) / num_episodes
        figures["tokens_per_episode"] = num_sampled / num_episodes
        figures["context_tokens_per_episode"] = (num_tokens - num_sampled) / num_episodes
    if turns:
        figures["tokens_per_turn"] = num_sampled / len(turns)
    return figures


def _endings(results: Sequence[EpisodeResult], turns: Sequence[TurnRecord]) -> Metrics:
    if not results:
        return {}
    statuses = Counter(result.status for result in results)
    number = len(results)
    cut = [status for status in statuses if status.is_truncated]
    failed = [status for status in statuses if status.is_error]
    figures = {"truncated": sum(statuses[status] for status in cut) / number}
    for status in sorted(cut):
        figures[f"truncated/{status.removeprefix('truncated_by_')}"] = statuses[status] / number
    figures["errors"] = sum(statuses[status] for status in failed) / number
    for status in sorted(failed):
        figures[f"errors/{status.removesuffix('_error')}"] = statuses[status] / number
    if num_abandoned := sum(result.abandoned_calls for result in results):
        figures["abandoned_calls"] = num_abandoned
    if turns:
        figures["cut_turns"] = _share(t.finish_reason is FinishReason.LENGTH for t in turns)
        figures["invalid_actions"] = _share(bool(t.info.get("invalid_action")) for t in turns)
    return figures


def _tools(turns: Sequence[TurnRecord], num_episodes: int) -> Metrics:
    results = [result for turn in turns for result in turn.tool_results]
    malformed = [turn.malformed is not None for turn in turns]
    unread = Counter(turn.other_format for turn in turns if turn.other_format is not None)
    if not results and not any(malformed) and not unread:
        return {}
    figures = {"malformed_calls": _share(malformed), "tool_calls": len(results) / num_episodes}
    if unread:
        figures["unread_calls"] = unread.total() / len(turns)
    for name, number in sorted(unread.items()):
        figures[f"unread_calls/{name}"] = number / len(turns)
    # A name that no tool has is the model's invention, and there is no end of those.
    known = [r.name for r in results if r.failure is not ToolFailure.UNKNOWN_TOOL]
    for name, number in sorted(Counter(known).items()):
        figures[f"tool_calls/{name}"] = number / num_episodes
    if results:
        figures["tool_failures"] = _share(result.failure is not None for result in results)
    return figures


def staleness(collection: Collection, weight_version: int) -> Metrics:
    """By how many updates the weights that played were behind, where they were."""
    turns = [turn for result in collection for agent in result.agents for turn in agent.turns]
    behind = max((weight_version - turn.weight_version for turn in turns), default=0)
    return {"weights_behind": behind} if behind else {}


def _share(values: Iterable[bool]) -> float:
    return statistics.fmean(values)


def split_seconds(collection: Collection, seconds: float) -> Metrics:
    """The time of playing, by what episodes waited for: they run at the same time.

    What no episode was in is idle: the event loop's own work, threads that were being made.
    """
    spent: Counter[str] = Counter()
    for result in [*collection, *collection.dropped]:
        spent.update(result.seconds)
    total = spent["total"] or 1.0
    shares = {name: spent[name] / total for name in PARTS}
    names = {"engine": "generate"}
    figures = {f"time/{names.get(name, name)}": seconds * shares[name] for name in PARTS}
    figures["time/idle"] = seconds * max(0.0, 1.0 - sum(shares.values()))
    return figures
