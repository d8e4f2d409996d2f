"""`WeightReceiver`: what vLLM's workers need to take weights from another process."""

from __future__ import annotations

from typing import Any

from turnwise.inference.weights import (
    TensorSpec,
    WeightReceiverGroup,
    gpu_ids,
    machine_id,
    open_tensors,
)

RECEIVER = "turnwise.inference.vllm.receiver.WeightReceiver"
"""The value of vLLM's option `worker_extension_cls`."""


class WeightReceiver:
    """A mixin of vLLM's worker class; its methods are called through `collective_rpc`."""

    rank: int
    reload_weights: Any
    _turnwise_group: WeightReceiverGroup

    def turnwise_describe(self) -> dict[str, Any]:
        """Return where this worker runs."""
        return {"machine": machine_id(), "gpus": gpu_ids()}

    def turnwise_join(self, address: dict[str, Any]) -> None:
        """Join the learner's group, which workers follow in the order of their ranks."""
        self._turnwise_group = WeightReceiverGroup(address, 1 + self.rank)

    def turnwise_receive(self, specs: list[TensorSpec]) -> None:
        """Load weights that the learner broadcasts."""
        arriving = self._turnwise_group.receive(specs)
        try:
            self.reload_weights(weights_iterator=arriving)
        finally:
            for _ in arriving:  # after an error the learner still waits until it has sent all
                pass

    def turnwise_open(self, handles: str) -> None:
        """Load weights from the memory of the learner's GPU."""
        self.reload_weights(weights_iterator=open_tensors(handles))
