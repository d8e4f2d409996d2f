"""The update: epochs over minibatches, each one step of the optimiser, computed in packs.

The sizes of a minibatch are known before its first pack is computed, so that each pack's loss is
its share of the whole: how a minibatch is cut into packs does not change the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from turnwise.algo.masked import BatchTotals
from turnwise.learner.batch import PPOBatch
from turnwise.learner.imitation import imitation_batch, imitation_options
from turnwise.learner.lora import adapter_dropout, has_adapter_dropout
from turnwise.learner.measures import (
    measure_critic,
    measure_gap,
    weigh_by_importance,
    with_effective_share,
)
from turnwise.learner.metric_accumulator import COUNTS, MetricAccumulator
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.objective import batch_totals, compute_objective
from turnwise.learner.optimizer import MasterAdamW, learning_rate_at
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, fitting_tokens
from turnwise.learner.scoring import Scorer
from turnwise.learner.selection import select_tokens, selects_tokens
from turnwise.learner.sharding import local_shard
from turnwise.learner.workers import SingleProcess

_REFERENCE = "reference."


class Learner(Scorer):
    """Turns batches of episodes into new weights, in place.

    `reference` is the model that a KL term compares with; where the policy has adapters it is the
    policy without them, and none need be given. With `workers` each learner has a part of the
    batch and all make the step of the whole; so are the metrics.
    """

    def __init__(
        self,
        model: PolicyValueModel,
        options: LearnerOptions | None = None,
        *,
        reference: Any = None,
        workers: SingleProcess | None = None,
    ) -> None:
        self.model = model
        self.workers = workers or SingleProcess()
        self.options = options or LearnerOptions()
        self.optimizer = MasterAdamW(
            model.named_parameters(),
            weight_decay=self.options.weight_decay,
            betas=self.options.adam_betas,
            epsilon=self.options.adam_epsilon,
        )
        self._fitting_tokens = fitting_tokens(model.policy)
        self._has_dropout = has_adapter_dropout(model)
        self.num_updates = 0
        self.log_probs_before_update: torch.Tensor | None = None
        """[B, T], the learner's log-probs before the first step of the last update."""
        self._first_pass: torch.Tensor | None = None
        """The log-probs of the first pass, while it is under way."""
        self._reference: PolicyValueModel | None = None
        self._has_own_reference = False
        """Whether the reference is not what the model was in the beginning."""
        if reference is not None:
            for parameter in reference.parameters():
                parameter.requires_grad_(False)
            self._reference = PolicyValueModel(
                reference, None, temperature=model.temperature, layout=model.layout
            )

    def update(self, batch: PPOBatch) -> dict[str, float]:
        """Learn from a batch; what happened, in numbers.

        `gap_*` is the distance between the sampler's log-probs and the learner's own before the
        first step, over the whole batch. Losses are means over the steps, weighed by their tokens.
        A minibatch whose loss or gradient is not finite is counted in `num_skipped_steps` and
        found in no other figure; where all were skipped, the figures of the loss are missing.
        """
        batch = batch.to(self.model.device)
        accumulator, measured = MetricAccumulator(), MetricAccumulator()
        before = self._log_probs_before(batch)
        if before is not None and batch.old_log_probs is None:
            if batch.sampler_is_exact:
                measure_gap(batch, before, measured)
            else:
                batch.old_log_probs = before
        weights = weigh_by_importance(batch, self.options, measured)
        measure_critic(batch, self.workers, accumulator)
        if before is None:
            self._first_pass = torch.zeros(batch.input_ids.shape, device=self.model.device)
        for epoch in range(self.options.update_epochs):
            has_ended = not self._run_epoch(epoch, batch, weights, accumulator, measured)
            if epoch == 0:
                self.log_probs_before_update, self._first_pass = self._whole_grid(before), None
            if has_ended:
                break
        accumulator.include(self._whole(measured))
        accumulator.note("learning_rate", self.learning_rate)
        self.num_updates += 1
        return with_effective_share(accumulator.numbers())

    def _log_probs_before(self, batch: PPOBatch) -> torch.Tensor | None:
        """The learner's log-probs before the first step; None: the first pass's own forward gives
        them, since there is no step before it ends."""
        is_several = self._num_minibatches(len(batch)) > 1
        if batch.learner_log_probs is not None:
            return batch.learner_log_probs
        needs_old = batch.old_log_probs is None and not batch.sampler_is_exact
        has_own_forward = is_several or self._has_dropout  # which has no dropout
        if not has_own_forward and not (needs_old and self.options.update_epochs > 1):
            return None
        return self.score(batch).log_probs if batch.old_log_probs is None else batch.old_log_probs

    def _whole_grid(self, before: torch.Tensor | None) -> torch.Tensor:
        """[B, T], from what was known before or what the first pass has found."""
        if before is not None:
            return before.float()
        assert self._first_pass is not None
        if not self.workers.splits_batch:
            self.workers.add_up([self._first_pass])
        return self._first_pass

    def _whole(self, figures: MetricAccumulator) -> MetricAccumulator:
        """The figures of all workers from those of each."""
        if self.workers.num_workers > 1:
            figures.become_sum(self.workers.gather(figures.cpu()))
        return figures

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        options = self.options
        return learning_rate_at(
            self.num_updates,
            options.learning_rate,
            schedule=options.lr_schedule,
            warmup_steps=options.warmup_steps,
            total_steps=options.total_steps,
        )

    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        """Supervised learning on the same streams and masks: make their tokens likely.

        A `learning_rate` of its own stays as it is; None: that of the options.
        """
        before = self.options
        self.options = imitation_options(before, learning_rate)
        try:
            metrics = self.update(imitation_batch(batch))
        finally:
            self.options = before
        kept = ("policy_loss", "entropy", "grad_norm", "learning_rate", *COUNTS)
        return {name: metrics[name] for name in kept if name in metrics}

    def restart(self) -> None:
        """Begin anew from the weights as they are: the optimiser's moments and the place in the
        schedule are forgotten, and they are what a KL term compares with from now on."""
        self.optimizer.forget()
        self.num_updates = 0
        if self._reference is not None:
            self._reference.policy.load_state_dict(self.model.policy.state_dict())
            self._has_own_reference = True

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The optimiser, and how far the learner has come; the model is saved by itself."""
        tensors = {"num_updates": torch.tensor(self.num_updates), **self.optimizer.state_tensors()}
        if self._reference is not None and self._has_own_reference:
            for name, parameter in self._reference.policy.named_parameters():
                tensors[_REFERENCE + name] = parameter.detach()
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put back what `state_tensors` gave."""
        rest = {k: v for k, v in tensors.items() if not k.startswith(_REFERENCE)}
        self.num_updates = int(rest.pop("num_updates"))
        self.optimizer.load_state_tensors(rest)
        self._has_own_reference = len(rest) + 1 < len(tensors)
        if self._reference is not None and self._has_own_reference:
            with torch.no_grad():
                for name, parameter in self._reference.policy.named_parameters():
                    local_shard(parameter).copy_(tensors[_REFERENCE + name])

    def _run_epoch(
        self,
        epoch: int,
        batch: PPOBatch,
        weights: torch.Tensor | None,
        accumulator: MetricAccumulator,
        measured: MetricAccumulator,
    ) -> bool:
        """One pass over the batch; False: the policy has moved far enough."""
        for number, rows in enumerate(self._minibatches(epoch, len(batch))):
            packs = [pack for pack in self._packs(batch, rows) if pack.num_policy_tokens]
            totals = batch_totals(packs, self.workers, self.options.horizon)
            if not totals.num_tokens:
                continue
            selected = self._selected(batch, rows, packs, (epoch, number))
            part = MetricAccumulator()
            self.optimizer.zero_grad()
            for index, pack in enumerate(self._paced(packs, self.model.forward_pack, batch)):
                own = pack.rows.to(batch.input_ids.device)
                given = [None if x is None else x[own] for x in (weights, selected)]
                with self._dropout(epoch, number, index):
                    outputs = self._add_gradient(batch, pack, totals, given, part, measured)
                if self._first_pass is not None:
                    self._first_pass[pack.rows.to(self.model.device)] = (
                        outputs.log_probs.detach().float()
                    )
            part = self._whole(part)
            num_tokens = int(totals.num_tokens)
            if self._exceeds_target_kl(part):
                self.optimizer.zero_grad()
                accumulator.join(part, num_tokens)
                accumulator.count("num_early_stops")
                return False
            self._step(part, num_tokens, accumulator)
        return True

    def _dropout(self, *names: int) -> AbstractContextManager[None]:
        """The adapters' dropout, if there is any, drawn anew for each pack."""
        if not self._has_dropout:
            return nullcontext()
        return adapter_dropout(self.model, self._seed(*names))

    def _selected(
        self, batch: PPOBatch, rows: torch.Tensor, packs: list[Pack], names: tuple[int, int]
    ) -> torch.Tensor | None:
        """The tokens that the policy loss picks of a minibatch [B, T]; None: it picks none.

        They depend on all of its log-probs, which takes a forward of its own.
        """
        if not selects_tokens(self.options):
            return None
        log_probs = torch.zeros(batch.input_ids.shape, device=self.model.device)
        with torch.no_grad():
            for pack in self._paced(packs, self.model.forward_pack, batch):
                outputs = self.model.forward_pack(batch.input_ids, pack, with_entropy=False)
                log_probs = log_probs.to(outputs.log_probs.dtype)
                log_probs[pack.rows.to(self.model.device)] = outputs.log_probs
        generator = self._generator(*names)
        return select_tokens(batch, rows, log_probs, self.options, self.workers, generator)

    def _exceeds_target_kl(self, part: MetricAccumulator) -> bool:
        """Whether this minibatch ends the update early, before its step."""
        target = self.options.target_kl
        return target is not None and float(part.mean("kl")) > 1.5 * target

    def _add_gradient(
        self,
        batch: PPOBatch,
        pack: Pack,
        totals: BatchTotals,
        given: list[torch.Tensor | None],
        part: MetricAccumulator,
        measured: MetricAccumulator,
    ) -> Outputs:
        """`given` are the pack's importance weights and selected tokens."""
        episodes = batch.select(pack.rows.to(batch.input_ids.device))
        outputs = self.model.forward_pack(batch.input_ids, pack)
        own_weights, selected = given
        number = pack.num_policy_tokens
        if episodes.old_log_probs is None and not episodes.sampler_is_exact:
            episodes.old_log_probs = outputs.log_probs.detach()
            own_weights = weigh_by_importance(episodes, self.options, measured, number)
        elif episodes.old_log_probs is None and self._first_pass is not None:
            measure_gap(episodes, outputs.log_probs, measured, number)
        loss, terms, figures = compute_objective(
            outputs, episodes, self.options, totals, own_weights, selected
        )
        loss.backward()  # type: ignore[no-untyped-call]
        for name, term in terms.items():
            part.add(name, term)
        for name, figure in figures.items():
            part.average(name, figure, number)
        return outputs

    def _step(
        self, part: MetricAccumulator, num_tokens: int, accumulator: MetricAccumulator
    ) -> None:
        """One step of the optimiser, unless something is not a finite number."""
        loss = part.total("loss").to(self.model.device)
        if self.workers.num_workers > 1 and self.workers.adds_gradients:
            self.optimizer.share_gradients(self.workers.add_up)
        whole_norm = self.workers.whole_norm(self.optimizer.gradient_norm())
        norm, value = torch.stack([whole_norm, loss]).tolist()
        if not (math.isfinite(norm) and math.isfinite(value)):
            self.optimizer.zero_grad()
            accumulator.count("num_skipped_steps")
            return
        limit = self.options.max_grad_norm
        scale = 1.0 if limit is None or norm <= limit else limit / norm
        self.optimizer.step(self.learning_rate, scale)
        self.optimizer.zero_grad()
        accumulator.join(part, num_tokens)
        accumulator.average("grad_norm", norm, 1)
        accumulator.count("num_steps")

    def _num_minibatches(self, num_rows: int) -> int:
        size = self.options.mini_batch_size or num_rows
        # Who has fewer episodes than others takes part in their last steps with none.
        return int(self.workers.largest(-(-num_rows // size) if num_rows else 0))

    def _minibatches(self, epoch: int, num_rows: int) -> Iterator[torch.Tensor]:
        """Rows in an order that follows from seed, update and epoch: nothing to save."""
        size = self.options.mini_batch_size or num_rows
        num_parts = self._num_minibatches(num_rows)
        if size >= num_rows and num_parts == 1:
            yield torch.arange(num_rows)
            return
        order = torch.randperm(num_rows, generator=self._generator(epoch))
        for start in range(0, num_parts * size, size):
            yield order[start : start + size]

    def _generator(self, *names: int) -> torch.Generator:
        """What a draw of this update is made with."""
        generator = torch.Generator()
        generator.manual_seed(self._seed(*names))
        return generator

    def _seed(self, *names: int) -> int:
        entropy = np.random.SeedSequence((self.options.seed, self.num_updates, *names))
        return int(entropy.generate_state(1)[0])
