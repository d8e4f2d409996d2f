"""What is learned from the episodes of a step: batches, advantages, the update, its metrics."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from turnwise.algo import KLController, apply_kl_penalty, compute_advantages
from turnwise.algo.choose import AdvantageEstimator
from turnwise.algo.kl import without_rounding
from turnwise.config import ConfigStore, TrainingConfig
from turnwise.config.sections import StaleCache
from turnwise.episode import AgentRecord, Collection, EpisodeCollector, EpisodeResult
from turnwise.errors import TrainingStopped
from turnwise.inference import BaseInferenceEngine, SamplingParams
from turnwise.learner import PPOBatch, has_adapters, merged_weights
from turnwise.learner.base import BaseLearner
from turnwise.reward import Reward
from turnwise.runs.episode_table import Phase
from turnwise.trainer.episode_metrics import split_seconds, staleness
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.state import uses_gpu

# In float32 on the same weights the gap stays under 1e-4; that of another model is far above this.
_MAX_GAP_IN_FLOAT32 = 0.01
# The mean gap of bfloat16 and of quantised engines is a few hundredths; of another model some nats.
_MAX_MEAN_GAP = 0.5


@dataclass
class Policy:
    """A model that plays and learns; on Ray, proxies of its parts in the workers."""

    tokenizer: Any
    learner: BaseLearner
    engine: BaseInferenceEngine
    advantages: Advantages

    def publish_weights(self) -> None:
        """Make the engine sample from the learner's current weights."""
        shares = self.engine.shares_model  # then no weights are copied
        self.engine.update_weights(None if shares else policy_weights(self.learner))


@dataclass
class RunComponents(Policy):
    """The run's own policy, and what plays the episodes; the trainer owns and closes them."""

    collector: EpisodeCollector
    others: Mapping[str, Policy] = field(default_factory=dict)
    """The policies of players that learn too, by the player's name."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closes what ends with the run: engines, MCP servers, the agents' gateway."""

    @property
    def policies(self) -> dict[str, Policy]:
        """All policies that learn, by player; the run's own, which plays the others, is ''."""
        return {"": self, **self.others}

    @contextlib.contextmanager
    def updates_in_flight(self, stale_kv: StaleCache) -> Iterator[None]:
        """Let the engine take new weights while it samples, inside the block.

        If it samples from the learner's weights, it pauses from the first step of an update until
        they are published: weights between two optimiser steps have no version.
        """
        self.engine.in_flight = stale_kv
        if self.engine.shares_model:
            self.learner.before_step = self.engine.pause
        try:
            yield
        finally:
            self.learner.before_step = lambda: None
            if self.engine.is_paused:  # the update did not end
                self.publish_weights()
            self.engine.in_flight = None

    def close(self) -> None:
        self.closing.close()


def policy_weights(learner: BaseLearner) -> dict[str, torch.Tensor]:
    """Return the policy's weights by their Hugging Face names, with merged adapters."""
    model = learner.model.policy
    return merged_weights(model) if has_adapters(model) else dict(model.state_dict())


@dataclass(frozen=True)
class PlayedStep:
    """The episodes of a step, before anything is learned from them."""

    episodes: Collection
    metrics: Metrics
    baselines: Mapping[str, float] | None = None
    """The rewards of the greedy episode of each group, for estimators that need them."""
    why_stop: str | None = None
    """Why the run must end after this step, if it must."""


def learn_from(
    step: PlayedStep, components: RunComponents, config: ConfigStore, clock: Stopwatch
) -> tuple[Metrics, Mapping[str, torch.Tensor]]:
    """Compute advantages, update the policies and publish their weights.

    Returns the metrics, and what was computed for each token (`token_columns`). Those of a player's
    own policy begin with its name.
    """
    episodes, metrics = step.episodes, dict(step.metrics)

    def policy_name(agent: AgentRecord) -> str:
        return agent.name if agent.name in config.policies else ""

    agents = [a for result in episodes for a in result.agents if not policy_name(a)]
    metrics |= staleness(agents, components.engine.weight_version)
    rows = [row for row in scored_agents(episodes) if row.agent.num_sampled_tokens]
    if step.baselines is not None:  # without one an advantage is unknown, not large
        without_baseline = {row.group for row in rows} - step.baselines.keys()
        metrics["num_groups_without_baseline"] = len(without_baseline)
        rows = [row for row in rows if row.group not in without_baseline]
    columns: dict[str, torch.Tensor] = {}
    for player, policy in components.policies.items():
        played = [row for row in rows if policy_name(row.agent) == player]
        if not played:
            continue
        batch, learned = make_batch(played), dict[str, float]()
        if policy.engine.in_flight is None:
            policy.engine.sleep()  # until its weights are published below
        with clock.timing("log_probs"):
            learned |= policy.advantages.fill(batch, played, step.baselines)
        with clock.timing("update"):
            learned |= policy.learner.update(batch)
            policy.publish_weights()
        check_gap(
            config.training.max_log_prob_gap,
            metrics | learned,  # stale weights explain a gap
            components.collector.setup.sampling,
            is_exact=policy.advantages.sampler_is_exact,
        )
        if player:
            learned["reward"] = sum(row.reward.total for row in played) / len(played)
            learned = {f"{player}/{name}": value for name, value in learned.items()}
        metrics |= learned
        log_probs = policy.learner.log_probs_before_update
        computed = token_columns([*episodes, *episodes.dropped], played, batch, log_probs)
        for name, column in computed.items():  # zeros where another policy played
            columns[name] = columns[name] + column if name in columns else column
    return metrics, columns


@dataclass(frozen=True)
class AgentRow:
    """One agent of one episode, which is one row of the batch."""

    result: EpisodeResult
    agent: AgentRecord

    @property
    def group(self) -> str:
        """The group of its advantages: agents with the same name are compared with each other."""
        return f"{self.result.group}/{self.agent.name}"

    @property
    def reward(self) -> Reward:
        assert self.agent.reward is not None
        return self.agent.reward


def scored_agents(results: Iterable[EpisodeResult]) -> list[AgentRow]:
    """Return the agents of episodes that did not fail."""
    rows = [AgentRow(result, agent) for result in results for agent in result.agents]
    return [row for row in rows if row.agent.reward is not None]


def make_batch(rows: list[AgentRow]) -> PPOBatch:
    """Return a batch of tokens, masks and log-probs, with rewards on each turn's last token."""
    agents = [row.agent for row in rows]
    batch = PPOBatch.from_streams([agent.stream for agent in agents])
    branches = [agent.branches for agent in agents]
    batch.branches = branches if any(branches) else None
    batch.rewards = torch.zeros(batch.input_ids.shape)
    for earned, agent in zip(batch.rewards, agents, strict=True):
        earned[agent.reward_positions] = torch.tensor(agent.turn_rewards)
    return batch


def turn_ids(batch: PPOBatch, rows: list[AgentRow]) -> torch.Tensor:
    """Return the number of the turn of each sampled token, 0 elsewhere."""
    ids = torch.zeros(batch.input_ids.shape, dtype=torch.long)
    for row_ids, agent in zip(ids, (row.agent for row in rows), strict=True):
        for turn, (start, end) in zip(agent.action_numbers, agent.stream.turns, strict=True):
            row_ids[start:end] = turn
    return ids


class Advantages:
    """Completes a batch for the update: old log-probs, values, KL penalty, advantages."""

    def __init__(
        self,
        training: TrainingConfig,
        learner: BaseLearner,
        estimator: AdvantageEstimator,
        *,
        sampler_is_exact: bool,
    ) -> None:
        self.kl_controller = KLController(
            training.kl_coef,
            training.kl_target,
            adaptive=training.kl_target is not None,
            horizon=training.kl_horizon,
        )
        self.estimator = estimator
        self.sampler_is_exact = sampler_is_exact
        """Whether the engine's log-probs equal the learner's."""
        self._training = training
        self._learner = learner

    def fill(
        self, batch: PPOBatch, rows: list[AgentRow], baselines: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Complete a batch in place; return metrics about it."""
        training, learner, metrics = self._training, self._learner, dict[str, float]()
        batch.sampler_is_exact = self.sampler_is_exact
        fields: dict[str, Any] = {}
        """All that an estimator may take, by the names of its parameters."""
        # Otherwise the update takes them from its own forward.
        needs_old = self.estimator.needs_old_log_probs or training.use_kl_in_reward
        if learner.model.has_critic or (needs_old and not self.sampler_is_exact):
            outputs = learner.score(batch)
            batch.learner_log_probs = outputs.log_probs.cpu()
            if not self.sampler_is_exact:
                batch.old_log_probs = batch.learner_log_probs
            if outputs.values is not None:
                fields["values"] = batch.values = outputs.values.cpu()
            if outputs.last_values is not None:
                # A truncated episode is bootstrapped with the value of its last state.
                is_cut = torch.tensor([row.result.status.is_truncated for row in rows])
                fields["bootstrap_values"] = torch.where(is_cut, outputs.last_values.cpu(), 0.0)
        if training.use_kl_in_reward or training.kl_loss_coef:
            batch.ref_log_probs = learner.reference_log_probs(batch).cpu()
        rewards = batch.need("rewards")
        if training.use_kl_in_reward:
            sampled, mask = batch.behaviour_log_probs, batch.response_mask
            coef = self.kl_controller.value
            reference = batch.need("ref_log_probs")
            reference = without_rounding(sampled, reference, mask, learner.model.policy.dtype)
            rewards, kl = apply_kl_penalty(
                rewards, sampled, reference, mask, coef, training.kl_penalty
            )
            metrics["kl_ref"], metrics["kl_coef"] = float(kl), coef
            self.kl_controller.update(kl, len(rows))
        if names := sorted({name for row in rows for name in row.reward.parts}):
            parts = [[row.reward.parts.get(name, 0.0) for name in names] for row in rows]
            fields["reward_parts"] = torch.tensor(parts)
        if baselines is not None:
            fields["reward_baselines"] = torch.tensor([baselines[row.group] for row in rows])
        if self.estimator.needs_sum_pi_squared:
            fields["sum_pi_squared"] = learner.sum_pi_squared(batch).cpu()
        fields |= {
            "token_level_rewards": rewards,
            "response_mask": batch.response_mask,
            "index": [row.group for row in rows],
            "gamma": training.gamma,
            "lam": training.lam,
            "turn_ids": turn_ids(batch, rows),
            "anchor_states": [row.agent.trajectory.states for row in rows],
            "old_log_probs": batch.behaviour_log_probs,
        }
        batch.advantages, batch.returns = compute_advantages(self.estimator, fields)
        return metrics


def token_columns(
    results: Iterable[EpisodeResult],
    rows: list[AgentRow],
    batch: PPOBatch,
    log_probs: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Return what was computed for each token, for every agent of every episode: [agents, T].

    Agents that were not learned from have zeros.
    """
    numbers = {id(row.agent): number for number, row in enumerate(rows)}
    agents = [agent for result in results for agent in result.agents]
    width = max((len(agent.stream) for agent in agents), default=0)
    from_row = torch.tensor([numbers.get(id(agent), len(rows)) for agent in agents])
    computed = {
        "log_probs": log_probs,
        "values": batch.values,
        "advantages": batch.advantages,
        "returns": batch.returns,
    }
    columns = {}
    for name, column in computed.items():
        if column is not None:
            padded = torch.zeros(len(rows) + 1, width)
            padded[: len(rows), : column.shape[1]] = column.cpu()
            columns[name] = padded[from_row]
    return columns


def check_gap(
    setting: float | Literal["auto"] | None,
    metrics: Mapping[str, float],
    sampling: SamplingParams,
    *,
    is_exact: bool,
) -> None:
    """Raise if the sampler's log-probs and the learner's differ by more nats than allowed.

    A larger gap means that the episodes come from another model than the learner's. `setting` is
    `training.max_log_prob_gap`; `is_exact` says whether both compute in float32 on the same
    weights, else the mean is judged. A gap is expected, and not checked, where older weights have
    played, or where the sampler filtered tokens, which makes the others likelier.
    """
    is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
    if setting is None or is_filtered or "weights_behind" in metrics:
        return
    name, default = ("gap_max", _MAX_GAP_IN_FLOAT32) if is_exact else ("gap_mean", _MAX_MEAN_GAP)
    limit = default if setting == "auto" else setting
    if metrics.get(name, 0.0) > limit:
        raise TrainingStopped(
            f"the learner's log-probs differ from the sampler's: {name} is {metrics[name]:.3g} "
            f"nats, expected at most {limit:g} (training.max_log_prob_gap; null disables the "
            "check), so the episodes come from another model than the one that is trained. Likely "
            "causes: weights that did not reach the engine, another attention, a quantised engine, "
            "a server with another model or temperature. If the gap is gone with "
            "inference.backend=transformers, it is the engine."
        )


class Stopwatch:
    """Measures the seconds of each phase of a step."""

    def __init__(self) -> None:
        self.began = time.time()
        """Unix time, as in the records of episodes."""
        self.phases: list[Phase] = []
        """Each phase with its start and end, in seconds since the step began."""
        self._started = time.perf_counter()
        self._used_gib: dict[str, float] = {}

    @contextlib.contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            if uses_gpu():
                free, total = torch.cuda.mem_get_info()
                self._used_gib[f"memory/{phase}_gib"] = (total - free) / 2**30
            self.phases.append((phase, started - self._started, ended - self._started))

    def metrics(self, played: Collection) -> Metrics:
        """Return the `time/` metrics; playing is split by what episodes waited for.

        On a GPU also `memory/`: what all processes use there at the end of each phase.
        """
        total = time.perf_counter() - self._started
        sampled = sum(agent.num_sampled_tokens for r in played for agent in r.agents)
        if uses_gpu():
            peak_memory = torch.cuda.max_memory_allocated()
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        seconds: defaultdict[str, float] = defaultdict(float)
        for phase, start, end in self.phases:  # one of each for each policy
            seconds[phase] += end - start
        return {
            "time/step": total,
            **split_seconds(played, seconds.pop("play", 0.0)),
            **{f"time/{phase}": spent for phase, spent in seconds.items()},
            "time/tokens_per_second": sampled / total if total else 0.0,
            "time/episodes_per_second": len(played) / total if total else 0.0,
            "time/memory_gib": peak_memory / 2**30,
            **self._used_gib,
        }
