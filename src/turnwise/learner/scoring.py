"""What the model says about a batch as it is, without learning from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import has_adapters, without_adapters
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, make_packs


class Scorer:
    """Computes batches in packs: log-probs, entropy, values."""

    model: PolicyValueModel
    options: LearnerOptions
    _reference: PolicyValueModel | None
    _fitting_tokens: int

    @torch.no_grad()
    def score(self, batch: PPOBatch) -> Outputs:
        """Log-probs, entropy and values as the model has them now: [B, T] on its device."""
        return self._score(self.model, batch)

    @torch.no_grad()
    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        """The reference's log-probs [B, T]."""
        if self._reference is not None:
            return self._score(self._reference, batch).log_probs
        if not has_adapters(self.model.policy):
            raise ConfigError("a KL term needs a reference model, and the learner has none")
        with without_adapters(self.model.policy):
            return self._score(self.model, batch).log_probs

    def _score(self, model: PolicyValueModel, batch: PPOBatch) -> Outputs:
        device, shape = model.device, batch.input_ids.shape
        dtype = torch.promote_types(model.policy.dtype, torch.float32)
        grids = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(3)]
        last_values = torch.zeros(len(batch), device=device, dtype=dtype)
        ids = batch.input_ids.to(device)
        packs = self._packs(batch, torch.arange(len(batch)))
        for pack in self._paced(packs, model.forward_pack, batch):
            rows = pack.rows.to(device)
            outputs = model.forward_pack(ids, pack)
            for grid, part in zip(grids, (outputs.log_probs, outputs.entropy), strict=False):
                grid[rows] = part
            if outputs.values is not None and outputs.last_values is not None:
                grids[2][rows] = outputs.values.to(dtype)
                last_values[rows] = outputs.last_values.to(dtype)
        if not model.has_critic:
            return Outputs(grids[0], grids[1], None, None)
        return Outputs(grids[0], grids[1], grids[2], last_values)

    @torch.no_grad()
    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        """Σ_v π(v)² where each policy token was sampled: [B, T]."""
        model, shape = self.model, batch.input_ids.shape
        sums = torch.zeros(shape, device=model.device)
        ids = batch.input_ids.to(model.device)
        packs = self._packs(batch, torch.arange(len(batch)))
        for pack in self._paced(packs, model.sum_pi_squared, batch):
            sums[pack.rows.to(model.device)] = model.sum_pi_squared(ids, pack).to(sums.dtype)
        return sums

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        assert batch.attention_mask is not None
        return make_packs(
            batch.attention_mask.cpu(),
            batch.response_mask.cpu(),
            rows,
            self.options.micro_batch_tokens or self._fitting_tokens,
            batch.input_ids if self.model.shares_prefixes else None,
        )

    def _paced(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """The packs, one after the other; `compute` is what is done with each."""
        yield from packs
