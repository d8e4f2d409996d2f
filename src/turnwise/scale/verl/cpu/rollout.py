"""VERL's rollout on a CPU: starts the servers that sample, and sends them weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from turnwise.scale.verl.cpu.server import CpuServer


def server_name(replica_rank: int) -> str:
    return f"turnwise_server_{replica_rank}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """Starts one server for each learner worker."""

    async def launch_servers(self) -> None:
        actor = ray.remote(CpuServer).options(
            name=server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        model = self.model_config
        server: Any = actor.remote(model.path, model.trust_remote_code)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)


class CpuWeightSender(BaseRollout):  # type: ignore[misc]
    """Sends the weights of a learner worker to its server."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        # Gathering a tensor is a collective: all workers take part, the first one sends.
        whole = {name: tensor.detach() for name, tensor in weights}
        num_workers = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        replica_rank, place = divmod(int(os.environ["RANK"]), num_workers)
        if place == 0:
            server = ray.get_actor(server_name(replica_rank))
            await server.update_weights.remote(whole, global_steps)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...
