"""`WeightReceiver`: what vLLM's workers need to take weights from another process."""

from collections.abc import Iterator
from typing import Any

import torch

from turnwise.inference.weights import GroupAddress, gpu_ids, join_group, machine_id, open_tensors

RECEIVER = "turnwise.inference.vllm.receiver.WeightReceiver"
"""The value of vLLM's option `worker_extension_cls`."""


class WeightReceiver:
    """A mixin of vLLM's worker class; its methods are called through `collective_rpc`."""

    rank: int
    reload_weights: Any
    _turnwise_group: Any
    _turnwise_device: str

    def turnwise_describe(self) -> dict[str, Any]:
        """Return where this worker runs."""
        return {"machine": machine_id(), "gpus": gpu_ids()}

    def turnwise_join(self, address: dict[str, Any]) -> None:
        """Join the learner's group, which workers follow in the order of their ranks."""
        self._turnwise_group = join_group(GroupAddress(**address), 1 + self.rank)
        self._turnwise_device = "cuda" if address["backend"] == "nccl" else "cpu"

    def turnwise_receive(self, specs: list[tuple[str, str, list[int]]]) -> None:
        """Load weights that the learner broadcasts; only one is held at a time."""

        def receive() -> Iterator[tuple[str, torch.Tensor]]:
            for name, dtype, shape in specs:
                kind = getattr(torch, dtype)
                tensor = torch.empty(shape, dtype=kind, device=self._turnwise_device)
                self._turnwise_group.broadcast([tensor]).wait()
                yield name, tensor

        arriving = receive()
        try:
            self.reload_weights(weights_iterator=arriving)
        finally:
            for _ in arriving:  # after an error the learner still waits until it has sent all
                pass

    def turnwise_open(self, handles: str) -> None:
        """Load weights from the memory of the learner's GPU."""
        self.reload_weights(weights_iterator=open_tensors(handles))
