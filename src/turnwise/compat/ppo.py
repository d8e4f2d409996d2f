"""The update under the names that hand-written training loops use."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from turnwise.algo.losses.policy import MAX_LOG_RATIO, compute_policy_loss
from turnwise.algo.losses.value import compute_value_loss
from turnwise.algo.masked import TensorMetrics, masked_whiten
from turnwise.compat.algorithms import estimate_advantages
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.update import Learner


class PPOTrainer:
    """PPO on batches of tokens.

    `policy_model` is a causal language model of transformers, or a `PolicyValueModel`;
    `value_model` the model under the value head: the same one (a shared trunk), another, or None
    for batches that have their advantages. Both are trained in place.
    """

    def __init__(
        self,
        policy_model: Any,
        value_model: Any = None,
        learning_rate: float = 1e-5,
        clip_ratio: float = 0.2,
        entropy_coef: float = 0.01,
        value_loss_coef: float = 0.5,
        gamma: float = 0.99,
        lam: float = 0.95,
    ) -> None:
        self.clip_ratio, self.gamma, self.lam = clip_ratio, gamma, lam
        self.policy_model, self.value_model = policy_model, value_model
        options = LearnerOptions(
            learning_rate=learning_rate,
            policy_loss_options={"clip_ratio": clip_ratio},
            entropy_coef=entropy_coef,
            value_coef=value_loss_coef,
        )
        self.learner = Learner(_policy_value_model(policy_model, value_model), options)

    def compute_gae_advantages(
        self,
        rewards: torch.Tensor,
        values: torch.Tensor,
        dones: torch.Tensor,
        response_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return advantages with mean 0 and variance 1, and returns: [B, T] each.

        With a response mask, GAE runs over the policy's tokens alone; a row is then one episode,
        unless `dones` divides it further.
        """
        mask = (torch.ones_like(dones) if response_mask is None else response_mask).bool()
        advantages, returns = estimate_advantages(
            rewards, values, dones, self.gamma, self.lam, mask
        )
        return masked_whiten(advantages, mask, minuends=returns), returns

    def compute_ppo_loss(
        self,
        old_log_probs: torch.Tensor,
        new_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the clipped policy loss, and metrics, with `ratio_mean` and `ratio_std`."""
        loss, metrics = compute_policy_loss(
            old_log_probs, new_log_probs, advantages, response_mask, self.clip_ratio
        )
        ratio = _ratio_metrics(old_log_probs, new_log_probs, response_mask)
        return loss, {**_numbers({"policy_loss": loss, **metrics}), **ratio}

    def compute_value_loss(
        self,
        values: torch.Tensor,
        returns: torch.Tensor,
        response_mask: torch.Tensor,
        old_values: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return half the squared error, clipped around the old values if given, and metrics."""
        clip = self.learner.options.value_clip
        loss, metrics = compute_value_loss(
            values,
            returns,
            values.detach() if old_values is None else old_values,
            response_mask,
            math.inf if clip is None or old_values is None else clip,
        )
        return loss, _numbers({"value_loss": loss, **metrics})

    def update(self, batch: PPOBatch | Mapping[str, Any], num_epochs: int = 4) -> dict[str, float]:
        """Learn from a batch of episodes; return the metrics of all epochs.

        It needs `input_ids`, `response_mask` and `old_log_probs`, and either `advantages` or
        `rewards` (per token, or one number per episode). Values and advantages are computed once,
        before the first epoch, since they belong to the policy that sampled.

        Metrics are means over the epochs, `ratio_mean` and `ratio_std` those of the last one;
        `epoch_0_policy_loss`, `epoch_0_value_loss` and `epoch_0_total_loss` are those of one epoch.
        """
        model = self.learner.model
        data = _with_sampler_log_probs(PPOBatch.from_mapping(batch)).to(model.device)
        if data.advantages is None and not model.has_critic:
            raise ConfigError(
                "a batch without advantages needs a critic to estimate them: give PPOTrainer a "
                "value_model, or the batch its advantages"
            )
        if model.has_critic and (data.advantages is None or data.returns is None):
            if data.values is None:
                data.values = self.learner.score(data).values
            dones = torch.zeros_like(data.response_mask) if data.dones is None else data.dones
            advantages, data.returns = self.compute_gae_advantages(
                data.need("rewards").float(), data.need("values"), dones, data.response_mask
            )
            data.advantages = advantages if data.advantages is None else data.advantages
        if data.old_log_probs is None and not data.sampler_is_exact:
            data.old_log_probs = self.learner.score(data).log_probs
        epochs = [self.learner.update(data) for _ in range(num_epochs)]
        metrics: dict[str, float] = {}
        for name in dict.fromkeys(name for epoch in epochs for name in epoch):
            values = [epoch[name] for epoch in epochs if name in epoch]
            if name.startswith("gap_"):  # how far the sampler was from the learner, before any step
                metrics[name] = values[0]
            else:
                metrics[name] = sum(values) / (1 if name.startswith("num_") else len(values))
        for number, epoch in enumerate(epochs):
            for name in ("policy_loss", "value_loss", "loss"):
                if name in epoch:
                    label = "total_loss" if name == "loss" else name
                    metrics[f"epoch_{number}_{label}"] = epoch[name]
        log_probs = self.learner.log_probs_before_update
        if epochs and log_probs is not None:
            metrics |= _ratio_metrics(data.behaviour_log_probs, log_probs, data.response_mask)
        return metrics


class DataParallelPPOActor:
    """The policy of one process: its log-probs and its update.

    `config` is a `ConfigStore` or `LearnerOptions`; the model a causal language model of
    transformers or a `PolicyValueModel`.
    """

    def __init__(
        self,
        model: Any,
        config: ConfigStore | LearnerOptions | None = None,
        *,
        reference: Any = None,
    ) -> None:
        options = LearnerOptions.from_config(config) if isinstance(config, ConfigStore) else config
        self.learner = Learner(_policy_value_model(model, None), options, reference=reference)

    def forward(self, data: PPOBatch | Mapping[str, Any]) -> Outputs:
        """Return log-probs and entropy of the policy's tokens [B, T], with gradients."""
        batch = PPOBatch.from_mapping(data)
        return self.learner.model(batch.input_ids, batch.attention_mask, batch.response_mask)  # type: ignore[no-any-return]

    __call__ = forward

    def compute_log_prob(self, data: PPOBatch | Mapping[str, Any]) -> torch.Tensor:
        """Return the policy tokens' log-probs without gradients, as wide as the response mask."""
        batch = PPOBatch.from_mapping(data)
        mask = data.response_mask if isinstance(data, PPOBatch) else data["response_mask"]
        width = torch.as_tensor(mask).shape[1]
        return self.learner.score(batch).log_probs[:, -width:]

    def update_policy(self, data: PPOBatch | Mapping[str, Any]) -> dict[str, float]:
        """Learn from a batch with advantages; return metrics."""
        return self.learner.update(_with_sampler_log_probs(PPOBatch.from_mapping(data)))


def _numbers(metrics: TensorMetrics) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in metrics.items()}


@torch.no_grad()
def _ratio_metrics(
    old_log_probs: torch.Tensor, log_probs: torch.Tensor, response_mask: torch.Tensor
) -> dict[str, float]:
    """Return mean and standard deviation of π_now / π_old over the policy's tokens."""
    log_ratio = (log_probs.double() - old_log_probs)[response_mask.bool()]
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    std = ratio.std() if len(ratio) > 1 else torch.zeros(())
    return {"ratio_mean": float(ratio.mean()), "ratio_std": float(std)} if len(ratio) else {}


def _policy_value_model(policy_model: Any, value_model: Any) -> PolicyValueModel:
    if isinstance(policy_model, PolicyValueModel):
        return policy_model
    return PolicyValueModel(policy_model, value_model)


def _with_sampler_log_probs(batch: PPOBatch) -> PPOBatch:
    """Take `old_log_probs` as the sampler's where a batch has no others: the gap is measured to
    them."""
    if batch.sampler_log_probs is not None or batch.old_log_probs is None:
        return batch
    return dataclasses.replace(batch, sampler_log_probs=batch.old_log_probs, old_log_probs=None)
