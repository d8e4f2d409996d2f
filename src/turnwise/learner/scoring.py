"""What the model computes for a batch without learning from it: log-probs, entropy, values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import has_adapters, without_adapters
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, default_micro_batch_tokens, make_packs


class Scorer:
    """Computes batches in packs, with a model and with the reference model of a KL term.

    `reference` is a causal language model, frozen here; where the policy has adapters, the
    reference is the policy without them, and none need be given.
    """

    def __init__(self, model: PolicyValueModel, options: LearnerOptions, reference: Any) -> None:
        self.model = model
        self.options = options
        self._default_micro_batch_tokens = default_micro_batch_tokens(model.policy)
        self._reference: PolicyValueModel | None = None
        self._has_own_reference = False
        """Whether the reference is not the initial model, and so part of a checkpoint."""
        if reference is not None:
            for parameter in reference.parameters():
                parameter.requires_grad_(False)
            self._reference = PolicyValueModel(
                reference, None, temperature=model.temperature, layout=model.layout
            )

    @torch.no_grad()
    def score(self, batch: PPOBatch) -> Outputs:
        """Return the model's current log-probs, entropy and values: [B, T] on its device."""
        return self._score(self.model, batch)

    @torch.no_grad()
    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        """Return the log-probs of the reference [B, T]."""
        if self._reference is not None:
            return self._score(self._reference, batch).log_probs
        if not has_adapters(self.model.policy):
            raise ConfigError("a KL term needs a reference model, and the learner has none")
        with without_adapters(self.model.policy):
            return self._score(self.model, batch).log_probs

    def _score(self, model: PolicyValueModel, batch: PPOBatch) -> Outputs:
        device, shape = model.device, batch.input_ids.shape
        dtype = torch.promote_types(model.policy.dtype, torch.float32)
        log_probs, entropy, values = torch.zeros((3, *shape), device=device, dtype=dtype).unbind()
        last_values = torch.zeros(len(batch), device=device, dtype=dtype)
        ids = batch.input_ids.to(device)
        packs = self._packs(batch, torch.arange(len(batch)))
        for pack in self._in_lockstep(packs, model.forward_pack, batch):
            rows = pack.rows.to(device)
            outputs = model.forward_pack(ids, pack)
            log_probs[rows], entropy[rows] = outputs.log_probs, outputs.entropy
            if outputs.values is not None and outputs.last_values is not None:
                values[rows] = outputs.values.to(dtype)
                last_values[rows] = outputs.last_values.to(dtype)
        if not model.has_critic:
            return Outputs(log_probs, entropy, None, None)
        return Outputs(log_probs, entropy, values, last_values)

    @torch.no_grad()
    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        """Return Σ_v π(v)² where each policy token was sampled: [B, T]."""
        model, shape = self.model, batch.input_ids.shape
        sums = torch.zeros(shape, device=model.device)
        ids = batch.input_ids.to(model.device)
        packs = self._packs(batch, torch.arange(len(batch)))
        for pack in self._in_lockstep(packs, model.sum_pi_squared, batch):
            sums[pack.rows.to(model.device)] = model.sum_pi_squared(ids, pack).to(sums.dtype)
        return sums

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        assert batch.attention_mask is not None
        return make_packs(
            batch.attention_mask.cpu(),
            batch.response_mask.cpu(),
            rows,
            self.options.micro_batch_tokens or self._default_micro_batch_tokens,
            batch.input_ids if self.model.shares_prefixes else None,
            batch.branches,
        )

    def _in_lockstep(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """Yield the packs one by one; `compute` is the method of the model that each is for.

        A sharded learner overrides this, since all its workers must compute equally often.
        """
        yield from packs
