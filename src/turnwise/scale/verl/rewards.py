"""Scorers of whole batches in VERL's driver."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from turnwise.deadlines import run_sync
from turnwise.episode.batch_reward import with_columns
from turnwise.errors import RewardError
from turnwise.reward import RewardBatch, RewardFn, batch_type

TRAJECTORY = "trajectory"
"""The column that carries an episode from the agent loop to a reward function of batches."""

BatchScorer = Callable[[Any], Any]
"""From a batch to rewards [B], or [B, T] for each token of the responses."""


def function_scorer(function: RewardFn) -> BatchScorer:
    """Return a scorer that calls a user's function with the type of batch that it asks for."""
    from verl.protocol import DataProto

    wants_ours = batch_type(function) is RewardBatch

    def score(data: RewardBatch) -> Any:
        value = function(data if wants_ours else data.as_data_proto(DataProto))
        return run_sync(value) if hasattr(value, "__await__") else value

    return score


def reward_model_scorer(worker: Any, config: Any, pools: Any, device_name: str) -> BatchScorer:
    """Return a scorer that asks VERL's workers of the role RewardModel."""
    from verl.protocol import DataProto
    from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
    from verl.trainer.ppo.utils import Role

    group = RayWorkerGroup(
        resource_pool=pools.get_resource_pool(Role.RewardModel),
        ray_cls_with_init=RayClassWithInitArgs(cls=worker, config=config.reward.reward_model),
        device_name=device_name,
    )
    if hasattr(group, "init_model"):
        group.init_model()

    def score(data: RewardBatch) -> Any:
        output = group.compute_rm_score(data.as_data_proto(DataProto))
        return output.batch["rm_scores"] if hasattr(output, "batch") else output

    return score


def score_batch(
    score: BatchScorer, output: Any, prompts: Any, failed: np.ndarray[Any, Any]
) -> None:
    """Replace the rewards in a batch of episodes; failed episodes are not passed to `score`.

    A reward of a whole episode is put on its last sampled token.
    """
    rows = np.flatnonzero([reason is None for reason in failed])
    trajectories = output.non_tensor_batch.pop(TRAJECTORY)
    if not len(rows):
        return
    first_rows = prompts.non_tensor_batch["extra_info"][rows]
    kept = output.batch[torch.as_tensor(rows)]
    tensors = {name: kept[name] for name in kept.keys()}  # noqa: SIM118 - a TensorDict
    played = [trajectories[row] for row in rows]
    batch = with_columns(
        tensors,
        tasks=[start["task"] for start in first_rows],
        response_texts=["\n".join(trajectory.actions) for trajectory in played],
        trajectory=played,
        extra_info=list(first_rows),
        uid=list(prompts.non_tensor_batch["uid"][rows]),
    )
    value = score(batch)
    if isinstance(value, dict):
        value = value.get("reward_tensor", value)
    scores = torch.as_tensor(value, dtype=torch.float32).cpu()
    mask = tensors["response_mask"].bool()
    if scores.shape == (len(mask),):
        positions = torch.arange(mask.shape[1])
        last = torch.where(mask, positions, -1).amax(1)
        scores = torch.where(mask & (positions == last[:, None]), scores[:, None], 0.0)
    if scores.shape != mask.shape:
        raise RewardError(
            f"the reward function returned shape {tuple(scores.shape)} for a batch of {len(mask)} "
            f"episodes. Return one reward for each, or one for each token {tuple(mask.shape)}."
        )
    if not torch.isfinite(scores).all():
        raise RewardError("the reward function returned a number that is not finite")
    output.batch["rm_scores"][torch.as_tensor(rows)] = scores
