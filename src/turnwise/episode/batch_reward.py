"""Rewards of many episodes from one call of a function of a `DataProto` or `RewardBatch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from turnwise.deadlines import call_with_deadline
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.types import AgentRecord, EpisodeResult
from turnwise.errors import RewardError
from turnwise.reward import Reward, RewardBatch
from turnwise.reward.batches import Columns, is_data_proto
from turnwise.reward.function import RewardFunction
from turnwise.reward.result import read_reward
from turnwise.types import EpisodeStatus


class BatchReward:
    """A reward function that is called once with all episodes of a collection.

    It takes the place of the setup's own scoring. It gets VERL's own `DataProto` if its argument,
    whose type is `kind`, is annotated with that class.
    """

    def __init__(self, kind: type | str, setup: EpisodeSetup) -> None:
        self._function = setup.reward
        setup.reward = RewardFunction(None)
        self._kind = kind
        self._timeout = setup.limits.reward_timeout
        """Seconds for each episode of the batch."""
        tokenizer: Any = setup.chat.tokenizer
        self._pad_id = tokenizer.pad_token_id
        if self._pad_id is None:
            self._pad_id = tokenizer.eos_token_id or 0

    async def score(self, results: Iterable[EpisodeResult]) -> None:
        """Sets the rewards of these episodes. If the function fails, all of them have failed."""
        rows = [
            (result, agent)
            for result in results
            for agent in result.agents
            if agent.reward is not None and agent.num_sampled_tokens
        ]
        if not rows:
            return
        data: Any = make_reward_batch(rows, self._pad_id)
        try:
            value = await call_with_deadline(
                self._function.function,
                data.as_data_proto(self._kind) if is_data_proto(self._kind) else data,
                timeout=None if self._timeout is None else self._timeout * len(rows),
                waiting_for=f"reward function {self._function.name!r}",
                limit_name="limits.reward_timeout",
            )
            rewards = read_batch_rewards(value, [agent for _, agent in rows])
        except Exception as error:  # a failing reward fails its episodes
            why = str(self._function.failure(error))
            for result, agent in rows:
                result.status = agent.trajectory.status = EpisodeStatus.REWARD_ERROR
                result.error = agent.trajectory.error = why
                agent.reward = None
            return
        for (_, agent), reward in zip(rows, rewards, strict=True):
            agent.reward = reward


def make_reward_batch(
    rows: Sequence[tuple[EpisodeResult, AgentRecord]], pad_id: int
) -> RewardBatch:
    """Returns episodes as rows of tokens: prompts padded on the left, responses on the right."""
    agents = [agent for _, agent in rows]
    spans = [(agent.stream.turns[0][0], agent.stream.turns[-1][1]) for agent in agents]
    width, length = max(s for s, _ in spans), max(e - s for s, e in spans)
    ids = torch.full((len(rows), width + length), pad_id)
    attention = torch.zeros_like(ids)
    response_mask = torch.zeros(len(rows), length, dtype=torch.long)
    scores = torch.zeros(len(rows), length)
    for row, (agent, (start, end)) in enumerate(zip(agents, spans, strict=True)):
        columns = slice(width - start, width - start + end)
        ids[row, columns] = torch.as_tensor(agent.stream.ids[:end])
        attention[row, columns] = 1
        response_mask[row, : end - start] = torch.as_tensor(agent.stream.mask[start:end])
        scores[row, : end - start] = torch.tensor(agent.token_rewards[start:end])
    tensors = {
        "prompts": ids[:, :width],
        "responses": ids[:, width:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": response_mask,
        "rm_scores": scores,
    }
    return with_columns(
        tensors,
        tasks=[agent.trajectory.task for agent in agents],
        response_texts=["\n".join(turn.text for turn in agent.actions) for agent in agents],
        trajectory=[agent.trajectory for agent in agents],
        extra_info=[{"seed": r.seed, "task": a.trajectory.task} for r, a in rows],
        uid=[f"{result.group}/{agent.name}" for result, agent in rows],
    )


def with_columns(
    tensors: Mapping[str, Any], tasks: Iterable[Mapping[str, Any] | None], **objects: Sequence[Any]
) -> RewardBatch:
    """Returns a batch of these tensors, the columns of the dataset's rows, and other objects."""
    rows = [task or {} for task in tasks]
    names = dict.fromkeys(name for row in rows for name in row if name not in tensors)
    columns = {name: [row.get(name) for row in rows] for name in names}
    arrays = {name: object_array(column) for name, column in (columns | objects).items()}
    return RewardBatch(Columns({**tensors, **columns}), arrays)


def object_array(values: Sequence[Any]) -> Any:
    """Returns a one-dimensional array of objects, also of sequences."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def read_batch_rewards(value: Any, agents: Sequence[AgentRecord]) -> list[Reward]:
    """Reads what a function returned for a batch: one reward per row or per response token."""
    if isinstance(value, Mapping):  # as VERL's own reward managers may return it
        value = value.get("reward_tensor", value)
    rewards = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(rewards, Sequence) or len(rewards) != len(agents):
        got = f"{len(rewards)} rewards" if isinstance(rewards, Sequence) else type(value).__name__
        raise RewardError(
            f"returned {got} for a batch of {len(agents)} episodes. Return one reward for each."
        )
    return [_read_row(row, agent) for row, agent in zip(rewards, agents, strict=True)]


def _read_row(row: Any, agent: AgentRecord) -> Reward:
    if not isinstance(row, Sequence) or len(row) == 1:
        return read_reward(row[0] if isinstance(row, Sequence) else row, len(agent.actions))
    start = first = agent.stream.turns[0][0]
    per_turn = []
    # A reward on a summary belongs to the action after it, or else to the last one.
    for end in [*agent.action_ends[:-1], agent.stream.turns[-1][1]]:
        per_turn.append(float(sum(row[first - start : end - start])))
        first = end
    if any(row[first - start :]):
        raise RewardError("rewards after the last token of a response. Is it padded on the right?")
    return Reward(sum(per_turn), tuple(per_turn))
