"""A platform for VERL on a machine without GPU: workers with gloo and FSDP2, and the rollout.

VERL imports it in each of its processes, as `script_runs.process_environment` asks it to.
"""

# ruff: noqa: E402
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import ray
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _CpuDevice(ModuleType):
    """`torch.cpu` with the calls that VERL makes on `torch.cuda`; there is no cache to manage."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def empty_cache(self, *_: Any) -> None: ...

    ipc_collect = set_device = empty_cache

    def memory_allocated(self, *_: Any) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 0, 0

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]  # VERL ships no types
    """One logical device for each learner worker; Ray counts them as GPUs."""

    device_name = vendor_name = "cpu"
    device_module = _CpuDevice("turnwise_cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only when it is requested: a GPU is preferred

    def current_device(self) -> Any:
        return "cpu"  # VERL passes it to `tensor.to`, where a number would mean a GPU

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def empty_cache(self, *_: Any) -> None: ...

    set_device = synchronize = set_allocator_settings = empty_cache
    profiler_start = profiler_stop = cudart = empty_cache

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


# Only now: these imports ask for the platform, once.
from cpu_server import CpuServer
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers import engine_workers
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.rollout import base, replica

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


class CpuTrainingWorker(engine_workers.TrainingWorker):  # type: ignore[misc]
    """A learner of one model."""

    def __init__(self, config: Any) -> None:
        _start_gloo()
        torch.set_num_threads(1)
        super().__init__(config=config)


class CpuActorRolloutRefWorker(engine_workers.ActorRolloutRefWorker):  # type: ignore[misc]
    """The learner of the policy, with its reference model and the sending of weights."""

    actor_worker_cls = CpuTrainingWorker
    ref_worker_cls = CpuTrainingWorker

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _start_gloo()
        super().__init__(*args, **kwargs)


class CpuReplica(replica.RolloutReplica):  # type: ignore[misc]
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


class CpuWeightSender(base.BaseRollout):  # type: ignore[misc]
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


engine_workers.TrainingWorker = CpuTrainingWorker
engine_workers.ActorRolloutRefWorker = CpuActorRolloutRefWorker
base._ROLLOUT_REGISTRY["turnwise", "async"] = "cpu_platform.CpuWeightSender"
replica.RolloutReplicaRegistry.register("turnwise", lambda: CpuReplica)
