"""The engines on SGLang: `sglang.Engine` started from this process, and a server over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import torch

from turnwise.errors import ConfigError, EngineError, import_extra
from turnwise.inference.base import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
    check_engine_options,
    check_ids,
)
from turnwise.inference.served import START_SECONDS, JsonClient, ServedEngine, WeightsRefused
from turnwise.inference.sglang import wire
from turnwise.inference.weights import Transfer, WeightSender, buckets, run_both
from turnwise.inference.worker import SampledTurn, length_to_stop
from turnwise.models import load_tokenizer, model_folder

_LOG = logging.getLogger("turnwise")
_BUCKET_BYTES = 2**30
"""A server holds this much of the new weights beside the old ones."""


class SGLangEngine(ServedEngine):
    """The base of the engine in this process and of the one behind a URL.

    Log-probs are those of the distribution that was sampled from. SGLang reports them before
    top-k, top-p and min-p; the mass that these keep is computed from the top tokens at each
    position. With top-k that is exact. Without it, `num_top_log_probs` tokens are used: if the
    filters keep more, a log-prob is known up to `log_prob_slack`, the largest so far. With top-k
    and top-p together, SGLang applies top-p to the whole distribution, not to what top-k kept. With
    `SGLANG_RETURN_ORIGINAL_LOGPROB` set, SGLang also leaves out the temperature: log-probs are then
    correct at temperature 1 only.

    Seeds work only if SGLang runs with deterministic inference, which does not support min-p.
    """

    name = "SGLang"
    _facts: wire.ServerFacts

    def __init__(
        self,
        tokenizer: Any,
        overflow: Overflow,
        *,
        num_top_log_probs: int,
        sleep: bool,
        **more: Any,
    ) -> None:
        self.log_prob_slack = 0.0
        self._num_top_log_probs = num_top_log_probs
        self._may_sleep = sleep
        self._released: set[str] = set()
        self._requests: dict[str, asyncio.Task[Any]] = {}
        super().__init__(tokenizer, overflow, **more)
        if self._skeleton is not None:
            self._vocab_size = self._skeleton.vocabulary_size
        elif self.tokenizer is not None:
            self._vocab_size = len(self.tokenizer)
        else:
            self.close()
            raise ConfigError(
                f"the size of the vocabulary is unknown: no model is in "
                f"{' or '.join(self._model_paths)} here. Pass model_path= or tokenizer=."
            )

    @abstractmethod
    async def _generate(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request; return its response."""

    @abstractmethod
    async def _abort(self, rid: str) -> None:
        """Make SGLang respond now, with the tokens sampled so far."""

    @abstractmethod
    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        """Free the GPU memory of weights and KV cache, or take it again."""

    @property
    def context_length(self) -> int:
        """The longest input that SGLang accepts, so that sampled tokens can be scored."""
        return self._facts.max_input_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        if request.sampling.min_p > 0.0 and self._facts.is_deterministic:
            raise ConfigError(
                f"min_p got {request.sampling.min_p}, but an SGLang with deterministic inference "
                "has no min-p, and would exit. Leave it out, or start SGLang without that."
            )
        return await super().sample(request)

    async def _continue(self, turn: SampledTurn, deadline: float | None) -> FinishReason | None:
        request, most = turn.request, min(turn.request.max_tokens, turn.context_left)
        while not self._thread.is_closed:
            response = await self._respond(turn, deadline)
            turn.ids += response.ids
            turn.log_probs += response.log_probs
            if _cut_at_stop_string(turn):
                return FinishReason.STOP
            if response.finish == "abort":
                if (reason := turn.finish_reason()) is not None:
                    return reason
                if deadline is not None and self._loop.time() >= deadline:
                    return FinishReason.DEADLINE
                is_cut = self.in_flight is not None and self._update_lock.is_waiting
                return None if is_cut else FinishReason.ABORTED
            if response.finish == "stop":
                if isinstance(response.matched, str) or response.matched in request.stop_ids:
                    return FinishReason.STOP
                if isinstance(response.matched, int) and len(turn.ids) < most:
                    continue  # an end token of the model that the request does not list
            is_full = len(turn.ids) >= request.max_tokens
            return FinishReason.LENGTH if is_full else FinishReason.CONTEXT
        return FinishReason.ABORTED

    async def _respond(self, turn: SampledTurn, deadline: float | None) -> wire.Response:
        """Let SGLang continue a turn until it stops or its deadline passes."""
        if deadline is not None and self._loop.time() >= deadline:
            return wire.NO_RESPONSE
        rid = uuid.uuid4().hex  # of equal length: an abort applies to every id with this prefix
        body = wire.generation_body(
            turn.request,
            [*turn.request.prompt_ids, *turn.ids],
            min(turn.request.max_tokens, turn.context_left) - len(turn.ids),
            rid,
            wire.num_top_needed(turn.request, self._num_top_log_probs, self._vocab_size),
        )
        task = self._loop.create_task(self._generate(body))
        task.add_done_callback(_ignore_error)
        self._requests[rid] = task
        try:
            left = None if deadline is None else deadline - self._loop.time()
            await asyncio.wait({task}, timeout=left)
            if not task.done():
                await self._abort_and_wait(rid, task)
        except asyncio.CancelledError:  # the caller was cancelled
            if not self._thread.is_closed:
                self._thread.call(self._abort(rid)).add_done_callback(_ignore_error)
            raise
        finally:
            task.cancel()
            del self._requests[rid]
        if task.cancelled():
            if self._thread.is_closed:
                return wire.NO_RESPONSE
            raise EngineError(f"no answer within {self.abort_grace:g} s after a turn's deadline")
        response = wire.read_response(task.result(), turn.request, self._facts, self._vocab_size)
        self.log_prob_slack = max(self.log_prob_slack, response.slack)
        return response

    async def _abort_and_wait(self, rid: str, task: asyncio.Task[Any]) -> None:
        """Abort a request and wait for its response; give up after `abort_grace`."""
        try:
            async with asyncio.timeout(self.abort_grace):
                while not task.done():
                    # Repeated, since an abort that overtakes its request does nothing.
                    await self._abort(rid)
                    await asyncio.wait({task}, timeout=0.2)
        except TimeoutError:
            task.cancel()
            await asyncio.wait({task})

    async def _end_turns(self) -> None:
        aborts = (self._abort_and_wait(rid, task) for rid, task in list(self._requests.items()))
        await asyncio.gather(*aborts, return_exceptions=True)

    async def _score(self, ids: Sequence[int], start: int) -> list[float]:
        answer = await self._generate(wire.scoring_body(ids, start, uuid.uuid4().hex))
        return wire.read_scores(answer, len(ids) - start)

    def sleep(self) -> None:
        """Free weights and KV cache until `update_weights`, if the engine was made with `sleep`."""

        async def fall_asleep() -> None:
            async with self._update_lock.exclusive():
                await self._occupy("release", ["kv_cache", "weights"])
                self._released = {"kv_cache", "weights"}

        if self._may_sleep and not self._released:
            self._thread.call(fall_asleep()).result(self.update_timeout)

    async def _take_memory(self, tag: Literal["weights", "kv_cache"]) -> None:
        if tag in self._released:
            await self._occupy("resume", [tag])
            self._released.remove(tag)

    def _check_ids(self, ids: Sequence[int]) -> None:
        check_ids(ids, self._vocab_size)

    def _check_works(self) -> None:
        super()._check_works()
        if self._released:
            raise EngineError("SGLang sleeps, without weights. Call update_weights first.")


class SGLangServerEngine(SGLangEngine):
    """A running server, which closing the engine leaves running.

    python -m sglang.launch_server --model-path MODEL --port 30000

    `tokenizer`, a name or a folder, is for strings only: `generate` and stop strings. `model_path`
    is the model's folder on this machine, if it differs from the server's: token ids and new
    weights are checked against its configuration. `transfer` chooses how weights are sent:
    "broadcast" (NCCL), "disk", or "ipc" to a server that sees the learner's GPU. A server on the
    learner's own GPU, which NCCL cannot connect, gets them by "ipc" in any case. With `sleep` a
    trainer on the same GPU has the memory of weights and KV cache during its updates; the server
    needs --enable-memory-saver for that.
    """

    def __init__(
        self,
        url: str,
        *,
        tokenizer: Any = None,
        model_path: str | None = None,
        api_key: str | None = None,
        num_top_log_probs: int = 128,
        weights_dir: str | os.PathLike[str] | None = None,
        transfer: Transfer = "auto",
        sleep: bool = False,
        trust_remote_code: bool = False,
        overflow: Overflow = "truncate",
        start_timeout: float | None = START_SECONDS,
    ) -> None:
        self._client = JsonClient(url, api_key)
        self._sender: WeightSender | None = None
        super().__init__(
            tokenizer,
            overflow,
            model_path=model_path,
            num_top_log_probs=num_top_log_probs,
            weights_dir=weights_dir,
            transfer=transfer,
            sleep=sleep,
            trust_remote_code=trust_remote_code,
            start_timeout=start_timeout,
        )

    def _connect(self) -> list[str]:
        async def describe() -> Mapping[str, Any]:
            # The second has what was changed while the server ran.
            info = await self._client.request("GET", "/server_info")
            return {**info, **await self._client.request("GET", "/model_info")}

        self._facts = wire.ServerFacts.read(self._loop.run_until_complete(describe()))
        return self._facts.model_paths

    async def _generate(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self._client.request("POST", "/generate", body)
        return answer

    async def _abort(self, rid: str) -> None:
        await self._client.request("POST", "/abort_request", {"rid": rid})

    async def _load(self, folder: str) -> None:
        body = {"model_path": folder, "flush_cache": True}
        try:
            await self._client.request("POST", "/update_weights_from_disk", body)
        except EngineError as error:
            raise WeightsRefused(
                f"the server did not take the weights in {folder}: {error}. They must lie on a "
                "disk that it sees: weights_dir= says where tensors are written."
            ) from error

    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        if self._asked_transfer == "ipc":
            return "ipc", "chosen by the option transfer"
        if self._asked_transfer == "auto" and not sample.is_cuda:
            return "disk", "the learner's weights are not on a GPU"
        backend = "nccl" if sample.is_cuda else "gloo"
        try:
            sender = WeightSender(self._client.url, self._facts.num_workers, backend)
            body = wire.group_body(sender.address)
            joining = self._client.request("POST", "/init_weights_update_group", body)
            await run_both(joining, sender.connect)
        except (EngineError, RuntimeError, OSError) as error:
            return "disk", f"a {backend} group with the server failed ({error})"
        self._sender = sender
        return "broadcast", f"{backend}, to {self._facts.num_workers} workers"

    async def _send(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self._sender is not None:
            try:
                await self._broadcast(self._sender, weights)
                return
            except RuntimeError as error:  # of the server, or of NCCL at this end
                # NCCL says so when it connects, before anything is sent.
                if "Duplicate GPU" not in str(error):
                    raise
            self._sender, self._transfer = None, "ipc"
            _LOG.info("weights reach SGLang by ipc: it runs on the learner's GPU")
        body = wire.tensor_body(weights, self._facts.num_workers)
        await self._client.request("POST", "/update_weights_from_tensor", body)

    async def _broadcast(self, sender: WeightSender, weights: Mapping[str, torch.Tensor]) -> None:
        parts = buckets(weights, _BUCKET_BYTES)
        for number, part in enumerate(parts, 1):
            body = wire.broadcast_body(sender.address, part)
            body["flush_cache"] = number == len(parts)
            receiving = self._client.request("POST", "/update_weights_from_distributed", body)
            await run_both(receiving, partial(sender.send, part.values()))

    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        await self._client.request("POST", f"/{action}_memory_occupation", {"tags": tags})

    def _disconnect(self) -> None:
        self._loop.run_until_complete(self._client.close())


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

    def _connect(self) -> list[str]:
        # Its processes end with the thread that starts them, so the engine's thread does.
        self._engine = self._sglang.Engine(**self._options)
        self._engine.loop = self._loop  # it is bound to the first loop that it runs in
        self._facts = wire.ServerFacts.read(self._engine.get_server_info())
        return self._facts.model_paths

    async def _generate(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._engine.async_generate(**body)
            return answer
        except Exception as error:  # it raises what its server would respond with
            raise EngineError(f"SGLang refused a request: {error}") from error

    async def _abort(self, rid: str) -> None:
        self._engine.tokenizer_manager.abort_request(rid=rid)

    async def _load(self, folder: str) -> None:
        success, message, _ = await self._ask(
            "update_weights_from_disk",
            "UpdateWeightFromDiskReqInput",
            model_path=folder,
            flush_cache=True,
        )
        if not success:
            raise WeightsRefused(f"SGLang did not take the weights in {folder}: {message}")

    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        if sample.is_cuda or self._asked_transfer == "ipc":
            return "ipc", "its processes read the learner's GPU"
        return "disk", "the learner's weights are not on a GPU"

    async def _send(self, weights: Mapping[str, torch.Tensor]) -> None:
        success, message = await self._ask(
            "update_weights_from_tensor",
            "UpdateWeightsFromTensorReqInput",
            # The in-process call takes bytes where the server takes base64.
            serialized_named_tensors=wire.serialized(weights, self._facts.num_workers),
            flush_cache=True,
        )
        if not success:
            raise EngineError(f"SGLang did not take the weights: {message}")

    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        kind = f"{action.capitalize()}MemoryOccupationReqInput"
        await self._ask(f"{action}_memory_occupation", kind, tags=tags)

    async def _ask(self, method: str, kind: str, **fields: Any) -> Any:
        # The engine's own methods would run an event loop, and ours is running already.
        requests = importlib.import_module("sglang.srt.managers.io_struct")
        return await getattr(self._engine.tokenizer_manager, method)(
            getattr(requests, kind)(**fields)
        )

    def _disconnect(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()


def _cut_at_stop_string(turn: SampledTurn) -> bool:
    """Drop what follows a stop string that SGLang missed; return whether there is one.

    SGLang checks as many tokens as the encoded string has; the model may have used more.
    """
    if turn.decode is None:
        return False
    length = length_to_stop(turn.ids, turn.request.stop_strings, turn.decode)
    if length is None:
        return False
    del turn.ids[length:], turn.log_probs[length:]
    return True


def _ignore_error(future: asyncio.Future[Any] | Future[Any]) -> None:
    """Retrieve the exception of a future that may not be awaited, so that it is not logged."""
    if not future.cancelled():
        future.exception()
