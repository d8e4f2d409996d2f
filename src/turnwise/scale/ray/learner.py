"""The trainer's learner, where the learning is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Does what `Learner` does, by a group of workers.

    Its own model is a mirror, on the CPU: brought up to date when somebody looks at it, to save
    it say, and handed to the workers when a checkpoint was loaded into it.
    """

    def __init__(self, *arguments: Any, group: LearnerGroup, **options: Any) -> None:
        self.group = group
        self._is_behind = False
        """Whether the workers have learned since the mirror was brought up to date."""
        self._is_ahead = True
        """Whether the workers have yet to be told what is in the mirror."""
        self._policy: tuple[Any, ...] | None = None
        super().__init__(*arguments, **options)

    @property
    def model(self) -> PolicyValueModel:
        """The mirror, as new as the workers' own."""
        self._fetch_state()
        return self._mirror

    @model.setter
    def model(self, model: PolicyValueModel) -> None:
        self._mirror = model

    def policy_objects(self) -> tuple[Any, ...]:
        """Where in the object store the parts of the policy's weights lie."""
        if self._policy is None:
            self._policy = (ray.put(to_arrays(policy_weights(self))),)
        return self._policy

    def score(self, batch: PPOBatch) -> Outputs:
        parts = self._on_parts("score", batch)
        grids = [_joined(part) for part in zip(*parts, strict=True)]
        log_probs, entropy, values, last_values = grids
        assert log_probs is not None
        assert entropy is not None
        return Outputs(log_probs, entropy, values, last_values)

    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        return torch.cat(self._on_parts("reference_log_probs", batch))

    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        return torch.cat(self._on_parts("sum_pi_squared", batch))

    def update(self, batch: PPOBatch) -> dict[str, float]:
        shared = ray.put(batch)
        options = self.options
        return self._learn(
            lambda actor, rank: actor.update.options(num_returns=2).remote(shared, options)
        )

    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        shared = ray.put(batch)
        options = self.options
        return self._learn(
            lambda actor, rank: actor.imitate.options(num_returns=2).remote(
                shared, options, learning_rate
            )
        )

    def restart(self) -> None:
        self._fetch_state()
        super().restart()
        self._is_ahead = True

    def state_tensors(self) -> dict[str, torch.Tensor]:
        self._fetch_state()
        return super().state_tensors()

    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_state_tensors(tensors)
        self._is_ahead = True
        self._policy = None

    def close(self) -> None:
        self.group.close()

    def _learn(self, ask: Callable[[Any, int], Any]) -> dict[str, float]:
        self._hand_over()
        references = self.group.learn(ask)
        told = ray.get([reference for reference, _ in references])
        self._policy = tuple(policy for _, policy in references)
        self._is_behind = True
        self.num_updates += 1
        for rank, (_, _, lines) in enumerate(told):
            log_for(f"learner {rank}", lines)
        # The workers agree on all figures: they are those of the whole batch.
        figures, seen, _ = told[0]
        self.log_probs_before_update = torch.from_numpy(seen)
        whole: dict[str, float] = figures
        return whole

    def _on_parts(self, method: str, batch: PPOBatch) -> list[Any]:
        """Each worker computes some of the episodes."""
        self._hand_over()
        shares = split_evenly(len(batch), self.group.num_workers)
        parts = [ray.put(batch.select(torch.arange(s.start, s.stop))) for s in shares]
        found = self.group.call(lambda actor, rank: getattr(actor, method).remote(parts[rank]))
        outcome: list[Any] = ray.get(found)
        return outcome

    def _fetch_state(self) -> None:
        """Bring the mirror up to date if the workers have learned since."""
        if self._is_behind:
            self._is_behind = False
            policy = self._policy
            load_learner_state(self, ray.get(self.group.states()))
            self._policy, self._is_ahead = policy, False

    def _hand_over(self) -> None:
        if self._is_ahead:
            self._is_ahead = False
            self.group.load([ray.put(x) for x in learner_states(self, self.group.num_workers)])


def _joined(grids: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    present = [grid for grid in grids if grid is not None]
    return torch.cat(present) if present else None
