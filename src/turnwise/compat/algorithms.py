"""Algorithms under the names and with the arguments of hand-written loops."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from turnwise.algo.advantages.gae import compute_gae_advantage_return
from turnwise.algo.kl import estimate_kl
from turnwise.algo.losses.policy import compute_policy_loss
from turnwise.algo.masked import TensorMetrics, as_mask, wide
from turnwise.errors import ConfigError

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
    elif not hasattr(config, "clip_ratio"):
        raise ConfigError(f"config got {config!r:.80}, expected clip_ratio: ConfigStore().training")
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
    """GAE for plain step data: rows [B, T], or one [T], in which `dones` marks ends of episodes.

    The steps up to each done are one episode; the value after the last step of a row is 0. Steps
    outside of `response_mask` are skipped. Returns advantages and returns [B, T], not whitened.
    """
    if not rewards.shape == values.shape == dones.shape:
        shapes = [list(x.shape) for x in (rewards, values, dones)]
        raise ConfigError(f"rewards, values and dones got the shapes {shapes}, expected one shape")
    if not values.numel():
        return torch.zeros_like(wide(values)), torch.zeros_like(wide(values))
    ends = as_mask(dones)
    mask = torch.ones_like(ends) if response_mask is None else as_mask(response_mask)
    # A row for each episode; a done still belongs to its own.
    lasts = ends & mask
    lasts[..., -1] = True
    (at,) = lasts.flatten().nonzero(as_tuple=True)
    lengths = at.diff(prepend=at.new_tensor([-1])).tolist()

    def split(x: torch.Tensor) -> torch.Tensor:
        return pad_sequence(list(torch.split(x.flatten(), lengths)), batch_first=True)

    parts = compute_gae_advantage_return(
        split(rewards), split(values), split(mask), gamma, lam, whiten=False
    )
    is_step = split(torch.ones_like(mask))
    advantages, returns = (part[is_step].view(values.shape) for part in parts)
    return advantages, returns
