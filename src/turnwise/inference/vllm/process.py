"""vLLM inside this process: its settings, and the state that it must not change."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from turnwise.errors import ConfigError, import_extra
from turnwise.inference.base import check_engine_options
from turnwise.inference.vllm.receiver import RECEIVER

CPU_CACHE_BYTES = 2 * 2**30
"""KV cache on a CPU; by default vLLM would take nearly all memory of the machine."""


def import_vllm() -> bool:
    """Import vLLM with the environment that it needs; return whether it runs on a CPU."""
    # Its scheduler runs in our engine's thread: weights reach it without a copy to another
    # process, and a script needs no `if __name__ == "__main__"`.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    platform = import_extra("vllm.platforms", "vllm").current_platform
    is_cpu: bool = platform.is_cpu()
    if is_cpu:
        # Otherwise its sampler is compiled at first use, which takes half a minute.
        platform.simple_compile_backend = "eager"
        # Threads bound to cores would keep ours off those cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return is_cpu


def engine_settings(is_cpu: bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of vLLM's engine: ours, and the user's `options`."""
    settings: dict[str, Any] = {
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        # It gets and returns token ids.
        "skip_tokenizer_init": True,
        # Workers in other processes read the weights from the GPU of this one.
        "worker_extension_cls": RECEIVER,
    }
    if is_cpu:
        settings |= {
            "enforce_eager": True,
            "kv_cache_memory_bytes": CPU_CACHE_BYTES,
            # On a CPU a request with a seed fails as soon as its prompt is cut into chunks.
            "enable_chunked_prefill": False,
        }
    settings |= options
    if is_cpu and settings["dtype"] == "auto":
        settings["dtype"] = "float32"  # as all else on a CPU; some have no bfloat16
    # Log-probs under the distribution that is sampled from: after temperature and filters.
    mode = settings.setdefault("logprobs_mode", "processed_logprobs")
    if mode != "processed_logprobs":
        raise ConfigError(
            f"logprobs_mode got {mode!r}, expected 'processed_logprobs' or nothing: training "
            "needs the log-probs of the distribution that was sampled from"
        )
    return settings


def make_engine_args(settings: Mapping[str, Any]) -> Any:
    """Return vLLM's arguments; an unknown name is an error that suggests the nearest one."""
    kind = import_extra("vllm.engine.arg_utils", "vllm").EngineArgs
    check_engine_options("vLLM", settings, kind)
    return kind(**settings)


def make_engine(settings: Mapping[str, Any]) -> Any:
    """Return vLLM's engine, loaded; it must be made, used and shut down in one thread."""
    shared = cast(Any, torch.distributed)
    if shared.is_available() and shared.is_initialized():
        raise ConfigError(
            "torch.distributed is already set up in this process, and vLLM sets it up for itself. "
            "Start vLLM as a server, and use VLLMServerEngine."
        )
    engine_kind = import_extra("vllm.v1.engine.llm_engine", "vllm").LLMEngine
    arguments = make_engine_args(settings)
    try:
        return engine_kind.from_engine_args(arguments)
    except Exception as error:  # a setting that cannot work, a model that it does not know, ...
        # What it has set up would break another attempt.
        import_extra("vllm.distributed.parallel_state", "vllm").cleanup_dist_env_and_memory()
        raise ConfigError(f"vLLM could not start with {settings['model']!r}: {error}") from error


class ProcessLock:
    """Allows one vLLM engine per process: closing one shuts down what all of them share."""

    _lock = threading.Lock()

    def __init__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConfigError(
                "this process has a vLLM engine already, and can have one at a time. Close it, or "
                "start vLLM as a server and use VLLMServerEngine."
            )

    def release(self) -> None:
        self._lock.release()


@contextmanager
def preserved_state() -> Iterator[None]:
    """Restore the random generators and torch's threads, which vLLM's start changes."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = cast(Any, torch.cuda)
    gpus = cuda.get_rng_state_all() if cuda.is_initialized() else []
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads  # vLLM replaces it on a CPU
        torch.set_num_threads(num_threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if gpus:
            cuda.set_rng_state_all(gpus)
