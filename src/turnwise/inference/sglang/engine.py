"""The base of the SGLang engines: turns, their deadlines, and weight updates.

All traffic runs in one event loop in its own thread. So requests may come from any event loop, and
`update_weights` may block its caller while running turns finish.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from turnwise.errors import ConfigError, EngineError
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
    check_ids,
    check_scored,
)
from turnwise.inference.loop_thread import START_SECONDS, LoopThread, own_processes
from turnwise.inference.new_weights import NewWeights, Skeleton
from turnwise.inference.sglang import wire
from turnwise.inference.sglang.turn import StreamedTurn
from turnwise.inference.update_lock import UpdateLock
from turnwise.inference.weight_group import Transfer

_LOG = logging.getLogger("turnwise")
WeightLoader: TypeAlias = Callable[[str], Awaitable[None]]
"""Loads weights under a version that SGLang reports from then on."""


class SGLangEngine(BaseInferenceEngine):
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

    abort_grace = 10.0
    """Seconds in which SGLang must return the tokens of an aborted turn."""

    def __init__(
        self,
        tokenizer: Any,
        overflow: Overflow,
        *,
        model_path: str | None,
        num_top_log_probs: int,
        weights_dir: str | os.PathLike[str] | None,
        transfer: Transfer,
        sleep: bool,
        trust_remote_code: bool,
        start_timeout: float | None = START_SECONDS,
    ) -> None:
        super().__init__(tokenizer, overflow)
        self._asked_transfer = transfer
        self._may_sleep = sleep
        self._released: set[str] = set()
        self._is_broken = False
        self._transfer: Transfer | None = None
        self.log_prob_slack = 0.0
        self._num_top_log_probs = num_top_log_probs
        self._weights_dir = weights_dir
        self._update_lock = UpdateLock()
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._thread = LoopThread("sglang", self._connect, self._disconnect)
        self._loop = self._thread.loop
        with own_processes():
            info = self._thread.start(start_timeout, "SGLang")
        try:
            self._facts = wire.ServerFacts.read(info)
            self._served = self._facts.weight_version
            self._model_paths = (model_path,) if model_path else self._facts.model_paths
            self._skeleton = Skeleton.find(self._model_paths, trust_remote_code)
            self._vocab_size = self._find_vocab_size()
        except BaseException:
            self.close()
            raise

    # Implemented by the two engines; called in the engine's thread.

    @abstractmethod
    def _connect(self) -> Mapping[str, Any]:
        """Connect; return what SGLang reports about itself. The loop is not running yet."""

    @abstractmethod
    def _responses(self, body: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Send a request; yield its response, or repeatedly its response so far."""

    @abstractmethod
    async def _abort(self, rid: str) -> None:
        """Make SGLang respond now, with the tokens sampled so far."""

    @abstractmethod
    async def _load(self, folder: str, weight_version: str) -> None:
        """Load the weights of a folder and flush the cache; raise `EngineError` if refused."""

    @abstractmethod
    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        """Return how weights on the device of `sample` are sent, and why."""

    @abstractmethod
    async def _send(self, weights: Mapping[str, torch.Tensor], weight_version: str) -> None:
        """Load tensors, named as in files, without the disk, and flush the cache."""

    @abstractmethod
    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        """Free the GPU memory of weights and KV cache, or take it again."""

    @abstractmethod
    async def _flush_cache(self) -> str:
        """Flush the cache; return the version that SGLang reports for its weights."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Disconnect. The loop is not running any more."""

    @property
    def context_length(self) -> int:
        """The longest input that SGLang accepts, so that sampled tokens can be scored."""
        return self._facts.max_input_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        check_ids(request.prompt_ids, self._vocab_size)
        if request.sampling.min_p > 0.0 and self._facts.is_deterministic:
            raise ConfigError(
                f"min_p got {request.sampling.min_p}, but an SGLang with deterministic inference "
                "has no min-p, and would exit. Leave it out, or start SGLang without that."
            )
        context_left = self.context_left(request)
        return await asyncio.wrap_future(self._thread.call(self._sample(request, context_left)))

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        check_scored(ids, start, self.context_length)
        check_ids(ids, self._vocab_size)
        if start == len(ids):
            return []
        return await asyncio.wrap_future(self._thread.call(self._score(ids, start)))

    def sleep(self) -> None:
        """Free weights and KV cache until `update_weights`, if the engine was made with `sleep`."""
        if self._may_sleep and not self._released:
            self._thread.call(self._fall_asleep()).result(self.update_timeout)

    async def _fall_asleep(self) -> None:
        async with self._update_lock.exclusive():
            await self._occupy("release", ["kv_cache", "weights"])
            self._released = {"kv_cache", "weights"}

    def update_weights(self, weights: NewWeights) -> int:
        """Load new weights: tensors, or the folder of a checkpoint that SGLang can read.

        Tensors on a GPU go by CUDA IPC to SGLang in this process, and by NCCL to a server; the log
        says how. Otherwise they are written into a folder in `weights_dir`, which must be on a
        disk that SGLang can read. None means that another client has updated SGLang's weights.
        Running turns finish with the old weights, and none starts before the new ones are loaded.
        With `in_flight` they are cut, and go on with the new weights after their tokens so far.
        If SGLang refuses a folder, it keeps the old weights and their version. If it fails to take
        tensors, some may be new, so it must be given all of them again.
        """
        if not isinstance(weights, Mapping):
            return self._updated(self._thread.call(self._update(self._folder_loader(weights))))
        if self._skeleton is None:
            raise ConfigError(
                f"there is no configuration of the model in {' or '.join(self._model_paths)} here, "
                "and tensors are checked against it. Pass model_path= to the engine, or give "
                "update_weights a folder."
            )
        self._skeleton.check(weights)
        sample = next(iter(weights.values()))
        if self._thread.call(self._find_transfer(sample)).result() == "disk":
            with self._skeleton.written(weights, self._weights_dir) as folder:
                return self._updated(self._thread.call(self._update(self._folder_loader(folder))))
        if sample.is_cuda:  # the kernels that compute them must finish first
            torch.cuda.synchronize()
        named = self._skeleton.as_files_have_them(weights)
        return self._updated(self._thread.call(self._update(partial(self._send_whole, named))))

    async def _send_whole(self, weights: Mapping[str, torch.Tensor], weight_version: str) -> None:
        self._is_broken = True
        await self._send(weights, weight_version)

    async def _find_transfer(self, sample: torch.Tensor) -> Transfer:
        """Return how weights are sent; decided and logged once."""
        if self._transfer is None:
            if self._asked_transfer == "disk":
                self._transfer, why = "disk", "chosen by the option transfer"
            else:
                self._transfer, why = await self._choose_transfer(sample)
            _LOG.info("weights reach SGLang by %s: %s", self._transfer, why)
        return self._transfer

    def _folder_loader(self, folder: str | os.PathLike[str] | None) -> WeightLoader | None:
        if folder is None:
            return None
        path = os.path.abspath(folder) if os.path.exists(folder) else os.fspath(folder)
        return lambda version: self._load(path, version)

    def close(self) -> None:
        self._thread.close(self._end_turns, self.abort_grace)

    async def _sample(self, request: GenerationRequest, context_left: int) -> GenerationResult:
        deadline = None if request.timeout is None else self._loop.time() + request.timeout
        decode = None if self.tokenizer is None else self.tokenizer.decode
        turn = StreamedTurn(request, context_left, deadline, decode=decode)
        version = self.weight_version
        if context_left == 0:
            return turn.result(FinishReason.CONTEXT, version)
        reason = None
        while reason is None:  # again after each update that has cut the turn
            try:
                async with asyncio.timeout_at(deadline):
                    await self._update_lock.enter()
            except TimeoutError:
                return turn.result(FinishReason.DEADLINE, version)
            try:
                self._check_works()
                turn.weights_changed(version, self.weight_version)
                version = self.weight_version
                reason = await self._continue(turn)
            finally:
                self._update_lock.leave()
        if turn.cut_at_stop_string():
            reason = FinishReason.STOP
        return turn.result(reason, version)

    async def _continue(self, turn: StreamedTurn) -> FinishReason | None:
        """Let SGLang sample the rest of a turn; return None if an update has cut it."""
        while True:
            response = await self._request(turn)
            is_cut = (
                self.in_flight is not None
                and self._update_lock.is_waiting
                and not self._thread.is_closed
            )
            if turn.add(response, is_cut=is_cut):
                return turn.reason(response, self._loop.time())
            if is_cut:
                return None

    async def _request(self, turn: StreamedTurn) -> wire.Response:
        """Let SGLang continue a turn until it stops or its deadline passes."""
        if self._thread.is_closed or turn.time_left(self._loop.time()) == 0.0:
            return wire.NO_RESPONSE
        rid = uuid.uuid4().hex  # of equal length: an abort applies to every id with this prefix
        body = wire.generation_body(
            turn.request,
            [*turn.request.prompt_ids, *turn.ids],
            turn.num_left,
            rid,
            wire.num_top_needed(turn.request, self._num_top_log_probs, self._vocab_size),
        )
        latest: list[Mapping[str, Any]] = []
        task = self._loop.create_task(self._listen(body, latest))
        task.add_done_callback(_ignore_error)
        self._requests[rid] = task
        try:
            await asyncio.wait({task}, timeout=turn.time_left(self._loop.time()))
            if not task.done():
                await self._abort_and_wait(rid, task)
        except asyncio.CancelledError:  # the caller was cancelled
            self._drop(rid)
            raise
        finally:
            task.cancel()
            del self._requests[rid]
        if not task.cancelled():
            task.result()  # raises its error
        elif not latest and not self._thread.is_closed:
            raise EngineError(f"no answer within {self.abort_grace:g} s after a turn's deadline")
        if not latest:
            return wire.NO_RESPONSE
        response = wire.read_response(latest[0], turn.request, self._facts, self._vocab_size)
        self.log_prob_slack = max(self.log_prob_slack, response.slack)
        if response.weight_version != self._served:
            raise EngineError(
                f"a turn was sampled by the weights {response.weight_version!r}, expected "
                f"{self._served!r}: somebody else has updated this SGLang. Call "
                "update_weights(None) when that happens."
            )
        return response

    async def _listen(self, body: Mapping[str, Any], latest: list[Mapping[str, Any]]) -> None:
        async for response in self._responses(body):
            latest[:] = [response]

    async def _abort_and_wait(self, rid: str, task: asyncio.Task[None]) -> None:
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

    async def _score(self, ids: Sequence[int], start: int) -> list[float]:
        await self._update_lock.enter()
        try:
            self._check_works()
            latest: list[Mapping[str, Any]] = []
            await self._listen(wire.scoring_body(ids, start, uuid.uuid4().hex), latest)
            return wire.read_scores(latest[0], len(ids) - start)
        finally:
            self._update_lock.leave()

    async def _update(self, load: WeightLoader | None) -> int:
        async with self._update_lock.exclusive(self._end_turns if self.in_flight else None):
            version = self._next_version
            if load is None:
                self._served = await self._flush_cache()
            else:
                await self._take_memory("weights")
                await load(str(version))
                await self._take_memory("kv_cache")
                self._served = str(version)
            self._is_broken = False
            self.weight_version = version
            return version

    async def _take_memory(self, tag: str) -> None:
        if tag in self._released:
            await self._occupy("resume", [tag])
            self._released.remove(tag)

    def _check_works(self) -> None:
        if self._is_broken:
            raise EngineError(
                "new weights did not reach SGLang as a whole. Call update_weights again."
            )
        if self._released:
            raise EngineError("SGLang sleeps, without weights. Call update_weights first.")

    def _drop(self, rid: str) -> None:
        """Abort a request without waiting for it."""
        if not self._thread.is_closed:
            self._thread.call(self._abort(rid)).add_done_callback(_ignore_error)

    async def _end_turns(self) -> None:
        """End every request with the tokens sampled so far."""
        aborts = (self._abort_and_wait(rid, task) for rid, task in list(self._requests.items()))
        await asyncio.gather(*aborts, return_exceptions=True)

    def _find_vocab_size(self) -> int:
        if self._skeleton is not None:
            return self._skeleton.vocabulary_size
        if self.tokenizer is not None:
            return len(self.tokenizer)
        raise ConfigError(
            f"the size of the vocabulary is unknown: no model is in "
            f"{' or '.join(self._model_paths)} here. Pass model_path= or tokenizer=."
        )


def _ignore_error(future: asyncio.Future[Any] | Future[Any]) -> None:
    """Retrieve the exception of a future that may not be awaited, so that it is not logged."""
    if not future.cancelled():
        future.exception()
