"""`BaseLearner`: what a trainer needs of a learner, in its own process or in several others."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from turnwise.learner.batch import PPOBatch
from turnwise.learner.lora import has_adapters
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.options import LearnerOptions


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds of a learner, or a shard of it."""

    weights: Mapping[str, torch.Tensor]
    """The weights that training may change."""
    rest: Mapping[str, torch.Tensor]
    """The optimiser's tensors, and others that a resumed run needs."""


ReadShard = Callable[[int, int], LearnerState]
"""Returns one of several shards of a state: rank and number of shards."""


class BaseLearner(ABC):
    """Turns batches of episodes into new weights."""

    def __init__(self, options: LearnerOptions) -> None:
        self.options = options
        self.log_probs_before_update: torch.Tensor | None = None
        """[B, T], the learner's log-probs before the first step of the last update."""
        self.before_step: Callable[[], None] = lambda: None
        """Called before the optimiser changes the weights; pauses an engine that samples from the
        same ones."""

    @property
    @abstractmethod
    def model(self) -> PolicyValueModel:
        """The model; without weights where these are in other processes alone."""

    @abstractmethod
    def score(self, batch: PPOBatch) -> Outputs:
        """Return the model's current log-probs, entropy and values: [B, T]."""

    @abstractmethod
    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        """Return the log-probs of the reference [B, T]."""

    @abstractmethod
    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        """Return Σ_v π(v)² where each policy token was sampled: [B, T]."""

    @abstractmethod
    def update(self, batch: PPOBatch) -> dict[str, float]:
        """Learn from a batch; return metrics."""

    @abstractmethod
    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        """Learn to make the policy tokens of a batch likely (supervised learning)."""

    @abstractmethod
    def restart(self) -> None:
        """Reset optimiser and schedule, and make the current weights the reference of a KL term."""

    @abstractmethod
    def state_layout(self) -> LearnerState:
        """Return the dtypes and shapes of the whole state, as tensors on the meta device."""

    @abstractmethod
    def state_shards(self) -> Iterator[LearnerState]:
        """Yield the state, in shards whose rows follow each other."""

    @abstractmethod
    def load_state_shards(self, read: ReadShard) -> None:
        """Load a state, of which each process that has a part of the model reads its shard."""


def placed_weights(learner: BaseLearner) -> Iterator[tuple[str, slice, torch.Tensor]]:
    """Yield the shards of each weight, with their rows in it; those of a scalar mean nothing."""
    ends: dict[str, int] = {}
    for shard in learner.state_shards():
        for name, tensor in shard.weights.items():
            start = ends.get(name, 0)
            ends[name] = start + (len(tensor) if tensor.dim() else 0)
            yield name, slice(start, ends[name]), tensor


def trained_parameters(model: PolicyValueModel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that training may change: all, or only adapters and critic."""
    only_trained = has_adapters(model.policy)
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or not only_trained
    }
