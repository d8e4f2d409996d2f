"""The engine on `sglang.Engine`, started from this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import torch

from turnwise.errors import ConfigError, EngineError, import_extra
from turnwise.inference.base import Overflow, check_engine_options
from turnwise.inference.loop_thread import START_SECONDS
from turnwise.inference.sglang import wire
from turnwise.inference.sglang.engine import SGLangEngine
from turnwise.inference.sglang.server import SGLangServerEngine
from turnwise.inference.weight_group import Transfer
from turnwise.models import load_tokenizer, model_folder


class SGLangInferenceEngine(SGLangEngine):
    """`sglang.Engine` on the GPUs of this machine; closing this engine shuts it down.

    `engine_options` are passed to it, such as `mem_fraction_static=0.5`, or
    `enable_deterministic_inference=True` for seeds that work. On shutdown `sglang.Engine` ends
    every child process of this process, also those of others.
    """

    server = SGLangServerEngine

    def __init__(
        self,
        model_path: str,
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        trust_remote_code: bool = False,
        overflow: Overflow = "truncate",
        num_top_log_probs: int = 128,
        weights_dir: str | os.PathLike[str] | None = None,
        transfer: Transfer = "auto",
        sleep: bool = False,
        start_timeout: float | None = START_SECONDS,
        **engine_options: Any,
    ) -> None:
        if os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true"):
            raise ConfigError(
                "SGLANG_RETURN_ORIGINAL_LOGPROB is set, with which log-probs leave out the "
                "temperature. Unset it: training needs those of what was sampled from."
            )
        self._sglang = import_extra("sglang", "sglang")
        self._engine: Any = None
        self._options = {
            "model_path": model_folder(model_path),
            "dtype": dtype,
            "tp_size": tensor_parallel_size,
            "context_length": max_model_len,
            "trust_remote_code": trust_remote_code,
            **({"enable_memory_saver": True} if sleep else {}),
            **engine_options,
        }
        arguments = import_extra("sglang.srt.server_args", "sglang").ServerArgs
        check_engine_options("SGLang", self._options, arguments)
        if tokenizer is None and not engine_options.get("skip_tokenizer_init"):
            path = engine_options.get("tokenizer_path") or model_path
            tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
        super().__init__(
            tokenizer,
            overflow,
            model_path=None,
            num_top_log_probs=num_top_log_probs,
            weights_dir=weights_dir,
            transfer=transfer,
            sleep=sleep,
            trust_remote_code=trust_remote_code,
            start_timeout=start_timeout,
        )

    def _connect(self) -> Mapping[str, Any]:
        # Its processes end with the thread that starts them, so the engine's thread does.
        self._engine = self._sglang.Engine(**self._options)
        self._engine.loop = self._loop  # it is bound to the first loop that it runs in
        info: Mapping[str, Any] = self._engine.get_server_info()
        return info

    async def _responses(self, body: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        try:
            yield await self._engine.async_generate(**body)
        except Exception as error:  # it raises what its server would respond with
            raise EngineError(f"SGLang refused a request: {error}") from error

    async def _abort(self, rid: str) -> None:
        self._engine.tokenizer_manager.abort_request(rid=rid)

    async def _load(self, folder: str, weight_version: str) -> None:
        # The engine's own method would run an event loop, and ours is running already.
        requests = importlib.import_module("sglang.srt.managers.io_struct")
        success, message, _ = await self._engine.tokenizer_manager.update_weights_from_disk(
            requests.UpdateWeightFromDiskReqInput(
                model_path=folder, flush_cache=True, weight_version=weight_version
            )
        )
        if not success:
            raise EngineError(f"SGLang did not take the weights in {folder}: {message}")

    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        if sample.is_cuda or self._asked_transfer == "ipc":
            return "ipc", "its processes read the learner's GPU"
        return "disk", "the learner's weights are not on a GPU"

    async def _send(self, weights: Mapping[str, torch.Tensor], weight_version: str) -> None:
        requests = importlib.import_module("sglang.srt.managers.io_struct")
        # The in-process call takes bytes where the server takes base64.
        payloads = wire.serialized(weights, self._facts.num_workers)
        success, message = await self._engine.tokenizer_manager.update_weights_from_tensor(
            requests.UpdateWeightsFromTensorReqInput(
                serialized_named_tensors=payloads,
                flush_cache=True,
                weight_version=weight_version,
            )
        )
        if not success:
            raise EngineError(f"SGLang did not take the weights: {message}")

    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        requests = importlib.import_module("sglang.srt.managers.io_struct")
        request = getattr(requests, f"{action.capitalize()}MemoryOccupationReqInput")(tags=tags)
        manager = self._engine.tokenizer_manager
        await getattr(manager, f"{action}_memory_occupation")(request)

    async def _flush_cache(self) -> str:
        manager = self._engine.tokenizer_manager
        flushed = await manager.flush_cache()
        if not flushed.success:
            raise EngineError(f"SGLang did not flush its cache: {flushed.message}")
        return str(manager.config_value("weight_version"))

    def _disconnect(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
