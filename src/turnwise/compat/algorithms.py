"""Algorithms under the names and with the arguments of hand-written loops."""

from collections.abc import Mapping
from typing import Any

import torch

from turnwise.algo.advantages.gae import compute_gae_advantage_return
from turnwise.algo.kl import estimate_kl
from turnwise.algo.losses.policy import compute_policy_loss
from turnwise.algo.masked import TensorMetrics, as_mask, wide

compute_kl_penalty = estimate_kl


def compute_ppo_loss(
    old_log_probs: torch.Tensor,
    new_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """`compute_policy_loss` with the clip range read from a config.

    `config` is a mapping or an object with `clip_ratio` (`ConfigStore().training` is one); None
    takes the default.
    """
    if config is None or isinstance(config, Mapping):
        clip_ratio = (config or {}).get("clip_ratio", 0.2)
    else:
        clip_ratio = config.clip_ratio
    return compute_policy_loss(old_log_probs, new_log_probs, advantages, response_mask, clip_ratio)


def estimate_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    dones: torch.Tensor,
    gamma: float,
    lam: float,
    response_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE for plain step data: rows [B, T] of steps in which `dones` marks the ends of episodes.

    The steps up to each done are one episode; the value after the last step of a row is 0. Steps
    outside of `response_mask` are skipped. Returns advantages and returns [B, T], not whitened.
    """
    ends = as_mask(dones)
    mask = torch.ones_like(ends) if response_mask is None else as_mask(response_mask)
    ends = ends & mask
    episode = ends.cumsum(1) - ends.long()  # of each step; a done still belongs to its own
    advantages = returns = torch.zeros_like(wide(values))
    for number in range(int(episode.max()) + 1 if episode.numel() else 0):
        steps = mask & (episode == number)  # outside of them both are 0
        parts = compute_gae_advantage_return(rewards, values, steps, gamma, lam, whiten=False)
        advantages, returns = advantages + parts[0], returns + parts[1]
    return advantages, returns
