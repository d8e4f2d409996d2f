"""What the model computes for a batch without learning from it: log-probs, entropy, values."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from turnwise.errors import ConfigError
from turnwise.learner.base import BaseLearner
from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import has_adapters, without_adapters
from turnwise.learner.memory import CPU_TOKENS, free_memory, plan_memory
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, make_packs
from turnwise.models.model_lock import lock_of
from turnwise.models.probing import is_out_of_memory

_LOG = logging.getLogger("turnwise")
T = TypeVar("T")


class Scorer(BaseLearner):
    """Computes batches in packs, with a model and with the reference model of a KL term.

    `reference` is a causal language model, frozen here; where the policy has adapters, the
    reference is the policy without them, and none need be given.
    """

    can_retry = True
    """Whether packs can be computed again when memory runs out, without the other workers."""

    def __init__(self, model: PolicyValueModel, options: LearnerOptions, reference: Any) -> None:
        super().__init__(options)
        self._model = model
        self._planned_tokens: int | None = None
        self._max_tokens: int | None = None
        """Tokens that are computed at once after memory has run out; None before."""
        self._num_oom_retries = 0
        self._reference: PolicyValueModel | None = None
        self._has_own_reference = False
        """Whether the reference is not the initial model, and so part of a checkpoint."""
        if reference is not None:
            for parameter in reference.parameters():
                parameter.requires_grad_(False)
            self._reference = PolicyValueModel(
                reference, None, temperature=model.temperature, layout=model.layout
            )

    @property
    def model(self) -> PolicyValueModel:
        return self._model

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
        with lock_of(self.model.policy), without_adapters(self.model.policy):
            return self._score(self.model, batch).log_probs

    def _score(self, model: PolicyValueModel, batch: PPOBatch) -> Outputs:
        device, shape = model.device, batch.input_ids.shape
        dtype = torch.promote_types(model.policy.dtype, torch.float32)
        log_probs, entropy, values = torch.zeros((3, *shape), device=device, dtype=dtype).unbind()
        last_values = torch.zeros(len(batch), device=device, dtype=dtype)
        ids = batch.input_ids.to(device)

        def compute(packs: Sequence[Pack]) -> None:
            for pack in self._in_lockstep(packs, model.forward_pack, batch):
                rows = pack.rows.to(device)
                outputs = model.forward_pack(ids, pack)
                log_probs[rows], entropy[rows] = outputs.log_probs, outputs.entropy
                if outputs.values is not None and outputs.last_values is not None:
                    values[rows] = outputs.values.to(dtype)
                    last_values[rows] = outputs.last_values.to(dtype)

        self._in_packs(batch, self._packs(batch, torch.arange(len(batch))), compute)
        if not model.has_critic:
            return Outputs(log_probs, entropy, None, None)
        return Outputs(log_probs, entropy, values, last_values)

    @torch.no_grad()
    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        """Return Σ_v π(v)² where each policy token was sampled: [B, T]."""
        model, shape = self.model, batch.input_ids.shape
        sums = torch.zeros(shape, device=model.device)
        ids = batch.input_ids.to(model.device)

        def compute(packs: Sequence[Pack]) -> None:
            for pack in self._in_lockstep(packs, model.sum_pi_squared, batch):
                sums[pack.rows.to(model.device)] = model.sum_pi_squared(ids, pack).to(sums.dtype)

        self._in_packs(batch, self._packs(batch, torch.arange(len(batch))), compute)
        return sums

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        assert batch.attention_mask is not None
        return make_packs(
            batch.attention_mask.cpu(),
            batch.response_mask.cpu(),
            rows,
            self._micro_batch_tokens(batch),
            batch.input_ids if self.model.shares_prefixes else None,
            batch.branches,
        )

    def _micro_batch_tokens(self, batch: PPOBatch) -> int:
        tokens = self.options.micro_batch_tokens or self._plan(batch)
        return tokens if self._max_tokens is None else min(tokens, self._max_tokens)

    def _plan(self, batch: PPOBatch) -> int:
        """Return how many tokens are computed at once; on a GPU, by the memory that is free when
        the first batch arrives."""
        model = self.model
        if model.device.type != "cuda":
            return CPU_TOKENS
        if self._planned_tokens is None:
            assert batch.attention_mask is not None
            plan = plan_memory(
                free_memory(model.device) - self._bytes_to_come(),
                model.layer_shapes,
                model.policy.dtype.itemsize,
                longest=int(batch.attention_mask.sum(1).max()) // model.context.size,
                checkpointing=model.gradient_checkpointing,
            )
            if plan.num_checkpointed and model.gradient_checkpointing is None:
                model.checkpoint_layers(plan.num_checkpointed)
                _LOG.info(
                    "gradient checkpointing of %d layers: the activations of all do not fit into "
                    "the memory of the GPU",
                    plan.num_checkpointed,
                )
            self._planned_tokens = plan.micro_batch_tokens
        return self._planned_tokens

    def _bytes_to_come(self) -> int:
        """Return the memory that the first update allocates and keeps."""
        return 0

    def _in_packs(
        self, batch: PPOBatch, packs: Sequence[Pack], compute: Callable[[Sequence[Pack]], T]
    ) -> T:
        """Call `compute` with packs; if memory runs out, once more with packs of half the size."""
        try:
            return compute(packs)
        except (RuntimeError, MemoryError) as error:
            if not self.can_retry or not is_out_of_memory(error):
                raise
        # Not in the block above, in which the error holds tensors of the failed forward.
        self._compute_less_at_once(packs)
        rows = torch.cat([pack.rows for pack in packs]).sort().values
        try:
            return compute(self._packs(batch, rows))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                error.add_note(
                    f"Memory ran out a second time, with {self._max_tokens} tokens at once. Set "
                    "training.micro_batch_tokens lower, training.gradient_checkpointing=true, "
                    "training.lora_rank for adapters, or shorter episodes (limits.max_tokens)."
                )
            raise

    def _compute_less_at_once(self, packs: Sequence[Pack]) -> None:
        largest = max(packs, key=lambda pack: pack.num_tokens)
        self._max_tokens = max(largest.num_tokens // 2, 1)
        self._num_oom_retries += 1
        text = "out of memory with %d tokens at once: computing them again, %d at once"
        if len(largest.rows) == 1 and self.model.gradient_checkpointing is None:
            self.model.checkpoint_layers(None)  # half of an episode cannot be computed
            text += ", with gradient checkpointing"
        _LOG.warning(text, largest.num_tokens, self._max_tokens)
        self.on_low_memory()
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _in_lockstep(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """Yield the packs one by one; `compute` is the method of the model that each is for.

        A sharded learner overrides this, since all its workers must compute equally often.
        """
        yield from packs
