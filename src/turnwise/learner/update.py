"""The update: epochs over minibatches, each one step of the optimiser, computed in packs.

The sizes of a minibatch are known before its first pack is computed, so that each pack's loss is
its share of the whole: how a minibatch is cut into packs does not change the step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from turnwise.algo.correction import compute_importance_weights, measure_log_prob_gap
from turnwise.algo.losses.value import explained_variance
from turnwise.algo.masked import BatchTotals
from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import has_adapters, without_adapters
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.objective import compute_objective
from turnwise.learner.optimizer import MasterAdamW, learning_rate_at
from turnwise.learner.options import LearnerOptions
from turnwise.learner.packing import Pack, fitting_tokens, make_packs
from turnwise.learner.sharding import own_part
from turnwise.learner.tally import COUNTS, Tally
from turnwise.learner.workers import Alone

_REFERENCE = "reference."


class Learner:
    """Turns batches of episodes into new weights, in place.

    `reference` is the model that a KL term compares with; where the policy has adapters it is the
    policy without them, and none need be given. With `workers` each learner has a part of the
    batch and all make the step of the whole; the metrics are of its own part.
    """

    def __init__(
        self,
        model: PolicyValueModel,
        options: LearnerOptions | None = None,
        *,
        reference: Any = None,
        workers: Alone | None = None,
    ) -> None:
        self.model = model
        self.workers = workers or Alone()
        self.options = options or LearnerOptions()
        self.optimizer = MasterAdamW(
            model.named_parameters(), weight_decay=self.options.weight_decay
        )
        self._fitting_tokens = fitting_tokens(model.policy)
        self.num_updates = 0
        self.seen_log_probs: torch.Tensor | None = None
        """[B, T], the log-probs that the first pass of the last update learned from."""
        self._reference: PolicyValueModel | None = None
        self._has_own_reference = False
        """Whether the reference is not what the model was in the beginning."""
        if reference is not None:
            for parameter in reference.parameters():
                parameter.requires_grad_(False)
            self._reference = PolicyValueModel(
                reference, None, temperature=model.temperature, layout=model.layout
            )

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

    def update(self, batch: PPOBatch) -> dict[str, float]:
        """Learn from a batch; what happened, in numbers.

        `gap_*` is the distance between the sampler's log-probs and the learner's own before the
        first step: over the batch where they were recomputed, else over the first minibatch.
        A minibatch whose loss or gradient is not finite is counted in `num_skipped_steps` and
        found in no other figure; where all were skipped, the figures of the loss are missing.
        """
        batch = batch.to(self.model.device)
        tally = Tally()
        if batch.old_log_probs is None and not batch.sampler_is_exact and not self._passes_once:
            batch.old_log_probs = self.score(batch).log_probs
        weights = self._importance_weights(batch, tally)
        self.seen_log_probs = torch.zeros(batch.input_ids.shape, device=self.model.device)
        if batch.values is not None and batch.returns is not None:
            tally.note(
                "explained_variance",
                explained_variance(batch.values, batch.returns, batch.response_mask),
            )
        for epoch in range(self.options.update_epochs):
            if not self._run_epoch(epoch, batch, weights, tally):
                break
        tally.note("learning_rate", self.learning_rate)
        self.num_updates += 1
        return tally.numbers()

    @property
    def _passes_once(self) -> bool:
        """Whether all of a batch is learned from in one step: then the log-probs before the update
        are those of that step's own forward."""
        return self.options.update_epochs == 1 and self.options.mini_batch_size is None

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
        ones = torch.ones(batch.input_ids.shape)
        target = PPOBatch(
            batch.input_ids,
            batch.response_mask,
            batch.attention_mask,
            old_log_probs=torch.zeros_like(ones),
            advantages=ones,
        )
        before = self.options
        # −log π, a mean over tokens.
        self.options = dataclasses.replace(
            before,
            policy_loss="gpg",
            policy_loss_options={},
            kl_loss_coef=0.0,
            entropy_coef=0.0,
            target_kl=None,
            update_epochs=1,
            **({} if learning_rate is None else _steady(learning_rate)),
        )
        try:
            metrics = self.update(target)
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
                    own_part(parameter).copy_(tensors[_REFERENCE + name])

    def _importance_weights(
        self, batch: PPOBatch, tally: Tally, num_tokens: int = 1
    ) -> torch.Tensor | None:
        """How much each token counts, and what is noted about that: of a batch, or of each of its
        parts."""
        old, sampler = batch.old_log_probs, batch.sampler_log_probs
        if old is None or sampler is None:
            return None
        tally.average_all(measure_log_prob_gap(sampler, old, batch.response_mask), num_tokens)
        if self.options.importance_level is None:
            return None
        weights, metrics = compute_importance_weights(
            sampler,
            old,
            batch.response_mask,
            level=self.options.importance_level,
            bounds=self.options.importance_bounds,
        )
        tally.average_all(metrics, num_tokens)
        return weights

    def _run_epoch(
        self, epoch: int, batch: PPOBatch, weights: torch.Tensor | None, tally: Tally
    ) -> bool:
        """One pass over the batch; False: the policy has moved far enough."""
        for rows in self._minibatches(epoch, len(batch)):
            packs = [pack for pack in self._packs(batch, rows) if pack.num_policy_tokens]
            num_tokens = sum(pack.num_policy_tokens for pack in packs)
            totals = self._totals(packs, num_tokens)
            if not totals.num_tokens:
                continue
            part = Tally()
            self.optimizer.zero_grad()
            for pack in self._paced(packs, self.model.forward_pack, batch):
                outputs = self._add_gradient(batch, pack, totals, weights, part, tally)
                if epoch == 0 and self.seen_log_probs is not None:
                    self.seen_log_probs[pack.rows.to(self.model.device)] = (
                        outputs.log_probs.detach().float()
                    )
            if self._has_moved_far(part, num_tokens, totals):
                self.optimizer.zero_grad()
                tally.join(part, num_tokens)
                tally.count("num_early_stops")
                return False
            self._step(part, num_tokens, tally)
        return True

    def _has_moved_far(self, part: Tally, num_tokens: int, totals: BatchTotals) -> bool:
        target = self.options.target_kl
        if target is None:
            return False
        (moved,) = self.workers.total(float(part.mean("kl")) * num_tokens if num_tokens else 0.0)
        return moved / float(totals.num_tokens or 1) > 1.5 * target

    def _add_gradient(
        self,
        batch: PPOBatch,
        pack: Pack,
        totals: BatchTotals,
        weights: torch.Tensor | None,
        part: Tally,
        tally: Tally,
    ) -> Outputs:
        rows = pack.rows.to(batch.input_ids.device)
        episodes = batch.select(rows)
        outputs = self.model.forward_pack(batch.input_ids, pack)
        own_weights = None if weights is None else weights[rows]
        if episodes.old_log_probs is None and not episodes.sampler_is_exact:
            episodes.old_log_probs = outputs.log_probs.detach()
            own_weights = self._importance_weights(episodes, tally, pack.num_policy_tokens)
        loss, terms, figures = compute_objective(
            outputs, episodes, self.options, totals, own_weights
        )
        loss.backward()  # type: ignore[no-untyped-call]
        for name, term in terms.items():
            part.add(name, term)
        for name, figure in figures.items():
            part.average(name, figure, pack.num_policy_tokens)
        if episodes.old_log_probs is None and not tally.num_steps:
            sampler = episodes.need("sampler_log_probs")
            gap = measure_log_prob_gap(sampler, outputs.log_probs, episodes.response_mask)
            tally.average_all(gap, pack.num_policy_tokens)
        return outputs

    def _step(self, part: Tally, num_tokens: int, tally: Tally) -> None:
        """One step of the optimiser, unless something is not a finite number."""
        loss = part.total("loss").to(self.model.device)
        if self.workers.num_workers > 1:
            self.workers.add_up([loss])
            if self.workers.adds_gradients:
                self.optimizer.share_gradients(self.workers.add_up)
        whole_norm = self.workers.whole_norm(self.optimizer.gradient_norm())
        norm, value = torch.stack([whole_norm, loss]).tolist()
        if not (math.isfinite(norm) and math.isfinite(value)):
            self.optimizer.zero_grad()
            tally.count("num_skipped_steps")
            return
        limit = self.options.max_grad_norm
        scale = 1.0 if limit is None or norm <= limit else limit / norm
        self.optimizer.step(self.learning_rate, scale)
        self.optimizer.zero_grad()
        tally.join(part, num_tokens)
        tally.average("grad_norm", norm, 1)
        tally.count("num_steps")

    def _minibatches(self, epoch: int, num_rows: int) -> Iterator[torch.Tensor]:
        """Rows in an order that follows from seed, update and epoch: nothing to save."""
        size = self.options.mini_batch_size or num_rows
        # Who has fewer episodes than others takes part in their last steps with none.
        num_parts = int(self.workers.largest(-(-num_rows // size) if num_rows else 0))
        if size >= num_rows and num_parts == 1:
            yield torch.arange(num_rows)
            return
        entropy = np.random.SeedSequence((self.options.seed, self.num_updates, epoch))
        generator = torch.Generator()
        generator.manual_seed(int(entropy.generate_state(1)[0]))
        order = torch.randperm(num_rows, generator=generator)
        for start in range(0, num_parts * size, size):
            yield order[start : start + size]

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        assert batch.attention_mask is not None
        return make_packs(
            batch.attention_mask.cpu(),
            batch.response_mask.cpu(),
            rows,
            self.options.micro_batch_tokens or self._fitting_tokens,
            batch.input_ids if self.model.shares_openings else None,
        )

    def _paced(
        self, packs: Sequence[Pack], compute: Callable[..., Any], batch: PPOBatch
    ) -> Iterator[Pack]:
        """The packs, one after the other; `compute` is what is done with each."""
        yield from packs

    def _totals(self, packs: list[Pack], num_tokens: int) -> BatchTotals:
        counts = [torch.bincount(pack.row_of[pack.targets]) for pack in packs]
        num_sequences = sum(int((count > 0).sum()) for count in counts)
        tokens, sequences = self.workers.total(num_tokens, num_sequences)
        horizon = self.options.horizon
        if horizon is None:
            horizon = self.workers.largest(max((int(c.max()) for c in counts), default=1))
        return BatchTotals(tokens, sequences, horizon)


def _steady(learning_rate: float) -> dict[str, Any]:
    return {"learning_rate": learning_rate, "lr_schedule": "constant", "warmup_steps": 0}
