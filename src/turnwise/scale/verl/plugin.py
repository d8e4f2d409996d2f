"""VERL imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

It registers what our runs ask VERL for by name: the agent loop that plays our episodes, and for
machines without GPU the platform, the rollout and its server.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from turnwise.scale.verl.settings import AGENT_LOOP, CPU_ROLLOUT


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
from verl.experimental.agent_loop import agent_loop  # noqa: E402
from verl.workers.rollout import base, replica  # noqa: E402


def _load_replica() -> Any:
    from turnwise.scale.verl.cpu import CpuReplica

    return CpuReplica


agent_loop._agent_loop_registry[AGENT_LOOP] = {
    "_target_": "turnwise.scale.verl.agent_loop.EpisodeAgentLoop"
}
base._ROLLOUT_REGISTRY[CPU_ROLLOUT, "async"] = "turnwise.scale.verl.cpu.CpuWeightSender"
replica.RolloutReplicaRegistry.register(CPU_ROLLOUT, _load_replica)
