"""`RemoteLearner`: a proxy of the learner whose updates run in a group of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turnwise.errors import import_extra
from turnwise.learner import LearnerOptions, Outputs, PolicyValueModel, PPOBatch
from turnwise.learner.base import (
    BaseLearner,
    LearnerState,
    ReadShard,
    StateLayout,
    placed_weights,
    trained_parameters,
)
from turnwise.learner.sharding import split_shards
from turnwise.learner.tensor_file import Layout
from turnwise.models.empty import is_empty
from turnwise.scale.ray.arrays import lazy_tensors, to_arrays
from turnwise.scale.ray.episode_pool import split_evenly
from turnwise.scale.ray.learner_group import LearnerGroup
from turnwise.scale.ray.learner_worker import arrays_of
from turnwise.scale.ray.worker_log import log_for
from turnwise.trainer.assembly import policy_weights

ray = import_extra("ray", "ray")


class RemoteLearner(BaseLearner):
    """Does what `Learner` does, in a group of workers.

    Checkpoints pass through this process shard by shard. `model` may be one without weights
    (`load_empty_model`), and stays so; one that has weights gets the workers' when it is read, and
    with every checkpoint.
    """

    def __init__(
        self, model: PolicyValueModel, options: LearnerOptions, *, group: LearnerGroup
    ) -> None:
        super().__init__(options)
        self.group = group
        self._model = model
        self._is_stale = False
        """Whether the workers have other weights than a model that has some."""
        self._must_send = True
        """Whether the workers do not have the weights of the model yet."""
        self._policy: tuple[Any, ...] | None = None

    @property
    def model(self) -> PolicyValueModel:
        if self._is_stale:
            self._fetch_weights()
        return self._model

    def policy_objects(self) -> tuple[Any, ...]:
        """Return the object references of the shards of the policy's weights."""
        if self._policy is None and self._must_send and not is_empty(self._model):
            self._policy = (ray.put(to_arrays(policy_weights(self))),)  # an evaluation ends so
        if self._policy is None:
            self._send_weights()
            self._policy = tuple(self.group.call_all(lambda actor, rank: actor.policy.remote()))
        return self._policy

    def score(self, batch: PPOBatch) -> Outputs:
        shares = self._on_shares("score", batch)
        columns = [_joined(column) for column in zip(*shares, strict=True)]
        log_probs, entropy, values, last_values = columns
        assert log_probs is not None
        assert entropy is not None
        return Outputs(log_probs, entropy, values, last_values)

    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        return torch.cat(self._on_shares("reference_log_probs", batch))

    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        return torch.cat(self._on_shares("sum_pi_squared", batch))

    def update(self, batch: PPOBatch) -> dict[str, float]:
        return self._learn("update", batch)

    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        return self._learn("imitate", batch, learning_rate)

    def restart(self) -> None:
        self._send_weights()
        self.group.learn(lambda actor, rank: actor.restart.remote())

    def state_layout(self) -> StateLayout:
        self._send_weights()
        found = ray.get(self.group.call_all(lambda actor, rank: actor.layout.remote()))
        return StateLayout(
            _joined_layout([layout.weights for layout in found]),
            _joined_layout([layout.rest for layout in found]),
        )

    def state_shards(self) -> Iterator[LearnerState]:
        self._send_weights()
        if self._is_stale:
            self._fetch_weights()
        for shard in self.group.states():
            yield LearnerState(*map(lazy_tensors, ray.get(shard)))

    def load_state_shards(self, read: ReadShard) -> None:
        number = self.group.num_workers
        self.group.load([ray.put(arrays_of(read(rank, number))) for rank in range(number)])
        self._must_send = False
        self._changed(None)

    def _learn(self, *call: Any) -> dict[str, float]:
        """Call a method of every worker's learner: its name, the batch, and other arguments."""
        self._send_weights()
        shared, options = ray.put(call), self.options
        references = self.group.learn(
            lambda actor, rank: actor.learn.options(num_returns=2).remote(shared, options)
        )
        outputs = ray.get([reference for reference, _ in references])
        self._changed(tuple(policy for _, policy in references))
        for rank, (_, _, lines) in enumerate(outputs):
            log_for(f"learner {rank}", lines)
        # All workers report the same metrics: those of the whole batch.
        metrics, log_probs, _ = outputs[0]
        self.log_probs_before_update = torch.tensor(log_probs)  # Ray's own array is read-only
        found: dict[str, float] = metrics
        return found

    def _on_shares(self, method: str, batch: PPOBatch) -> list[Any]:
        """Call a method of every worker with its share of the episodes."""
        self._send_weights()
        size = self.group.context_size
        shares = split_evenly(len(batch), self.group.num_workers // size)
        batches = [ray.put(batch.select(torch.arange(s.start, s.stop))) for s in shares]
        found = self.group.call_all(
            lambda actor, rank: getattr(actor, method).remote(batches[rank // size])
        )
        outcome: list[Any] = ray.get(found[::size])
        return outcome

    def _send_weights(self) -> None:
        """Send the workers what they do not load themselves: all weights of a model that has some,
        else those of adapters and critic."""
        if self._must_send:
            self._must_send = False
            own = trained_parameters(self._model)
            known = {name: p.detach() for name, p in own.items() if not p.is_meta}
            shards = split_shards(known, self.group.num_workers)
            states = [ray.put(arrays_of(LearnerState(shard, {}))) for shard in shards]
            self.group.load(states, is_whole=False)

    def _changed(self, policy: tuple[Any, ...] | None) -> None:
        """Note that the workers have new weights; `policy` are their shards, if known."""
        self._policy = policy
        self._is_stale = not is_empty(self._model)

    @torch.no_grad()
    def _fetch_weights(self) -> None:
        """Copy the workers' weights to the model of this process."""
        self._is_stale = False
        own = trained_parameters(self._model)
        for name, rows, tensor in placed_weights(self):
            (own[name][rows] if tensor.dim() else own[name]).copy_(tensor)


def _joined_layout(shards: list[Layout]) -> Layout:
    """Return the layout of whole tensors, given those of their shards."""
    return {
        name: (dtype, (sum(s[name][1][0] for s in shards), *shape[1:]) if shape else shape)
        for name, (dtype, shape) in shards[0].items()
    }


def _joined(grids: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    present = [grid for grid in grids if grid is not None]
    return torch.cat(present) if present else None
