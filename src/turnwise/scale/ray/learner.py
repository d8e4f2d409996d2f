"""`RemoteLearner`: a proxy of the learner whose updates run in a group of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from turnwise.errors import import_extra
from turnwise.learner import Learner, Outputs, PolicyValueModel, PPOBatch
from turnwise.scale.ray.arrays import to_arrays
from turnwise.scale.ray.episode_pool import split_evenly
from turnwise.scale.ray.learner_group import LearnerGroup
from turnwise.scale.ray.learner_worker import learner_states, load_learner_state
from turnwise.scale.ray.worker_log import log_for
from turnwise.trainer.assembly import policy_weights

ray = import_extra("ray", "ray")


class RemoteLearner(Learner):
    """Does what `Learner` does, in a group of workers.

    Its own model is a copy on the CPU. It is fetched from the workers when it is read, for example
    to save it, and sent to them after a checkpoint was loaded into it.
    """

    def __init__(self, *arguments: Any, group: LearnerGroup, **options: Any) -> None:
        self.group = group
        self._is_stale = False
        """Whether the workers have updated since the copy was fetched."""
        self._must_send = True
        """Whether the copy has not been sent to the workers yet."""
        self._policy: tuple[Any, ...] | None = None
        super().__init__(*arguments, **options)

    @property
    def model(self) -> PolicyValueModel:
        """The copy, fetched from the workers if they have updated."""
        self._fetch_state()
        return self._copy

    @model.setter
    def model(self, model: PolicyValueModel) -> None:
        self._copy = model

    def policy_objects(self) -> tuple[Any, ...]:
        """Return the object references of the shards of the policy's weights."""
        if self._policy is None:
            self._policy = (ray.put(to_arrays(policy_weights(self))),)
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
        self._fetch_state()
        super().restart()
        self._must_send = True

    def state_tensors(self) -> dict[str, torch.Tensor]:
        self._fetch_state()
        return super().state_tensors()

    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_state_tensors(tensors)
        self._must_send = True
        self._policy = None

    def close(self) -> None:
        self.group.close()

    def _learn(self, *call: Any) -> dict[str, float]:
        """Call a method of every worker's learner: its name, the batch, and other arguments."""
        self._send_state()
        shared, options = ray.put(call), self.options
        references = self.group.learn(
            lambda actor, rank: actor.learn.options(num_returns=2).remote(shared, options)
        )
        outputs = ray.get([reference for reference, _ in references])
        self._policy = tuple(policy for _, policy in references)
        self._is_stale = True
        self.num_updates += 1
        for rank, (_, _, lines) in enumerate(outputs):
            log_for(f"learner {rank}", lines)
        # All workers report the same metrics: those of the whole batch.
        metrics, log_probs, _ = outputs[0]
        self.log_probs_before_update = torch.tensor(log_probs)  # Ray's own array is read-only
        found: dict[str, float] = metrics
        return found

    def _on_shares(self, method: str, batch: PPOBatch) -> list[Any]:
        """Call a method of every worker with its share of the episodes."""
        self._send_state()
        size = self.group.context_size
        shares = split_evenly(len(batch), self.group.num_workers // size)
        batches = [ray.put(batch.select(torch.arange(s.start, s.stop))) for s in shares]
        found = self.group.call_all(
            lambda actor, rank: getattr(actor, method).remote(batches[rank // size])
        )
        outcome: list[Any] = ray.get(found[::size])
        return outcome

    def _fetch_state(self) -> None:
        """Fetch the copy if the workers have updated since."""
        if self._is_stale:
            self._is_stale = False
            policy = self._policy
            load_learner_state(self, ray.get(self.group.states()))
            self._policy, self._must_send = policy, False

    def _send_state(self) -> None:
        if self._must_send:
            self._must_send = False
            self.group.load([ray.put(x) for x in learner_states(self, self.group.num_workers)])


def _joined(grids: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    present = [grid for grid in grids if grid is not None]
    return torch.cat(present) if present else None
