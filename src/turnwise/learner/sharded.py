"""One of several learners, with a shard of the model, for a part of every minibatch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, make_packs
from turnwise.learner.sharding import shard
from turnwise.learner.update import Learner
from turnwise.learner.workers import ShardedWorkers


class ShardedLearner(Learner):
    """A learner that has the whole batch, as all others do, and computes a part of each minibatch.

    So minibatches and metrics are those of a single learner. Model, gradients and optimiser are
    sharded over the processes of the torch.distributed group, which must make the same calls in
    the same order. Each `context_size` of them split the tokens of every pack: see `context`.
    """

    can_retry = False

    def __init__(
        self,
        model: PolicyValueModel,
        options: LearnerOptions | None = None,
        *,
        context_size: int = 1,
        **more: Any,
    ) -> None:
        shard(model)
        workers = ShardedWorkers(model.device, context_size)
        super().__init__(model, options, workers=workers, **more)
        if self._has_dropout and context_size > 1:
            raise ConfigError(
                f"ray.context_parallel_size got {context_size}, expected 1 with "
                "training.lora_dropout: each learner would drop the same of its tokens"
            )
        model.split_over(workers.context)
        if self._reference is not None:
            shard(self._reference)
            self._reference.split_over(workers.context)

    def _micro_batch_tokens(self, batch: PPOBatch) -> int:
        context = self.workers.context
        return context.size * context.minimum(super()._micro_batch_tokens(batch), self.model.device)

    def _minibatches(self, epoch: int, batch: PPOBatch) -> Iterator[torch.Tensor]:
        """Yield this worker's rows: adjacent ones, which may share a prefix, of about as many
        tokens as those of each other worker."""
        assert batch.attention_mask is not None
        lengths = batch.attention_mask.sum(1).cpu()
        for rows in super()._minibatches(epoch, batch):
            num_tokens = lengths[rows]
            middles = num_tokens.cumsum(0) - num_tokens / 2
            owners = middles * self.workers.num_workers / max(int(num_tokens.sum()), 1)
            yield rows[owners.long() == self.workers.rank]

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        return super()._packs(batch, rows) if len(rows) else []

    def _in_lockstep(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """Yield the packs, then compute dummies until all workers have computed equally often.

        Each layer is gathered from all workers, so that they must call it together.
        """
        num_rounds = int(self.workers.maximum(len(packs)))
        yield from packs
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
