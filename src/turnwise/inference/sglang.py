"""The engines on SGLang: `sglang.Engine` started from this process, and a server over HTTP.

Written after the source of 0.5.23, and checked against exchanges recorded from a 0.5.17 server. The
same bodies go to the server's routes as JSON and to the methods in this process as arguments.
"""

import asyncio
import base64
import importlib
import logging
import math
import os
import pickle
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, Unpack, cast, get_type_hints

import torch
import torch.multiprocessing  # teaches the pickler to send handles of tensors

from turnwise.errors import ConfigError, EngineError, import_extra
from turnwise.inference.base import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    check_options,
)
from turnwise.inference.sampling import SamplingParams
from turnwise.inference.served import JsonClient, ServedEngine, ServedOptions, WeightsRefused
from turnwise.inference.weights import (
    GroupAddress,
    Transfer,
    buckets,
    gpu_ids,
    run_both,
    tensor_specs,
)
from turnwise.inference.worker import EngineTurn, length_to_stop
from turnwise.models import model_folder

_LOG = logging.getLogger("turnwise")
_BUCKET_BYTES = 2**30
"""A server holds this much of the new weights beside the old ones."""
_reductions = cast(Any, torch.multiprocessing).reductions
_DEVICE = 6
"""The position of the GPU among what torch rebuilds a tensor from."""


class SGLangOptions(ServedOptions, total=False):
    """The options of both engines on SGLang."""

    num_top_log_probs: int
    sleep: bool


class SGLangEngine(ServedEngine):
    """The base of the engine in this process and of the one behind a URL.

    Log-probs are those of the distribution that was sampled from. SGLang reports them before
    top-k, top-p and min-p; the mass that these keep is computed from the top tokens at each
    position. With top-k that is exact. Without it, `num_top_log_probs` tokens are used: if the
    filters keep more, a log-prob is known up to `log_prob_slack`, the largest so far. With top-k
    and top-p together, SGLang applies top-p to the whole distribution, not to what top-k kept.

    Seeds work only if SGLang runs with deterministic inference, which does not support min-p.
    With `sleep` a trainer on the same GPU has the memory of weights and KV cache during its
    updates; a server needs --enable-memory-saver for that.
    """

    name = "SGLang"
    _is_in_process = False

    def __init__(
        self, *, num_top_log_probs: int = 128, sleep: bool = False, **options: Unpack[ServedOptions]
    ) -> None:
        self.log_prob_slack = 0.0
        self._num_top_log_probs = num_top_log_probs
        self._may_sleep = sleep
        self._released: set[str] = set()
        self._requests: dict[str, asyncio.Task[Any]] = {}
        super().__init__(**options)
        if self._skeleton is None:  # a token outside the vocabulary would end SGLang
            if self.tokenizer is None:
                self.close()
                raise ConfigError(
                    f"the size of the vocabulary is unknown: {self._model_path} is not here. "
                    "Pass model_path= or tokenizer=."
                )
            self._vocab_size = len(self.tokenizer)

    @abstractmethod
    async def _call(self, method: str, **fields: Any) -> Any:
        """Call a method of SGLang's; raise `EngineError` if it refuses."""

    def _read_facts(self, info: Mapping[str, Any]) -> str:
        """Read what SGLang reports about itself; return where its model was loaded from."""
        # The longest input, so that sampled tokens can be scored; the limit itself is refused.
        self.context_length = int(info["max_req_input_len"]) - 1
        self._is_deterministic = bool(info["enable_deterministic_inference"])
        self._sampling_backend = str(info["sampling_backend"])
        self._num_workers = int(info.get("tp_size", 1))
        return str(info["model_path"])

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        if request.sampling.min_p > 0.0 and self._is_deterministic:
            raise ConfigError(
                f"min_p got {request.sampling.min_p}, but an SGLang with deterministic inference "
                "has no min-p, and would exit. Leave it out, or start SGLang without that."
            )
        return await super().sample(request)

    async def _continue(self, turn: EngineTurn) -> FinishReason | None:
        while not self._is_closed:
            finish = await self._respond(turn)
            if self.tokenizer is not None:
                # SGLang checks as many tokens as the encoded stop string has; the model may have
                # used more.
                stops = turn.request.stop_strings
                length = length_to_stop(turn.ids, stops, self.tokenizer.decode)
                if length is not None:
                    del turn.ids[length:], turn.log_probs[length:]
                    return FinishReason.STOP
            kind, matched = finish["type"], finish.get("matched")
            if kind == "stop" and isinstance(matched, str):
                return FinishReason.STOP
            if (reason := turn.finish_reason()) is not None:
                return reason
            if kind == "abort":
                is_cut = self.in_flight is not None and self._update_lock.is_updating
                return None if is_cut else FinishReason.ABORTED
            if kind != "stop" or not isinstance(matched, int):
                return FinishReason.CONTEXT
            # An end token of the model that the request does not list: the turn goes on.
        return FinishReason.ABORTED

    async def _respond(self, turn: EngineTurn) -> Mapping[str, Any]:
        """Let SGLang continue a turn until it stops or its deadline passes; return why it did."""
        rid = uuid.uuid4().hex  # of equal length: an abort applies to every id with this prefix
        task = self._loop.create_task(self._call("generate", **self._body(turn, rid)))
        self._requests[rid] = task
        try:
            left = None if turn.deadline is None else turn.deadline - self._loop.time()
            await asyncio.wait({task}, timeout=left)
            if not task.done():
                await self._abort_and_wait(rid, task)
        except asyncio.CancelledError:  # the caller was cancelled
            if not self._is_closed:
                self._in_loop(self._call("abort_request", rid=rid))
            raise
        finally:
            task.cancel()
            del self._requests[rid]
        if task.cancelled():
            if self._is_closed:
                return {"type": "abort"}
            raise EngineError(f"no answer within {self.abort_grace:g} s after a turn's deadline")
        return self._append_answer(turn, task.result())

    def _body(self, turn: EngineTurn, rid: str) -> dict[str, Any]:
        """Return a request for tokens with their log-probs, and the top ones at each position."""
        request, params = turn.request, turn.request.sampling
        # Never more than the vocabulary: the server would exit.
        num_top = min(params.top_k or self._num_top_log_probs, self._vocab_size)
        sampling = {
            "max_new_tokens": min(request.max_tokens, turn.context_left) - len(turn.ids),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "min_p": params.min_p,
            "sampling_seed": request.seed % 2**63,
            # If set, the model's own end tokens are ignored, but so are ours.
            "ignore_eos": not request.stop_ids,
            "stop_token_ids": sorted(request.stop_ids) or None,
            "stop": list(request.stop_strings) or None,
        }
        return {
            "rid": rid,
            "input_ids": [*request.prompt_ids, *turn.ids],
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": num_top if params.is_filtered else 0,
        }

    def _append_answer(self, turn: EngineTurn, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Append the tokens of an answer to a turn; return why SGLang ended it.

        Ids and log-probs come from the same entries, so that they stay aligned.
        """
        params = turn.request.sampling
        meta = answer["meta_info"]
        finish: Mapping[str, Any] = meta["finish_reason"] or {"type": "abort"}
        entries = meta.get("output_token_logprobs") or []
        ids = [int(entry[1]) for entry in entries]
        log_probs = [float(entry[0]) for entry in entries]
        matched = finish.get("matched")
        if isinstance(matched, str) and matched not in turn.request.stop_strings:
            raise EngineError(f"SGLang broke off a turn after {len(ids)} tokens: {matched}")
        # Only flashinfer's min-p kernel renormalises after top-k, before it looks at top-p.
        is_joint = self._sampling_backend == "pytorch" or params.min_p == 0.0
        for i, entries_at in enumerate(meta.get("output_top_logprobs") or [] if ids else []):
            top = [entry[0] for entry in entries_at]
            low, high = kept_log_mass(top, params, self._vocab_size, is_joint=is_joint)
            log_probs[i] = min(log_probs[i] - (low + high) / 2, 0.0)
            self.log_prob_slack = max(self.log_prob_slack, (high - low) / 2)
        turn.ids += ids
        turn.log_probs += log_probs
        return finish

    async def _abort_and_wait(self, rid: str, task: asyncio.Task[Any]) -> None:
        """Abort a request and wait for its response; give up after `abort_grace`."""
        try:
            async with asyncio.timeout(self.abort_grace):
                while not task.done():
                    # Repeated, since an abort that overtakes its request does nothing.
                    await self._call("abort_request", rid=rid)
                    await asyncio.wait({task}, timeout=0.2)
        except TimeoutError:
            task.cancel()
            await asyncio.wait({task})

    async def _end_turns(self) -> None:
        aborts = (self._abort_and_wait(rid, task) for rid, task in list(self._requests.items()))
        await asyncio.gather(*aborts, return_exceptions=True)

    async def _score(self, ids: Sequence[int], start: int) -> list[float]:
        answer = await self._call(
            "generate",
            rid=uuid.uuid4().hex,
            input_ids=list(ids),
            # Its one sampled token costs no step.
            sampling_params={"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=start - 1,  # the first position of the range has no log-prob
        )
        entries = answer["meta_info"]["input_token_logprobs"]
        return [float(entry[0]) for entry in entries[1:]]

    async def _load(self, folder: str) -> None:
        try:
            await self._call("update_weights_from_disk", model_path=folder, flush_cache=True)
        except EngineError as error:
            raise WeightsRefused(
                f"SGLang did not take the weights in {folder}: {error}. They must lie on a "
                "disk that it sees: weights_dir= says where tensors are written."
            ) from error

    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        if self._asked_transfer == "ipc":
            return "ipc", "chosen by the option transfer"
        if self._is_in_process and sample.is_cuda:
            return "ipc", "its processes read the learner's GPU"
        if self._is_in_process or (self._asked_transfer == "auto" and not sample.is_cuda):
            return "disk", "the learner's weights are not on a GPU"
        backend = "nccl" if sample.is_cuda else "gloo"
        return await self._make_group(self._num_workers, backend)

    async def _join(self, address: GroupAddress) -> None:
        await self._call(
            "init_weights_update_group",
            master_address=address.host,
            master_port=address.port,
            rank_offset=1,
            world_size=address.world_size,
            group_name=address.name,
            backend=address.backend,
        )

    async def _send(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self._sender is not None:
            parts = buckets(weights, _BUCKET_BYTES)
            try:
                for number, part in enumerate(parts, 1):
                    names, dtypes, shapes = zip(*tensor_specs(part), strict=True)
                    receiving = self._call(
                        "update_weights_from_distributed",
                        names=list(names),
                        dtypes=list(dtypes),
                        shapes=list(shapes),
                        group_name=self._sender.address.name,
                        flush_cache=number == len(parts),
                    )
                    await run_both(receiving, partial(self._sender.send, part.values()))
                return
            except RuntimeError as error:  # of the server, or of NCCL at this end
                # NCCL says so when it connects, before anything is sent.
                if "Duplicate GPU" not in str(error):
                    raise
            self._sender, self._transfer = None, "ipc"
            _LOG.info("weights reach SGLang by ipc: it runs on the learner's GPU")
        # Each worker gets its own handles, since torch counts those that are in use.
        named = [(name, tensor.detach()) for name, tensor in weights.items()]
        payloads: list[Any] = [
            bytes(_HandlePickler.dumps(named, pickle.HIGHEST_PROTOCOL))
            for _ in range(self._num_workers)
        ]
        if not self._is_in_process:
            payloads = [base64.b64encode(payload).decode() for payload in payloads]
        await self._call(
            "update_weights_from_tensor", serialized_named_tensors=payloads, flush_cache=True
        )

    def sleep(self) -> None:
        """Free weights and KV cache until `update_weights`, if the engine was made with `sleep`."""

        async def fall_asleep() -> None:
            async with self._update_lock.exclusive():
                await self._call("release_memory_occupation", tags=["kv_cache", "weights"])
                self._released = {"kv_cache", "weights"}

        if self._may_sleep and not self._released:
            self._in_loop(fall_asleep()).result(self.update_timeout)

    async def _take_memory(self, tag: Literal["weights", "kv_cache"]) -> None:
        if tag in self._released:
            await self._call("resume_memory_occupation", tags=[tag])
            self._released.remove(tag)

    def _check_works(self) -> None:
        super()._check_works()
        if self._released:
            raise EngineError("SGLang sleeps, without weights. Call update_weights first.")


class SGLangServerEngine(SGLangEngine):
    """A running server, which closing the engine leaves running.

    python -m sglang.launch_server --model-path MODEL --port 30000

    `tokenizer`, a name or a folder, is for strings only: `generate` and stop strings. `transfer`
    chooses how weights are sent: "broadcast" (NCCL), "disk", or "ipc" to a server that sees the
    learner's GPU. A server on the learner's own GPU, which NCCL cannot connect, gets them by "ipc"
    in any case.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, **options: Unpack[SGLangOptions]
    ) -> None:
        self._client = JsonClient(url, api_key)
        super().__init__(**options)

    def _connect(self) -> str:
        info = self._loop.run_until_complete(self._client.request("GET", "/server_info"))
        return self._read_facts(info)

    async def _call(self, method: str, **fields: Any) -> Any:
        return await self._client.request("POST", f"/{method}", fields)


_REQUESTS = {
    "update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "update_weights_from_tensor": "UpdateWeightsFromTensorReqInput",
    "release_memory_occupation": "ReleaseMemoryOccupationReqInput",
    "resume_memory_occupation": "ResumeMemoryOccupationReqInput",
}
"""The class of SGLang's that has the arguments of each method."""


class SGLangInferenceEngine(SGLangEngine):
    """`sglang.Engine` on the GPUs of this machine; closing this engine shuts it down.

    It takes the options of the engine on a server, and passes others on, such as
    `mem_fraction_static=0.5`, or `enable_deterministic_inference=True` for seeds that work. On
    shutdown `sglang.Engine` ends every child process of this process, also those of others.
    """

    server = SGLangServerEngine
    _is_in_process = True

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        **engine_options: Any,
    ) -> None:
        if os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true"):
            raise ConfigError(
                "SGLANG_RETURN_ORIGINAL_LOGPROB is set, with which log-probs leave out the "
                "temperature. Unset it: training needs those of what was sampled from."
            )
        ours = get_type_hints(SGLangOptions).keys() & engine_options.keys()
        options: Any = {name: engine_options.pop(name) for name in ours}
        self._sglang = import_extra("sglang", "sglang")
        self._engine: Any = None
        self._options = {
            "model_path": model_folder(model_path),
            "dtype": dtype,
            "tp_size": tensor_parallel_size,
            "context_length": max_model_len,
            "trust_remote_code": options.get("trust_remote_code", False),
            **({"enable_memory_saver": True} if options.get("sleep") else {}),
            **engine_options,
        }
        arguments = import_extra("sglang.srt.server_args", "sglang").ServerArgs
        check_options("SGLang", self._options, [field.name for field in fields(arguments)])
        if options.get("tokenizer") is None and not engine_options.get("skip_tokenizer_init"):
            options["tokenizer"] = engine_options.get("tokenizer_path") or model_path
        super().__init__(**options)

    def _connect(self) -> str:
        # Its processes end with the thread that starts them, so the engine's thread does.
        self._engine = self._sglang.Engine(**self._options)
        self._engine.loop = self._loop  # it is bound to the first loop that it runs in
        return self._read_facts(self._engine.get_server_info())

    async def _call(self, method: str, **fields: Any) -> Any:
        manager = self._engine.tokenizer_manager
        try:
            if method == "generate":
                return await self._engine.async_generate(**fields)
            if method == "abort_request":
                return manager.abort_request(**fields)
            # The engine's own methods would run an event loop, and ours is running already.
            requests = importlib.import_module("sglang.srt.managers.io_struct")
            request = getattr(requests, _REQUESTS[method])(**fields)
            answer = await getattr(manager, method)(request)
        except Exception as error:  # it raises what its server would respond with
            raise EngineError(f"SGLang refused a request: {error}") from error
        if method.startswith("update_weights"):  # others answer nothing
            success, message, *_ = answer
            if not success:
                raise EngineError(message)
        return None

    def _disconnect(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()


def kept_log_mass(
    top: Sequence[float], params: SamplingParams, vocab_size: int, *, is_joint: bool
) -> tuple[float, float]:
    """Return bounds for the log of the mass that the filters keep, equal if it is known exactly.

    `top` has the top log-probs in falling order. SGLang reports log-probs after the temperature and
    before top-k, top-p and min-p; it samples from what these keep, renormalised. `is_joint`: top-p
    applies to the whole distribution even with top-k, otherwise to what top-k kept. If all of `top`
    is kept and there are more tokens, their mass is bounded: top-p overshoots by less than the last
    token that it keeps, which is no more likely than the last one that is known.
    """
    limit = min(params.top_k or vocab_size, vocab_size)
    probs = [math.exp(log_prob) for log_prob in top[:limit]]
    wanted = params.top_p * (sum(probs) if params.top_k and not is_joint else 1.0)
    mass = 0.0
    for prob in probs:
        if mass > wanted or prob < params.min_p * probs[0]:
            return math.log(mass), math.log(mass)
        mass += prob
    if len(probs) == limit or mass > wanted:
        return math.log(mass), math.log(mass)
    high = min(params.top_p + probs[-1], 1.0)
    low = max(mass, params.top_p) if params.min_p == 0.0 else mass
    return math.log(low), math.log(max(low, high))


class _HandlePickler(ForkingPickler):
    """Pickles tensors as SGLang reads them, with handles instead of values.

    It names a GPU by its hardware id, as SGLang does: its workers may number GPUs otherwise.
    """

    def reducer_override(self, value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_cuda):
            return NotImplemented
        rebuild, arguments = _reductions.reduce_tensor(value)
        device = arguments[_DEVICE]
        name = gpu_ids()[device] if isinstance(device, int) else device
        return rebuild, (*arguments[:_DEVICE], name, *arguments[_DEVICE + 1 :])
