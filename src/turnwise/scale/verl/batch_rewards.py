"""Scores VERL's batches in the driver process, by a function of batches or a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from turnwise.deadlines import run_sync
from turnwise.episode.batch_reward import object_array, task_columns
from turnwise.errors import ConfigError, RewardError
from turnwise.reward import RewardBatch, RewardFn, batch_type
from turnwise.reward.batches import Columns

TRAJECTORY = "trajectory"
"""The column that carries an episode from the agent loop to a reward function of batches."""

BatchScorer = Callable[[Any], Any]
"""From a batch to rewards [B], or [B, T] for each token of the responses."""


def scorer_of(function: RewardFn) -> BatchScorer:
    """Return a scorer that calls a user's function with the type of batch that it asks for."""
    from verl.protocol import DataProto

    wants_ours = batch_type(function) is RewardBatch

    def score(data: RewardBatch) -> Any:
        value = function(data if wants_ours else data.as_data_proto(DataProto))
        return run_sync(value) if hasattr(value, "__await__") else value

    return score


def reward_model(worker: Any, config: Any, pools: Any, device_name: str | None) -> BatchScorer:
    """Return a scorer that asks VERL's workers of the role RewardModel."""
    from verl.protocol import DataProto
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
    from verl.trainer.ppo.utils import Role

    group = RayWorkerGroup(
        resource_pool=pools.get_resource_pool(Role.RewardModel),
        ray_cls_with_init=RayClassWithInitArgs(cls=worker, config=config.reward.reward_model),
        device_name=device_name or config.trainer.device,
    )
    if not hasattr(group, "compute_rm_score"):
        raise ConfigError(
            "the worker of the role RewardModel has no compute_rm_score(data) that VERL can call. "
            "Write one, and mark it with VERL's @register."
        )
    if hasattr(group, "init_model"):
        group.init_model()

    def score(data: RewardBatch) -> Any:
        found = group.compute_rm_score(data.as_data_proto(DataProto))
        return found.batch["rm_scores"] if hasattr(found, "batch") else found

    return score


def score_batch(
    score: BatchScorer, output: Any, prompts: Any, failed: np.ndarray[Any, Any]
) -> None:
    """Replace the rewards in a batch of episodes; failed episodes are not passed to `score`."""
    rows = np.flatnonzero([reason is None for reason in failed])
    trajectories = output.non_tensor_batch.pop(TRAJECTORY)
    if not len(rows):
        return
    starts = prompts.non_tensor_batch["extra_info"][rows]
    kept = output.batch[torch.as_tensor(rows)]
    tensors = {name: kept[name] for name in kept.keys()}  # noqa: SIM118 - a TensorDict
    given = task_columns([start["task"] for start in starts])
    own = {name: column for name, column in given.items() if name not in tensors}
    played = [trajectories[row] for row in rows]
    objects = {
        **own,
        "response_texts": ["\n".join(trajectory.actions) for trajectory in played],
        TRAJECTORY: played,
        "extra_info": list(starts),
        "uid": list(prompts.non_tensor_batch["uid"][rows]),
    }
    arrays = {name: object_array(column) for name, column in objects.items()}
    value = score(RewardBatch(Columns({**tensors, **own}), arrays))
    scores = _token_scores(value, tensors["response_mask"])
    output.batch["rm_scores"][torch.as_tensor(rows)] = scores


def _token_scores(value: Any, response_mask: torch.Tensor) -> torch.Tensor:
    """Return rewards per token [B, T]; an episode's reward is on its last sampled token."""
    if isinstance(value, dict):
        value = value.get("reward_tensor", value)
    scores = torch.as_tensor(value, dtype=torch.float32).cpu()
    mask = response_mask.bool()
    if scores.shape == (len(mask),):
        columns = torch.arange(mask.shape[1])
        last = torch.where(mask, columns, -1).amax(1)
        scores = torch.where(mask & (columns == last[:, None]), scores[:, None], 0.0)
    if scores.shape != mask.shape:
        raise RewardError(
            f"the reward function returned shape {tuple(scores.shape)} for a batch of {len(mask)} "
            f"episodes. Return one reward for each, or one for each token {tuple(mask.shape)}."
        )
    if not math.isfinite(float(scores.abs().sum())):
        raise RewardError("the reward function returned a number that is not finite")
    return scores
