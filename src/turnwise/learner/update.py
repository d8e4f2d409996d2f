"""The learner: what the model computes for a batch, and the update.

An update is epochs over minibatches, each one step of the optimiser, computed in packs. The sizes
of a minibatch are known before its first pack is computed, so that each pack's loss is its share of
the whole: how a minibatch is split into packs does not change the step.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from turnwise.algo.choose import get_policy_loss
from turnwise.algo.kl import without_rounding
from turnwise.algo.losses.value import explained_variance
from turnwise.algo.masked import BatchTotals
from turnwise.errors import ConfigError
from turnwise.learner.base import BaseLearner, LearnerState, ReadShard, trained_parameters
from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import adapter_dropout, dropout_layers, has_adapters, without_adapters
from turnwise.learner.memory import CPU_TOKENS, free_memory, plan_memory
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.objective import (
    COUNTS,
    Metrics,
    batch_totals,
    compute_objective,
    importance_weights,
    measure_gap,
    select_tokens,
)
from turnwise.learner.optimizer import MasterOptimizer
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, make_packs
from turnwise.learner.sharding import local_shard, local_shards, read_first_masters, shard
from turnwise.learner.tensor_file import LazyTensors
from turnwise.learner.workers import Workers
from turnwise.models.attention import model_lock
from turnwise.models.probing import is_out_of_memory

_LOG = logging.getLogger("turnwise")
_REFERENCE = "reference."
T = TypeVar("T")


@dataclass
class _Update:
    """The batch of one update, and what is measured on the way."""

    batch: PPOBatch
    metrics: Metrics = field(default_factory=Metrics)
    measured: Metrics = field(default_factory=Metrics)
    """Of the whole batch before the first step; each worker has its part of it."""
    importance_weights: torch.Tensor | None = None
    """[B, T]; None where all tokens weigh the same."""
    first_pass: torch.Tensor | None = None
    """[B, T], filled with the log-probs of the first epoch's own forward while it runs, where no
    forward before it has given them."""


class Learner(BaseLearner):
    """Turns batches of episodes into new weights, in place.

    `reference` is the model that a KL term compares with, frozen here; where the policy has
    adapters it is the policy without them, and none need be given.

    With a `context_size` all processes of the torch.distributed group learn together, and must make
    the same calls in the same order. Model, gradients and optimiser are sharded over them. Each has
    the whole batch and computes a part of each minibatch, so that minibatches and metrics are those
    of a single learner. Each `context_size` of them split the tokens of every pack: see `workers`.
    """

    def __init__(
        self,
        model: PolicyValueModel,
        options: LearnerOptions | None = None,
        *,
        reference: Any = None,
        context_size: int | None = None,
    ) -> None:
        super().__init__(options or LearnerOptions())
        self._model = model
        self._has_dropout = bool(dropout_layers(model))
        self.workers = Workers()
        if context_size is not None:
            shard(model)
            self.workers = Workers(model.device, context_size)
            if self._has_dropout and context_size > 1:
                raise ConfigError(
                    f"ray.context_parallel_size got {context_size}, expected 1 with "
                    "training.lora_dropout: each learner would drop the same of its tokens"
                )
            model.split_over(self.workers.context)
        self._planned_tokens: int | None = None
        self._max_tokens: int | None = None
        """Tokens that are computed at once after memory has run out; None before."""
        self._num_oom_retries = 0
        self._reference: PolicyValueModel | None = None
        self._has_own_reference = False
        """Whether the reference is not the initial model, and so part of a checkpoint."""
        self.keeps_reference = False
        """Whether the reference is a model of its own, which `restart` leaves as it is."""
        if reference is not None:
            for parameter in reference.parameters():
                parameter.requires_grad_(False)
            is_alike = type(reference) is type(model.policy)
            self._reference = PolicyValueModel(
                reference,
                None,
                temperature=model.temperature,
                layout=model.layout if is_alike else None,
            )
            if self.workers.is_sharded:
                shard(self._reference)
                self._reference.split_over(self.workers.context)
        self.optimizer = MasterOptimizer(
            model.named_parameters(),
            self.options.optimizer,
            weight_decay=self.options.weight_decay,
            betas=tuple(self.options.adam_betas),
            epsilon=self.options.adam_epsilon,
            offload=self.options.offload_optimizer,
            first_masters=read_first_masters(model),
            **self.options.optimizer_options,
        )
        num_half = torch.tensor(self.optimizer.num_half, dtype=torch.float64)
        self._num_half = float(self.workers.sum_over_shards(num_half))
        self.num_updates = 0

    @property
    def model(self) -> PolicyValueModel:
        return self._model

    # What the model computes without learning.

    @torch.no_grad()
    def score(self, batch: PPOBatch) -> Outputs:
        return self._score(self.model, batch)

    @torch.no_grad()
    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        if self._reference is not None:
            return self._score(self._reference, batch).log_probs
        if not has_adapters(self.model.policy):
            raise ConfigError("a KL term needs a reference model, and the learner has none")
        with model_lock(self.model.policy), without_adapters(self.model.policy):
            return self._score(self.model, batch).log_probs

    @torch.no_grad()
    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        sums = torch.zeros(batch.input_ids.shape, device=self.model.device)
        for rows, values in self._for_each_pack(batch, self.model.sum_pi_squared):
            sums[rows] = values.to(sums.dtype)
        return sums

    def _score(
        self, model: PolicyValueModel, batch: PPOBatch, packs: Sequence[Pack] | None = None
    ) -> Outputs:
        device = model.device
        dtype = torch.promote_types(model.policy.dtype, torch.float32)
        zeros = torch.zeros((3, *batch.input_ids.shape), device=device, dtype=dtype)
        log_probs, entropy, values = zeros.unbind()
        last_values = torch.zeros(len(batch), device=device, dtype=dtype)
        for rows, outputs in self._for_each_pack(batch, model.forward_pack, packs):
            log_probs[rows], entropy[rows] = outputs.log_probs, outputs.entropy
            if outputs.values is not None and outputs.last_values is not None:
                values[rows] = outputs.values.to(dtype)
                last_values[rows] = outputs.last_values.to(dtype)
        if not model.has_critic:
            return Outputs(log_probs, entropy, None, None)
        return Outputs(log_probs, entropy, values, last_values)

    def _for_each_pack(
        self,
        batch: PPOBatch,
        forward: Callable[[torch.Tensor, Pack], T],
        packs: Sequence[Pack] | None = None,
    ) -> list[tuple[torch.Tensor, T]]:
        """Return the rows of each pack, all of the batch by default, and what is computed there."""
        ids = batch.input_ids.to(self.model.device)

        def compute(packs: Sequence[Pack]) -> list[tuple[torch.Tensor, T]]:
            lockstep = self._in_lockstep(packs, forward, batch)
            return [(pack.rows.to(ids.device), forward(ids, pack)) for pack in lockstep]

        if packs is None:
            packs = self._packs(batch, torch.arange(len(batch)))
        return self._in_packs(batch, packs, compute)

    # Packs, and the memory for them.

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        assert batch.attention_mask is not None
        if not len(rows):  # all are other workers'
            return []
        return make_packs(
            batch.attention_mask.cpu(),
            batch.response_mask.cpu(),
            rows,
            self._micro_batch_tokens(batch),
            batch.input_ids if self.model.shares_prefixes else None,
            batch.branches,
        )

    def _micro_batch_tokens(self, batch: PPOBatch) -> int:
        """Return how many tokens are computed at once; on a GPU, by the memory that is free when
        the first batch arrives."""
        model = self.model
        tokens = self.options.micro_batch_tokens or self._planned_tokens
        if tokens is None and model.device.type != "cuda":
            tokens = CPU_TOKENS
        elif tokens is None:
            assert batch.attention_mask is not None
            tokens, num_checkpointed = plan_memory(
                free_memory(model.device) - self.optimizer.bytes_to_come,
                model.layer_shapes,
                model.policy.dtype.itemsize,
                longest=int(batch.attention_mask.sum(1).max()) // self.workers.context.size,
                checkpointing=model.gradient_checkpointing,
            )
            self._planned_tokens = tokens
            if num_checkpointed and model.gradient_checkpointing is None:
                model.checkpoint_layers(num_checkpointed)
                text = "gradient checkpointing of %d layers, to fit their activations into the GPU"
                _LOG.info(text, num_checkpointed)
        if self._max_tokens is not None:
            tokens = min(tokens, self._max_tokens)
        context = self.workers.context
        return context.size * context.minimum(tokens, model.device)

    def _in_packs(
        self, batch: PPOBatch, packs: Sequence[Pack], compute: Callable[[Sequence[Pack]], T]
    ) -> T:
        """Call `compute` with packs; if memory runs out, once more with packs of half the size."""
        try:
            return compute(packs)
        except (RuntimeError, MemoryError) as error:
            # Several workers compute equally often, so that one of them cannot repeat alone.
            if self.workers.is_sharded or not is_out_of_memory(error):
                raise
        # Not in the block above, in which the error holds tensors of the failed forward.
        largest = max(packs, key=lambda pack: pack.num_tokens)
        self._max_tokens = max(largest.num_tokens // 2, 1)
        self._num_oom_retries += 1
        text = "out of memory with %d tokens at once: computing them again, %d at once"
        if len(largest.rows) == 1 and self.model.gradient_checkpointing is None:
            self.model.checkpoint_layers(None)  # half of an episode cannot be computed
            text += ", with gradient checkpointing"
        _LOG.warning(text, largest.num_tokens, self._max_tokens)
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
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

    def _in_lockstep(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """Yield the packs, then compute dummies until all workers have computed equally often.

        `compute` is the method of the model that each pack is for. Each layer of a sharded model is
        gathered from all workers, so that they must call it together.
        """
        num_rounds = int(self.workers.maximum(len(packs)))
        yield from packs
        if not self.workers.is_sharded:
            return
        # The shortest episode: a prompt of one token, and one sampled token.
        present, sampled = torch.tensor([[[True, True]], [[False, True]]])
        (dummy,) = make_packs(present, sampled, torch.arange(1), budget=2)
        for _ in range(num_rounds - len(packs)):
            outputs = compute(torch.zeros(1, 2, dtype=torch.long), dummy)
            if isinstance(outputs, Outputs) and torch.is_grad_enabled():
                # 0, with a gradient through all that a pack's loss depends on.
                loss = outputs.log_probs.sum()
                if outputs.values is not None and batch.returns is not None:
                    loss = loss + outputs.values.sum()
                (0.0 * loss).backward()  # type: ignore[no-untyped-call]
        if not torch.is_grad_enabled():
            compute.__self__.reshard()  # type: ignore[attr-defined] # a backward would do it

    # The update.

    def update(self, batch: PPOBatch) -> dict[str, float]:
        """Learn from a batch; return metrics.

        `gap_*` is the distance between the sampler's log-probs and the learner's own before the
        first step, over the whole batch. Losses are means over the steps, weighted by their tokens.
        A minibatch whose loss or gradient is not finite is counted in `num_skipped_steps` and in no
        other metric; where all were skipped, the metrics of the loss are missing.
        """
        num_tokens = batch.num_policy_tokens
        batch = batch.to(self.model.device)
        run = _Update(batch)
        before = self._log_probs_before(batch)
        if before is None:
            run.first_pass = torch.zeros(batch.input_ids.shape, device=self.model.device)
        elif batch.old_log_probs is None and batch.sampler_is_exact:
            measure_gap(batch, before, num_tokens, run.measured)
        elif batch.old_log_probs is None:
            batch.old_log_probs = before
        run.importance_weights = importance_weights(batch, self.options, num_tokens, run.measured)
        if batch.values is not None and batch.returns is not None:
            explained = explained_variance(batch.values, batch.returns, batch.response_mask)
            run.metrics.average({"explained_variance": explained})
        for epoch in range(self.options.update_epochs):
            minibatches = enumerate(self._minibatches(epoch, batch))
            continues = all(self._learn(run, rows, epoch, number) for number, rows in minibatches)
            if run.first_pass is not None:
                self.workers.all_reduce(run.first_pass)
                before = run.first_pass
                run.first_pass = None
            if not continues:
                break
        if before is not None:
            self.log_probs_before_update = before.float()
        run.metrics.add_means(run.measured.over_workers(self.workers))
        run.metrics.average({"learning_rate": self.learning_rate})
        if self._num_oom_retries:
            run.metrics.counts["num_oom_retries"] += self._num_oom_retries
            self._num_oom_retries = 0
        self.num_updates += 1
        return run.metrics.as_floats()

    def _log_probs_before(self, batch: PPOBatch) -> torch.Tensor | None:
        """Return the learner's log-probs before the first step, or None where the forward of the
        first epoch gives them: it makes no step before its end."""
        if batch.learner_log_probs is not None:
            return batch.learner_log_probs
        needs_old = batch.old_log_probs is None and not batch.sampler_is_exact
        # A forward without the adapters' dropout, and before the step of another minibatch.
        is_one_step = (self.options.mini_batch_size or len(batch)) >= len(batch)
        needs_forward = not is_one_step or self._has_dropout
        if not needs_forward and not (needs_old and self.options.update_epochs > 1):
            return None
        return self.score(batch).log_probs if batch.old_log_probs is None else batch.old_log_probs

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self.options.learning_rate_at(self.num_updates)

    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        """Learn to make the policy tokens of a batch likely (supervised learning); return metrics.

        A `learning_rate` given here is constant; None takes that of the options.
        """
        before = self.options
        self.options = before.for_imitation(learning_rate)
        try:
            metrics = self.update(batch.for_imitation())
        finally:
            self.options = before
        kept = ("policy_loss", "entropy", "grad_norm", "learning_rate", *COUNTS)
        return {name: metrics[name] for name in kept if name in metrics}

    def restart(self) -> None:
        self.optimizer.forget()
        self.num_updates = 0
        if self._reference is not None and not self.keeps_reference:
            self._reference.policy.load_state_dict(self.model.policy.state_dict())
            self._has_own_reference = True

    def _learn(self, run: _Update, rows: torch.Tensor, epoch: int, number: int) -> bool:
        """Make the step of one minibatch; return False if the KL exceeded its target."""
        packs = [pack for pack in self._packs(run.batch, rows) if pack.num_policy_tokens]
        totals = batch_totals(packs, self.workers, self.options.horizon)
        if not totals.num_tokens:
            return True
        selected: torch.Tensor | None = None
        if get_policy_loss(self.options.policy_loss).selection is not None:
            # Which tokens it picks depends on all log-probs of the minibatch.
            with torch.no_grad():
                log_probs = self._score(self.model, run.batch, packs).log_probs
            generator = torch.Generator().manual_seed(self._seed(epoch, number))
            selected = select_tokens(
                run.batch, rows, log_probs, self.options, self.workers, generator
            )

        def add_gradients(packs: Sequence[Pack]) -> tuple[Metrics, Metrics]:
            metrics, measured = Metrics(), Metrics()
            self.optimizer.zero_grad()  # also of packs that memory was not enough for
            lockstep = self._in_lockstep(packs, self.model.forward_pack, run.batch)
            for index, pack in enumerate(lockstep):
                seed = self._seed(epoch, number, index)
                with adapter_dropout(self.model, seed) if self._has_dropout else nullcontext():
                    self._add_gradient(run, totals, selected, pack, metrics, measured)
            return metrics, measured

        minibatch, measured = self._in_packs(run.batch, packs, add_gradients)
        run.measured.add_means(measured)
        minibatch = minibatch.over_workers(self.workers)
        target = self.options.target_kl
        if target is not None and minibatch.mean("kl") > 1.5 * target:
            self.optimizer.zero_grad()
            run.metrics.add_minibatch(minibatch, int(totals.num_tokens))
            run.metrics.counts["num_early_stops"] += 1
            return False
        self._step(minibatch, int(totals.num_tokens), run.metrics)
        return True

    def _add_gradient(
        self,
        run: _Update,
        totals: BatchTotals,
        selected: torch.Tensor | None,
        pack: Pack,
        metrics: Metrics,
        measured: Metrics,
    ) -> None:
        """Add the gradient of one pack, its share of the metrics, and what is measured before the
        first step. `selected` [B, T] are the tokens that the policy loss picks, if it does."""
        rows = pack.rows.to(run.batch.input_ids.device)
        episodes = run.batch.select(rows)
        num_tokens = pack.num_policy_tokens
        outputs = self.model.forward_pack(run.batch.input_ids, pack)
        weights = None if run.importance_weights is None else run.importance_weights[rows]
        if episodes.old_log_probs is None and not episodes.sampler_is_exact:
            episodes.old_log_probs = outputs.log_probs.detach()
            weights = importance_weights(episodes, self.options, num_tokens, measured)
        elif episodes.old_log_probs is None and run.first_pass is not None:
            measure_gap(episodes, outputs.log_probs, num_tokens, measured)
        if episodes.ref_log_probs is not None:
            episodes.ref_log_probs = without_rounding(
                outputs.log_probs,
                episodes.ref_log_probs,
                episodes.response_mask,
                self.model.policy.dtype,
            )
        picked = None if selected is None else selected[rows]
        loss, terms, means = compute_objective(
            outputs, episodes, self.options, totals, weights, picked
        )
        loss.backward()  # type: ignore[no-untyped-call]
        metrics.add(terms)
        metrics.average(means, num_tokens)
        if run.first_pass is not None:
            run.first_pass[rows] = outputs.log_probs.detach().float()

    def _step(self, minibatch: Metrics, num_tokens: int, metrics: Metrics) -> None:
        """Make one step of the optimiser, unless the loss or the gradient is not finite."""
        loss = minibatch.total("loss").to(self.model.device)
        norm = self.workers.global_norm(self.optimizer.gradient_norm())
        # Before the next line, which waits for the device.
        self.optimizer.prepare_step(self.learning_rate)
        norm_value, loss_value = torch.stack([norm, loss]).tolist()
        if not (math.isfinite(norm_value) and math.isfinite(loss_value)):
            self.optimizer.zero_grad()
            metrics.counts["num_skipped_steps"] += 1
            return
        limit = self.options.max_grad_norm
        scale = 1.0 if limit is None or norm_value <= limit else limit / norm_value
        self.before_step()
        num_moved = self.optimizer.step(self.learning_rate, scale)
        self.optimizer.zero_grad()
        if self._num_half:
            num_moved = self.workers.sum_over_shards(num_moved.double())
            metrics.average({"weights_changed": num_moved / self._num_half})
        metrics.add_minibatch(minibatch, num_tokens)
        metrics.average({"grad_norm": norm_value})
        metrics.counts["num_steps"] += 1

    def _minibatches(self, epoch: int, batch: PPOBatch) -> Iterator[torch.Tensor]:
        """Yield this worker's rows of each minibatch; their order depends on seed, update, epoch.

        They are adjacent ones, which may share a prefix, of about as many tokens as those of each
        other worker.
        """
        assert batch.attention_mask is not None
        lengths = batch.attention_mask.sum(1).cpu()
        order = torch.arange(len(batch))
        size = self.options.mini_batch_size or len(batch)
        if size < len(batch):
            generator = torch.Generator().manual_seed(self._seed(epoch))
            order = torch.randperm(len(batch), generator=generator)
        for rows in torch.split(order, size):
            num_tokens = lengths[rows]
            middles = num_tokens.cumsum(0) - num_tokens / 2
            owners = middles * self.workers.num_workers / max(int(num_tokens.sum()), 1)
            yield rows[owners.long() == self.workers.rank]

    def _seed(self, *numbers: int) -> int:
        """Return a seed that follows from the update and these numbers."""
        entropy = np.random.SeedSequence((self.options.seed, self.num_updates, *numbers))
        return int(entropy.generate_state(1)[0])

    # The state of a checkpoint.

    def state(self) -> LearnerState:
        """Return all that a checkpoint holds; of a sharded model, this process's shard."""
        # The optimiser's tensors of a sharded model are shards already.
        rest = {"num_updates": torch.tensor(self.num_updates), **self.optimizer.state_tensors()}
        if self._reference is not None and self._has_own_reference:
            for name, parameter in self._reference.policy.named_parameters():
                rest[_REFERENCE + name] = local_shard(parameter.detach())
        return LearnerState(local_shards(trained_parameters(self.model)), rest)

    def state_layout(self) -> LearnerState:
        state = self.state()
        return LearnerState(
            weights={name: tensor.to("meta") for name, tensor in state.weights.items()},
            rest={name: tensor.to("meta") for name, tensor in state.rest.items()},
        )

    def state_shards(self) -> Iterator[LearnerState]:
        yield self.state()

    def load_state_shards(self, read: ReadShard) -> None:
        self.load_state(read(0, 1))

    @torch.no_grad()
    def load_state(self, state: LearnerState) -> None:
        """Load what `state` returned, or some of its weights alone."""
        parameters = trained_parameters(self.model)
        for name in state.weights:
            local_shard(parameters[name]).copy_(state.weights[name])
        self.optimizer.refresh_masters()
        rest = state.rest
        if not rest:
            return
        names = [k for k in rest if k != "num_updates" and not k.startswith(_REFERENCE)]
        self.num_updates = int(rest["num_updates"])
        self.optimizer.load_state_tensors(LazyTensors(names, rest.__getitem__))
        self._has_own_reference = len(names) + 1 < len(rest)
        if self._reference is not None and self._has_own_reference:
            for name, parameter in self._reference.policy.named_parameters():
                local_shard(parameter).copy_(rest[_REFERENCE + name])
