"""How new weights reach a vLLM server: CUDA IPC, a broadcast, or files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from turnwise.errors import EngineError
from turnwise.inference.cuda_ipc import export_tensors, gpu_ids, machine_id
from turnwise.inference.vllm.receiver import RECEIVER
from turnwise.inference.vllm.server import VLLMServer
from turnwise.inference.weight_group import (
    Transfer,
    WeightSender,
    as_arguments,
    run_both,
    tensor_specs,
)

_LOG = logging.getLogger("turnwise")


class ServerTransfer:
    """Sends tensors to the workers of one server; for use in one event loop."""

    def __init__(self, server: VLLMServer, transfer: Transfer) -> None:
        self._server, self._asked = server, transfer
        self._chosen: Transfer | None = None
        self._sender: WeightSender | None = None

    async def choose(self, sample: torch.Tensor) -> Transfer:
        """Return how weights on the device of `sample` are sent; decided and logged once."""
        if self._chosen is None:
            self._chosen, why = await self._decide(sample)
            _LOG.info("weights reach %s by %s: %s", self._server.url, self._chosen, why)
        return self._chosen

    async def send(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load tensors, named as in files, into the server; it must be paused."""
        if self._chosen == "ipc":
            await self._server.rpc("turnwise_open", handles=export_tensors(weights))
            return
        assert self._sender is not None
        receiving = self._server.rpc("turnwise_receive", specs=tensor_specs(weights))
        await run_both(receiving, partial(self._sender.send, weights.values()))

    async def _decide(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        if self._asked == "disk":
            return "disk", "chosen by the option transfer"
        try:
            workers = await self._server.rpc("turnwise_describe")
        except EngineError:
            return "disk", (
                "its workers cannot receive tensors. For CUDA IPC or NCCL start it with "
                f"--worker-extension-cls {RECEIVER}"
            )
        if self._asked == "ipc" or (self._asked == "auto" and _shares_gpu(sample, workers)):
            return "ipc", "its workers see the GPU with the learner's weights"
        backend = "nccl" if sample.is_cuda and all(w["gpus"] for w in workers) else "gloo"
        try:
            await self._connect(len(workers), backend)
        except (EngineError, RuntimeError, OSError) as error:
            return "disk", f"a {backend} group with its workers failed ({error})"
        return "broadcast", f"{backend}, to {len(workers)} workers"

    async def _connect(self, num_workers: int, backend: str) -> None:
        sender = WeightSender(self._server.url, num_workers, backend)
        joining = self._server.rpc("turnwise_join", address=as_arguments(sender.address))
        await run_both(joining, sender.connect)
        self._sender = sender


def _shares_gpu(sample: torch.Tensor, workers: Sequence[Mapping[str, Any]]) -> bool:
    if not sample.is_cuda:
        return False
    own = gpu_ids()[sample.device.index]
    return all(w["machine"] == machine_id() and own in w["gpus"] for w in workers)
