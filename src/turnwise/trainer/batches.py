"""From episodes to batches: tokens, rewards on the tokens that earned them, advantages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.algo import KLController, apply_kl_penalty, compute_advantages
from turnwise.algo.kl import without_rounding
from turnwise.algo.records import AdvantageEstimator
from turnwise.config import TrainingConfig
from turnwise.episode import AgentRecord, EpisodeResult
from turnwise.learner import PPOBatch
from turnwise.learner.base import BaseLearner
from turnwise.reward import Reward


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
    return [
        AgentRow(result, agent)
        for result in results
        for agent in result.agents
        if agent.reward is not None
    ]


def trained_rows(
    results: Iterable[EpisodeResult], baselines: Mapping[str, float] | None = None
) -> list[AgentRow]:
    """Return the agents that can be learned from: they sampled tokens and have a reward.

    With `baselines` they must have one too: without it their advantage is unknown, not large.
    """
    return [
        row
        for row in scored_agents(results)
        if row.agent.num_sampled_tokens and (baselines is None or row.group in baselines)
    ]


def make_batch(rows: list[AgentRow]) -> PPOBatch:
    """Return a batch of tokens, masks and log-probs, with rewards on each turn's last token."""
    batch = PPOBatch.from_streams([row.agent.stream for row in rows])
    branches = [row.agent.branches for row in rows]
    batch.branches = branches if any(branches) else None
    rewards = torch.zeros(batch.input_ids.shape)
    for number, row in enumerate(rows):
        places, earned = row.agent.reward_positions, row.agent.turn_rewards
        rewards[number, places] = torch.tensor(earned)
    batch.rewards = rewards
    return batch


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
        self._training = training
        self._learner = learner
        self.sampler_is_exact = sampler_is_exact
        """Whether the engine's log-probs equal the learner's."""
        self._has_critic = learner.model.has_critic
        self.estimator = estimator

    def fill(
        self, batch: PPOBatch, rows: list[AgentRow], baselines: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Complete a batch in place; return metrics about it."""
        training, learner, metrics = self._training, self._learner, dict[str, float]()
        last_values = None
        batch.sampler_is_exact = self.sampler_is_exact
        # Otherwise the update takes them from its own forward.
        needs_old = self.estimator.needs_old_log_probs or training.use_kl_in_reward
        if self._has_critic or (needs_old and not self.sampler_is_exact):
            outputs = learner.score(batch)
            batch.learner_log_probs = outputs.log_probs.cpu()
            batch.values = _on_cpu(outputs.values)
            last_values = _on_cpu(outputs.last_values)
            if not self.sampler_is_exact:
                batch.old_log_probs = batch.learner_log_probs
        if training.use_kl_in_reward or training.kl_loss_coef:
            batch.ref_log_probs = learner.reference_log_probs(batch).cpu()
        rewards = batch.need("rewards")
        if training.use_kl_in_reward:
            sampled, mask = batch.behaviour_log_probs, batch.response_mask
            dtype = learner.model.policy.dtype
            rewards, kl = apply_kl_penalty(
                rewards,
                sampled,
                without_rounding(sampled, batch.need("ref_log_probs"), mask, dtype),
                mask,
                self.kl_controller.value,
                training.kl_penalty,
            )
            metrics["kl_ref"], metrics["kl_coef"] = float(kl), self.kl_controller.value
            self.kl_controller.update(kl, len(rows))
        fields = self._estimator_fields(batch, rows, rewards, last_values, baselines)
        batch.advantages, batch.returns = compute_advantages(self.estimator, fields)
        return metrics

    def _estimator_fields(
        self,
        batch: PPOBatch,
        rows: list[AgentRow],
        rewards: torch.Tensor,
        last_values: torch.Tensor | None,
        baselines: Mapping[str, float] | None,
    ) -> dict[str, Any]:
        """Return all that an estimator may take, by the names of its parameters."""
        fields: dict[str, Any] = {
            "token_level_rewards": rewards,
            "response_mask": batch.response_mask,
            "index": [row.group for row in rows],
            "gamma": self._training.gamma,
            "lam": self._training.lam,
            "turn_ids": _turn_ids(batch, rows),
            "anchor_states": [row.agent.trajectory.states for row in rows],
            "old_log_probs": batch.behaviour_log_probs,
        }
        components = _reward_components(rows)
        if components is not None:
            fields["reward_parts"] = components
        if batch.values is not None:
            fields["values"] = batch.values
        if last_values is not None:
            # A truncated episode is bootstrapped with the value of its last state.
            is_cut = torch.tensor([row.result.status.is_truncated for row in rows])
            fields["bootstrap_values"] = torch.where(is_cut, last_values, 0.0)
        if baselines is not None:
            fields["reward_baselines"] = torch.tensor([baselines[row.group] for row in rows])
        if self.estimator.needs_sum_pi_squared:
            fields["sum_pi_squared"] = self._learner.sum_pi_squared(batch).cpu()
        return fields


def token_columns(
    results: Iterable[EpisodeResult],
    rows: list[AgentRow],
    batch: PPOBatch,
    log_probs: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Return what was computed for each token, for every agent of every episode: [agents, T].

    Agents that were not learned from have zeros.
    """
    places = {id(row.agent): number for number, row in enumerate(rows)}
    agents = [agent for result in results for agent in result.agents]
    width = max((len(agent.stream) for agent in agents), default=0)
    from_row = torch.tensor([places.get(id(agent), len(rows)) for agent in agents])
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


def _turn_ids(batch: PPOBatch, rows: list[AgentRow]) -> torch.Tensor:
    ids = torch.zeros(batch.input_ids.shape, dtype=torch.long)
    for number, row in enumerate(rows):
        agent = row.agent
        for turn, (start, end) in zip(agent.action_numbers, agent.stream.turns, strict=True):
            ids[number, start:end] = turn
    return ids


def _reward_components(rows: list[AgentRow]) -> torch.Tensor | None:
    """Return the named components of the rewards [B, D], None if there are none."""
    names = sorted({name for row in rows for name in row.reward.parts})
    if not names:
        return None
    return torch.tensor([[row.reward.parts.get(name, 0.0) for name in names] for row in rows])


def _on_cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.cpu()
