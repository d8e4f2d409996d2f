"""VERL's workers on a machine without GPU: learners with gloo and FSDP2, and the rollout."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import (
    FSDPEngineWithLMHead,
    FSDPEngineWithValueHead,
)
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from turnwise.scale.verl.cpu_server import CpuServer

_SERVER = "turnwise_server_{}"


class _OnCpu:
    """What differs from VERL's engines on a machine without GPU."""

    engine_config: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        # A reference model would be offloaded to pinned memory, which needs a GPU's driver.
        is_reference, self.engine_config.forward_only = self.engine_config.forward_only, False
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config.forward_only = is_reference

    def to(self, device: str, **_: Any) -> None:
        """Nothing to do: there is no other device."""


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuLanguageModel(_OnCpu, FSDPEngineWithLMHead):  # type: ignore[misc]  # VERL ships no types
    """The policy, and the reference."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuValueModel(_OnCpu, FSDPEngineWithValueHead):  # type: ignore[misc]
    """The critic."""

    model_config: Any

    def _build_module(self) -> Any:
        """Return the model with a value head; VERL's own needs flash attention."""
        from transformers import AutoModelForTokenClassification

        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        torch.manual_seed(self.engine_config.seed)  # the head is new
        module: Any = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=self.model_config.trust_remote_code,
        )
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": False})
        return module


def _start_gloo() -> None:
    # VERL would ask for one backend for "cpu" twice, which torch refuses.
    initialize_global_process_group_ray(timeout_second=None, backend="cpu:gloo")


class CpuTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """A learner of one model."""

    def __init__(self, config: Any) -> None:
        _start_gloo()
        torch.set_num_threads(1)
        super().__init__(config=config)


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """The learner of the policy, with its reference model and the sending of weights."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _start_gloo()
        super().__init__(*args, **kwargs)


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """Starts one server for each learner worker."""

    async def launch_servers(self) -> None:
        name = _SERVER.format(self.replica_rank)
        actor = ray.remote(CpuServer).options(
            name=name, num_cpus=0, max_concurrency=self.max_concurrency
        )
        server: Any = actor.remote(self.model_config.path, self.model_config.trust_remote_code)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


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
        replica_rank, number = divmod(int(os.environ["RANK"]), num_workers)
        if number == 0:
            server = ray.get_actor(_SERVER.format(replica_rank))
            await server.update_weights.remote(whole, global_steps)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...
