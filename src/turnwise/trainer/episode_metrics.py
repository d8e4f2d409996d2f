"""What the episodes of a step show: all metrics that do not come from the learner; failures.

A run must end where every episode fails, or no step changes the model. What is only suspicious is
reported as soon as it is played.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TypeAlias

from turnwise.episode import AgentRecord, Collection, EpisodeResult, TurnRecord
from turnwise.inference import FinishReason
from turnwise.tools import ToolFailure
from turnwise.trainer.reporter import Metrics
from turnwise.types import EpisodeStatus

FailureKind: TypeAlias = tuple[str, str]
"""How an episode failed: its status, and where in the user's code."""

MAX_FAILED_STEPS = 5
"""A run ends after this many consecutive steps from which nothing can be learned."""
_TIMED = {"engine": "generate", "environment": "environment", "tools": "tools", "reward": "reward"}
_EVALUATED = ("num_episodes", "reward", "reward_std", "success", "turns", "truncated", "errors")
_PER_ENVIRONMENT = (*_EVALUATED, "num_groups", "tokens_per_episode", "invalid_actions")
"""Metrics that a step logs for each environment of a mix."""


def step_metrics(played: Collection, success_reported: Iterable[str] = ()) -> Metrics:
    """Return the metrics of all episodes, and of each environment of a mix: `maze/reward` ...

    `success_reported` has the environments of a mix ("" without one) whose earlier episodes have
    reported success: one that reports only successes had none where it reports nothing.
    """
    metrics = episode_metrics(played, success_reported)
    for name in sorted({result.part for result in [*played, *played.dropped]} - {""}):
        values = episode_metrics(select_part(played, name), success_reported)
        metrics |= {f"{name}/{key}": values[key] for key in _PER_ENVIRONMENT if key in values}
    return metrics


def evaluation_metrics(
    played: Collection, weights: Mapping[str, float], success_reported: Iterable[str]
) -> dict[str, Metrics]:
    """Return the metrics of each environment of a mix, by its prefix, and of all: `maze/` and ''.

    In a mix, whose environments have these weights, the latter are means over the environments,
    each counted with its weight.
    """
    by_part = {}
    for name in weights or [""]:
        part = select_part(played, name)
        failed = [result.status.is_error for result in (*part, *part.dropped)]
        # Failed episodes count as failed only.
        ended_well = Collection(result for result in part if not result.status.is_error)
        metrics = episode_metrics(ended_well, success_reported)
        if failed:
            metrics["errors"] = fmean(failed)
        # Where rows were played several times: confidence intervals count rows.
        is_repeated = metrics["num_groups"] < metrics["num_episodes"]
        kept = (*_EVALUATED, "num_groups") if is_repeated else _EVALUATED
        by_part[name] = {key: metrics[key] for key in kept if key in metrics}
    if not weights:
        return by_part
    whole = weighted_mean(by_part, weights)
    whole["num_episodes"] = sum(values["num_episodes"] for values in by_part.values())
    whole.pop("num_groups", None)  # a weighted mean has no confidence interval
    return {"": whole, **{f"{name}/": values for name, values in by_part.items()}}


def environments_with_success(played: Collection) -> set[str]:
    """Return the environments of a mix whose episodes report success; "" without a mix."""
    return {r.part for r in played if any(a.trajectory.reports_success for a in r.agents)}


def select_part(played: Collection, name: str) -> Collection:
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
    for name in dict.fromkeys(key for values in by_environment.values() for key in values):
        known = {env: values[name] for env, values in by_environment.items() if name in values}
        total = sum(weights[env] for env in known)
        metrics[name] = sum(weights[env] * value for env, value in known.items()) / total
    if "reward_std" in metrics:  # of the mixture: the means of the environments differ too
        squares = {
            env: {"square": values["reward_std"] ** 2 + values["reward"] ** 2}
            for env, values in by_environment.items()
            if "reward" in values
        }
        mean_square = weighted_mean(squares, weights)["square"]
        metrics["reward_std"] = math.sqrt(max(0.0, mean_square - metrics["reward"] ** 2))
    return metrics


def episode_metrics(collection: Collection, success_reported: Iterable[str] = ()) -> Metrics:
    """Return rewards, success, lengths, how episodes ended, and how tools were used.

    An environment that reports success in some episodes only had none in the others.
    """
    results = [*collection, *collection.dropped]
    agents = [agent for result in collection for agent in result.agents]
    turns = [turn for agent in agents for turn in agent.actions]
    metrics: Metrics = {
        "num_episodes": len(results),
        "num_groups": len({result.group for result in results}),
    }
    scored = [agent for agent in agents if agent.reward is not None]
    if rewards := [agent.reward for agent in agents if agent.reward is not None]:
        totals = [reward.total for reward in rewards]
        metrics["reward"], metrics["reward_std"] = fmean(totals), pstdev(totals)
        metrics["reward_min"], metrics["reward_max"] = min(totals), max(totals)
        for name in sorted({name for reward in rewards for name in reward.parts}):
            metrics[f"reward/{name}"] = fmean(r.parts.get(name, 0.0) for r in rewards)
        if num_turns := sum(len(agent.actions) for agent in scored):
            metrics["reward_per_turn"] = sum(totals) / num_turns
    reporting = {*success_reported, *environments_with_success(collection)}
    judged = [agent for r in collection if r.part in reporting for agent in r.agents]
    if successes := [a.trajectory.success for a in judged if a.reward is not None]:
        metrics["success"] = fmean(successes)
    metrics |= _credit([agent for agent in scored if agent.actions])
    num_sampled = sum(agent.num_sampled_tokens for agent in agents)
    num_tokens = sum(len(agent.stream) for agent in agents)
    metrics["num_sampled_tokens"] = num_sampled
    if num_episodes := len(collection):
        metrics["turns"] = len(turns) / num_episodes
        metrics["tokens_per_episode"] = num_sampled / num_episodes
        metrics["context_tokens_per_episode"] = (num_tokens - num_sampled) / num_episodes
    if turns:
        metrics["tokens_per_turn"] = num_sampled / len(turns)
    if num_summaries := sum(len(agent.turns) for agent in agents) - len(turns):
        metrics["summaries"] = num_summaries / num_episodes
    return metrics | _endings(results, turns) | _tools(turns, num_episodes)


def _credit(scored: Sequence[AgentRecord]) -> Metrics:
    """Return how well the reward follows success, and whether it is on the turn that earned it."""
    solved = [agent for agent in scored if agent.trajectory.success]
    failed = [agent for agent in scored if not agent.trajectory.success]
    shown = [agent for agent in solved if _repeats_the_prompt(agent)]
    metrics: Metrics = {"answers_shown": len(shown) / len(scored)} if shown else {}
    if not solved or not failed:
        return metrics
    metrics["reward_if_success"] = fmean(sum(agent.turn_rewards) for agent in solved)
    metrics["reward_if_failure"] = fmean(sum(agent.turn_rewards) for agent in failed)
    if all(len(a.actions) > 1 for a in solved) and any(len(a.actions) > 1 for a in failed):
        early = fmean(a.turn_rewards[-1] <= 0 < max(a.turn_rewards) for a in solved)
        by_others = fmean(max(a.turn_rewards[:-1], default=0.0) > 0 for a in failed)
        metrics["misplaced_reward"] = max(early - by_others, 0.0)
    return metrics


def _repeats_the_prompt(agent: AgentRecord) -> bool:
    """Whether its first action ended the episode and is a word of its prompt or first state."""
    trajectory = agent.trajectory
    action = trajectory.actions[0].strip() if len(trajectory.actions) == 1 else ""
    shown = "\n".join([*trajectory.prompts, *trajectory.states[:1]])
    return bool(action) and re.search(rf"(?<!\w){re.escape(action)}(?!\w)", shown) is not None


def _endings(results: Sequence[EpisodeResult], turns: Sequence[TurnRecord]) -> Metrics:
    if not results:
        return {}
    metrics = {
        "truncated": fmean(result.status.is_truncated for result in results),
        "errors": fmean(result.status.is_error for result in results),
    }
    for status, number in sorted(Counter(result.status for result in results).items()):
        kind = status.removeprefix("truncated_by_").removesuffix("_error")
        if status.is_truncated or status.is_error:
            name = "truncated" if status.is_truncated else "errors"
            metrics[f"{name}/{kind}"] = number / len(results)
    if num_abandoned := sum(result.abandoned_calls for result in results):
        metrics["abandoned_calls"] = num_abandoned
    if turns:
        metrics["cut_turns"] = fmean(t.finish_reason is FinishReason.LENGTH for t in turns)
        metrics["invalid_actions"] = fmean(bool(t.info.get("invalid_action")) for t in turns)
    return metrics


def _tools(turns: Sequence[TurnRecord], num_episodes: int) -> Metrics:
    results = [result for turn in turns for result in turn.tool_results]
    malformed = [turn.malformed is not None for turn in turns]
    unread = Counter(turn.other_format for turn in turns if turn.other_format is not None)
    if not results and not any(malformed) and not unread:
        return {}
    metrics = {"malformed_calls": fmean(malformed), "tool_calls": len(results) / num_episodes}
    if unread:
        metrics["unread_calls"] = unread.total() / len(turns)
    metrics |= {f"unread_calls/{name}": unread[name] / len(turns) for name in sorted(unread)}
    # Unknown tool names are left out: a model can invent any number of them.
    known = Counter(r.name for r in results if r.failure is not ToolFailure.UNKNOWN_TOOL)
    metrics |= {f"tool_calls/{name}": known[name] / num_episodes for name in sorted(known)}
    if results:
        metrics["tool_failures"] = fmean(result.failure is not None for result in results)
    return metrics


def staleness(agents: Iterable[AgentRecord], weight_version: int) -> Metrics:
    """Return by how many updates the weights that agents were sampled from were behind, if any.

    `weights_behind` is that of the oldest token; `staleness/N` is the share of tokens that were N
    updates behind.
    """
    num_tokens: Counter[int] = Counter()
    for turn in (turn for agent in agents for turn in agent.turns):
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
    shares = {name: spent[name] / (spent["total"] or 1.0) for name in _TIMED}
    metrics = {f"time/{_TIMED[name]}": seconds * share for name, share in shares.items()}
    metrics["time/idle"] = seconds * max(0.0, 1.0 - sum(shares.values()))
    return metrics


# ---- failures ----


class FailureReport:
    """Reports the first failed episode of each kind, and when all episodes fail.

    A run must end when no episode of its first step can be learned from, or when all of five
    consecutive steps failed in the same way; in a mix, when this holds for one environment.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._reported: set[FailureKind | str] = set()
        self._in_a_row: dict[str, tuple[FailureKind, int]] = {}
        """By environment: how all its episodes failed, and in how many consecutive steps."""

    def check(self, played: Collection, *, is_first_step: bool) -> str | None:
        """Report new kinds of failures of a step; return why the run must end, or None."""
        episodes = [*played, *played.dropped]
        failed = [result for result in episodes if result.status.is_error]
        for environment in sorted({result.part for result in episodes}):
            results = [result for result in episodes if result.part == environment]
            first, kind = results[0], _kind(results[0])
            is_alike = all(_kind(result) == kind for result in results)
            if not all(map(_is_unusable, results)) or not (is_alike or is_first_step):
                self._in_a_row.pop(environment, None)
                continue
            before, number = self._in_a_row.get(environment, (kind, 0))
            number = number + 1 if before == kind else 1
            self._in_a_row[environment] = kind, number
            if not is_first_step and number < MAX_FAILED_STEPS:
                continue
            if is_first_step:
                where = f"{environment} in the first step" if environment else "the first step"
                which = f"every episode of {where} failed{' in the same way' if is_alike else ''}"
            else:
                where = f" of {environment}" if environment else ""
                which = f"every episode{where} failed in the same way in {number} steps in a row"
            return f"{which}, so there is nothing to learn from.\n{describe_failure(first)}"
        ended_well = [result for result in episodes if not result.status.is_error]
        turns = [turn for r in ended_well for agent in r.agents for turn in agent.turns]
        if is_first_step and ended_well and not turns:
            self._say_once(
                "no calls",
                "no episode of the first step called the model, so there is nothing to learn from. "
                "Pass llm.base_url, llm.api_key and llm.model to the agent's client.",
            )
        elif is_first_step and ended_well and not any("success" in turn.info for turn in turns):
            self._say_once(
                "no success",
                "no episode reported success, so none is shown. To have it measured, return it in "
                'the info of step, or from an agent: {"success": True} or {"success": False}.',
            )
        if (note := cut_below_own_limit(episodes)) is not None:
            self._say_once(note, note)
        for result in failed:
            number = sum(_kind(other) == _kind(result) for other in failed)
            text = f"{number} of {len(episodes)} episodes failed: {describe_failure(result)}"
            self._say_once(_kind(result), text)
        return None

    def _say_once(self, key: FailureKind | str, text: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._say(text)


def _is_unusable(result: EpisodeResult) -> bool:
    """Return whether an episode failed, or was cut before its first turn."""
    is_empty = result.error is not None and not any(agent.turns for agent in result.agents)
    return result.status.is_error or is_empty


def _kind(result: EpisodeResult) -> FailureKind:
    """Return the kind of a failure: the same line of the user's code is the same kind."""
    where = "\n".join((result.traceback or "").splitlines()[:-1])
    return result.status.value, where or (result.error or "")


def describe_failure(result: EpisodeResult) -> str:
    """Return how an episode failed, with the lines of the user's code."""
    text = f"{result.status.value.replace('_', ' ')}: {result.error}"
    lines = (result.traceback or "").removesuffix(str(result.error)).rstrip()  # said already
    return f"{text}\n{lines}" if lines else text


def cut_below_own_limit(episodes: Iterable[EpisodeResult]) -> str | None:
    """Return a note on the first episode with fewer turns than its environment allows, or None."""
    cut = (r.error for r in episodes if r.status is EpisodeStatus.TRUNCATED_BY_TURNS and r.error)
    return next((f"an episode was {error}" for error in cut), None)


def why_nothing_changes(num_broken_steps: int, metrics: Mapping[str, float]) -> str | None:
    """Return why a run should end after so many steps in a row that did not change the model."""
    if num_broken_steps < MAX_FAILED_STEPS:
        return None
    why = "no episode could be learned from. Look at the errors in log.txt."
    if metrics.get("num_skipped_steps"):
        why = (
            "the loss or its gradient was not a finite number. Lower training.learning_rate, "
            "or look for extreme rewards."
        )
    return f"{MAX_FAILED_STEPS} steps in a row changed nothing: {why}"
