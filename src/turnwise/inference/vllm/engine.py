"""The engine on vLLM in this process: one thread runs its scheduler and its model."""

import asyncio
import logging
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from turnwise.errors import ConfigError, import_extra
from turnwise.inference.base import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
    check_options,
)
from turnwise.inference.served import START_SECONDS, own_processes, wait_for_start
from turnwise.inference.vllm.receiver import RECEIVER
from turnwise.inference.vllm.server import VLLMServerEngine, sampling_arguments, scoring_arguments
from turnwise.inference.weights import NewWeights, Skeleton, checked_weights, export_tensors
from turnwise.inference.worker import EngineTurn, WorkerEngine
from turnwise.models import load_tokenizer, model_folder

_LOG = logging.getLogger("turnwise")
CPU_CACHE_BYTES = 2 * 2**30
"""KV cache on a CPU; by default vLLM would take nearly all memory of the machine."""


class VLLMInferenceEngine(WorkerEngine):
    """A model on vLLM: continuous batching, paged and shared KV cache, tensor parallelism.

    Other options are passed to vLLM (`gpu_memory_utilization=0.5`, ...). With `sleep` a trainer on
    the same GPU has the memory of weights and KV cache during its updates. Log-probs are those of
    the distribution that was sampled from; those of greedy turns are the model's own. Filters work
    as in other engines with two exceptions: vLLM applies min-p before top-p, so with both the set
    of tokens can be smaller, and of equally likely tokens at the edge of top-p it may keep only
    some.
    The same seed gives the same tokens up to rounding, which in vLLM depends on the batch. vLLM
    also draws from torch's global generator, so reproducible code should not use that.
    """

    server = VLLMServerEngine

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        trust_remote_code: bool = False,
        tokenizer: Any = None,
        overflow: Overflow = "truncate",
        sleep: bool = False,
        start_timeout: float | None = START_SECONDS,
        **engine_options: Any,
    ) -> None:
        self._folder = model_folder(model_path)
        self._trust_remote_code = trust_remote_code
        self._is_cpu, self.settings = _import_vllm()
        """The settings of vLLM's engine."""
        self.settings |= {
            "model": self._folder,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            "trust_remote_code": trust_remote_code,
            **({} if dtype == "auto" else {"dtype": dtype}),
            **engine_options,
        }
        if (mode := self.settings["logprobs_mode"]) != "processed_logprobs":
            raise ConfigError(
                f"logprobs_mode got {mode!r}, expected 'processed_logprobs' or nothing: training "
                "needs the log-probs of the distribution that was sampled from"
            )
        if sleep and not self._is_cpu:  # the CPU build refuses the setting, and takes the calls
            self.settings["enable_sleep_mode"] = True
        has_files = not Path(self._folder).is_dir() or any(Path(self._folder).glob("tokenizer*"))
        if tokenizer is None and has_files:  # otherwise transformers would return an empty one
            tokenizer = self._folder
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        super().__init__(tokenizer, overflow)
        self._vllm: Any = None
        self._turns: dict[str, EngineTurn] = {}
        self._names = count()
        self._failure: str | None = None
        self._logged_transfer = ""
        self._may_sleep = sleep
        self._is_asleep = False
        try:
            with _preserved_state(), own_processes():
                start = self._in_thread(self._start, wait_for_idle=False)
                wait_for_start(start, start_timeout, "vLLM")
        except BaseException:
            self.close()
            raise

    @property
    def context_length(self) -> int:
        return int(self._vllm.model_config.max_model_len)

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        self._check_works()
        if request.stop_strings and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer. Pass tokenizer=.")
        sampling_arguments(request, 1)  # raises what vLLM would refuse later
        return await super().sample(request)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        self._check_works()
        self._check_scored(ids, start)
        if start == len(ids):
            return []
        future = asyncio.get_running_loop().create_future()
        self._put(_Scored(GenerationRequest(list(ids), 1), 1, future))
        result = await future
        if result.finish_reason is FinishReason.ABORTED:
            raise RuntimeError("the engine was closed before these tokens were scored")
        return list(result.log_probs[start - 1 :])

    def sleep(self) -> None:
        """Free weights and KV cache until `update_weights`, if the engine was made with `sleep`."""

        def fall_asleep() -> None:
            self._vllm.sleep(level=2)  # the weights are not copied to the CPU: new ones will come
            self._is_asleep = True

        if self._may_sleep and not self._is_asleep:
            self._in_thread(fall_asleep, wait_for_idle=True).result(self.update_timeout)

    def update_weights(self, weights: NewWeights) -> int:
        """Load new weights in place, from tensors by their Hugging Face names or from a folder.

        Running turns finish first, with the old weights. With `in_flight` they go on with the new
        ones, and vLLM computes their keys and values again.
        """
        weights = checked_weights(weights, self._skeleton, "vLLM", is_server=False)
        if self._is_cpu and self._vllm.model_config.get_num_experts():
            raise ConfigError(
                "vLLM's CPU build does not take new weights of experts: it goes on with the old "
                "ones without a word. Use a GPU, or another engine."
            )
        take = partial(self._take, "through the disk", weights_path=weights)
        if isinstance(weights, Mapping):
            take = partial(self._take_tensors, weights)
        return self._updated(self._in_thread(take, wait_for_idle=self.in_flight is None))

    def _start(self) -> None:
        """Make vLLM's engine; it must be made, used and shut down in one thread."""
        shared = cast(Any, torch.distributed)
        if shared.is_available() and shared.is_initialized():
            raise ConfigError(
                "vLLM sets up torch.distributed, and it is already set up in this process, perhaps "
                "by another vLLM engine. Close that one, or start vLLM as a server."
            )
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        check_options("vLLM", self.settings, [field.name for field in fields(EngineArgs)])
        arguments = EngineArgs(**self.settings)
        try:
            self._vllm = LLMEngine.from_engine_args(arguments)
        except Exception as error:  # a setting that cannot work, a model that it does not know, ...
            cleanup_dist_env_and_memory()  # what it has set up would break another attempt
            raise ConfigError(f"vLLM could not start with {self._folder!r}: {error}") from error
        self._vocab_size = int(self._vllm.model_config.get_vocab_size())

    def _work(self) -> None:
        super()._work()
        if self._vllm is not None:  # in the thread that made it
            self._vllm.engine_core.shutdown()

    def _active_turns(self) -> Collection[EngineTurn]:
        return self._turns.values()

    def _advance(self, *, may_admit: bool) -> None:
        try:
            while may_admit and self._waiting:
                self._begin(self._waiting.popleft())
            outputs = {o.request_id: o for o in self._vllm.step()} if self._turns else {}
            for name, turn in list(self._turns.items()):
                output: Any = outputs.get(name)
                reason = turn.finish_reason() if output is None else _append_output(turn, output)
                is_finished = output is not None and output.finished
                if reason is None and not is_finished:
                    continue
                del self._turns[name]
                if not is_finished:
                    self._vllm.abort_request([name])
                if reason is not None:
                    turn.deliver(turn.result(reason, self.weight_version))
                else:
                    ended = output.outputs[0].finish_reason
                    turn.deliver(RuntimeError(f"vLLM ended a turn for its own reason: {ended}"))
        except Exception as error:  # vLLM itself failed: all its requests are lost
            self._failure = f"vLLM failed: {error}. Make a new engine."
            for turn in self._turns.values():
                turn.deliver(error)
            self._turns.clear()

    def _begin(self, turn: EngineTurn) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        if self._failure is not None:
            turn.deliver(RuntimeError(self._failure))
            return
        reason = turn.finish_reason()
        if reason is not None:  # no context left, or its deadline has passed
            turn.deliver(turn.result(reason, self.weight_version))
            return
        name = str(next(self._names))
        prompt = list(turn.request.prompt_ids)
        try:
            if isinstance(turn, _Scored):
                prompt, arguments = scoring_arguments(prompt)
            else:
                arguments = sampling_arguments(turn.request, turn.context_left)
            delta = RequestOutputKind.DELTA
            params = SamplingParams(**arguments, detokenize=False, output_kind=delta)
            self._vllm.add_request(name, {"type": "token", "prompt_token_ids": prompt}, params)
        except Exception as error:  # vLLM validates requests
            turn.deliver(ConfigError(f"vLLM refused a request: {error}"))
        else:
            self._turns[name] = turn

    def _take_tensors(self, weights: Mapping[str, torch.Tensor]) -> int:
        named = self._skeleton.as_files_have_them(weights)
        if self._vllm.vllm_config.parallel_config.world_size == 1:
            pairs = ((name, tensor.detach()) for name, tensor in named.items())
            return self._take("in this process", weights_iterator=pairs)
        if all(tensor.is_cuda for tensor in named.values()):
            return self._take("by CUDA IPC", "turnwise_open", handles=export_tensors(named))
        with self._skeleton.written(weights) as folder:
            return self._take("through the disk", weights_path=str(folder))

    def _take(self, way: str, method: str = "reload_weights", **source: Any) -> int:
        if way != self._logged_transfer:
            self._logged_transfer = way
            _LOG.info("weights reach vLLM %s", way)
        try:
            if self._is_asleep:
                self._vllm.wake_up(tags=["weights"])
            self._vllm.collective_rpc(method, kwargs=source)
            if self._is_asleep:
                self._vllm.wake_up(tags=["kv_cache"])
                self._is_asleep = False
            # Cached keys and values belong to the old weights. Running turns cannot keep theirs:
            # new conversations would read them from the cache. An aborted batch may still hold
            # some blocks for a step or two.
            for _ in range(8):
                is_reset = self._vllm.reset_prefix_cache(reset_running_requests=bool(self._turns))
                if is_reset or self._turns:
                    break
                self._vllm.step()
            else:
                raise RuntimeError("vLLM keeps keys and values of the old weights")
        except Exception as error:
            self._failure = f"new weights did not load, and the old are gone: {error}"
            raise
        before, self.weight_version = self.weight_version, self._next_version
        for turn in self._turns.values():
            turn.weights_changed(before, self.weight_version)
        return self.weight_version

    def _check_works(self) -> None:
        if self._is_asleep:
            raise RuntimeError("vLLM sleeps, without weights. Call update_weights first.")
        if self._failure is not None:
            raise RuntimeError(self._failure)

    @cached_property
    def _skeleton(self) -> Skeleton:
        return Skeleton(self._folder, self._trust_remote_code)


@dataclass(eq=False)
class _Scored(EngineTurn):
    """A request for the log-probs of its prompt."""


def _append_output(turn: EngineTurn, output: Any) -> FinishReason | None:
    """Append what vLLM sampled to a turn, up to its end; return why it ended."""
    completion = output.outputs[0]
    if isinstance(turn, _Scored):
        ids = turn.request.prompt_ids
        known = [*output.prompt_logprobs[1:], completion.logprobs[0]]
        turn.log_probs = [at[token].logprob for at, token in zip(known, ids[1:], strict=True)]
        return FinishReason.LENGTH
    for token, at in zip(completion.token_ids, completion.logprobs, strict=True):
        turn.ids.append(token)
        turn.log_probs.append(at[token].logprob)
        reason = turn.finish_reason()
        if reason is not None:
            return reason
    return turn.finish_reason() if not completion.token_ids else None


def _import_vllm() -> tuple[bool, dict[str, Any]]:
    """Import vLLM with the environment that it needs; return whether it is the CPU build.

    And the settings of its engine that differ from its own.
    """
    # Its scheduler runs in our engine's thread: weights reach it without a copy to another
    # process, and a script needs no `if __name__ == "__main__"`.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    platform = import_extra("vllm.platforms", "vllm").current_platform
    settings: dict[str, Any] = {
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        # It gets and returns token ids.
        "skip_tokenizer_init": True,
        # Workers in other processes read the weights from the GPU of this one.
        "worker_extension_cls": RECEIVER,
        # Log-probs under the distribution that is sampled from: after temperature and filters.
        "logprobs_mode": "processed_logprobs",
    }
    if platform.is_cpu():
        # Otherwise its sampler is compiled at first use, which takes half a minute.
        platform.simple_compile_backend = "eager"
        # Threads bound to cores would keep ours off those cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        settings |= {
            "dtype": "float32",  # as all else on a CPU; some have no bfloat16
            "enforce_eager": True,
            "kv_cache_memory_bytes": CPU_CACHE_BYTES,
            # On a CPU a request with a seed fails as soon as its prompt is cut into chunks.
            "enable_chunked_prefill": False,
        }
    return platform.is_cpu(), settings


@contextmanager
def _preserved_state() -> Iterator[None]:
    """Restore the random generators and torch's threads, which vLLM's start changes."""
    python, numpy = random.getstate(), np.random.get_state()
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    has_cuda = cast(Any, torch.cuda).is_initialized()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if has_cuda else []):
            yield
    finally:
        torch.set_num_threads = set_num_threads  # vLLM replaces it on a CPU
        torch.set_num_threads(num_threads)
        random.setstate(python)
        np.random.set_state(numpy)
