"""VERL's agent loop manager and workers, which also place rewards and leave failed episodes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker

from turnwise.errors import TrainingStopped
from turnwise.scale.verl.agent_loop import FAILED, TOKEN_REWARDS
from turnwise.scale.verl.batch_rewards import BatchScorer, score_batch


class EpisodeLoopWorker(AgentLoopWorker):  # type: ignore[misc]  # VERL ships no types
    """Puts each turn's reward on that turn's last sampled token; VERL would sum them."""

    def _postprocess(self, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        rewards = [output.extra_fields.pop(TOKEN_REWARDS) for output in inputs]
        data = super()._postprocess(inputs, *args, **kwargs)
        scores = torch.zeros_like(data.batch["rm_scores"])
        for row, earned in zip(scores, rewards, strict=True):
            row[: len(earned)] = torch.tensor(earned)
        data.batch["rm_scores"] = scores
        return data


class EpisodeLoopManager(AgentLoopManager):  # type: ignore[misc]
    """Numbers the members of a group, and excludes failed episodes from the update."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(EpisodeLoopWorker)
        super().__init__(*args, **kwargs)

    score: BatchScorer | None = None
    """Scores whole batches in this process; None: the episodes have their rewards already."""

    def generate_sequences(self, prompts: Any) -> Any:
        uids = prompts.non_tensor_batch["uid"]
        prompts.non_tensor_batch["session_id"] = _count_within(uids)
        output = super().generate_sequences(prompts)
        failed = output.non_tensor_batch.pop(FAILED)
        if self.score is not None:
            score_batch(self.score, output, prompts, failed)
        leave_out(output.batch, uids, failed, drops_groups=self.config.turnwise.drops_groups)
        return output


def _count_within(uids: Any) -> Any:
    """Return the number of each row within its group."""
    seen: dict[str, int] = {}
    members = np.zeros(len(uids), dtype=np.int64)
    for row, uid in enumerate(uids):
        members[row] = seen.get(uid, 0)
        seen[uid] = members[row] + 1
    return members


def leave_out(batch: Any, uids: Any, failed: Any, *, drops_groups: bool) -> None:
    """Exclude failed episodes from the update, and with `drops_groups` their whole groups.

    VERL needs every row that it asked for. A failed row has no token that is trained on, and gets
    the mean reward of the others in its group, so that it does not change the group's baseline.
    """
    is_failed = np.array([reason is not None for reason in failed])
    if not is_failed.any():
        return
    if is_failed.all():
        raise TrainingStopped(f"every episode of a step failed. The first: {failed[0]}")
    for uid in set(uids[is_failed]):
        members = uids == uid
        rest = members & ~is_failed
        mean = float(batch["rm_scores"][rest].sum(-1).mean()) if rest.any() else 0.0
        for row in np.flatnonzero(members & is_failed):
            batch["rm_scores"][row, 0] = mean
        if drops_groups:
            batch["response_mask"][members] = 0
