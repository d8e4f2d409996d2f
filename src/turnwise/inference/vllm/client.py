"""The engine for a vLLM server, over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import ConfigError, DeadlineExceeded, EngineError
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
    check_ids,
    check_scored,
)
from turnwise.inference.loop_thread import START_SECONDS, LoopThread
from turnwise.inference.new_weights import NewWeights, Skeleton, existing_folder
from turnwise.inference.sampling import SamplingParams
from turnwise.inference.update_lock import UpdateLock
from turnwise.inference.vllm.server import UpdatesDisabledError, VLLMServer
from turnwise.inference.vllm.transfer import ServerTransfer
from turnwise.inference.vllm.translate import sampling_arguments, scoring_arguments
from turnwise.inference.weight_group import Transfer
from turnwise.inference.worker import SampledTurn
from turnwise.models import load_tokenizer


class VLLMServerEngine(BaseInferenceEngine):
    """A vLLM server at `url`, started for instance with

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs \\
            --worker-extension-cls turnwise.inference.vllm.receiver.WeightReceiver

    The mode makes log-probs those of the distribution that was sampled from; the variable enables
    weight updates. With the extension, which needs turnwise on the server, tensors go by CUDA IPC
    if the server sees the learner's GPU, and otherwise by NCCL (gloo without GPUs). Without it they
    are written into a folder in `weights_dir`, which must be on a disk that the server can read.
    `transfer` chooses one of "ipc", "broadcast" and "disk" itself. `model_path` is the model's
    folder on this machine, if it differs from the server's: weights and token ids are checked
    against its configuration. Only one engine should update a server's weights: it does not see
    the updates of others.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Any = None,
        model_path: str | None = None,
        api_key: str | None = None,
        weights_dir: str | os.PathLike[str] | None = None,
        transfer: Transfer = "auto",
        update_timeout: float = 600.0,
        trust_remote_code: bool = False,
        overflow: Overflow = "truncate",
        start_timeout: float | None = START_SECONDS,
    ) -> None:
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        super().__init__(tokenizer, overflow)
        self._weights_dir, self._update_timeout = weights_dir, update_timeout
        self._server = VLLMServer(url, api_key)
        self._transfer = ServerTransfer(self._server, transfer)
        self._update_lock = UpdateLock()
        self._cuts: set[asyncio.Timeout] = set()
        """End the requests that are being sampled, when they expire."""
        self._mode_lock = asyncio.Lock()
        self._has_processed_log_probs: bool | None = None
        self._failure: str | None = None
        # Its own loop: the caller's may be blocked by an update that waits for turns.
        self._thread = LoopThread("vllm", lambda: self._connect(model), self._disconnect)
        card = self._thread.start(start_timeout, f"a connection to {url}")
        self.model: str = card["id"]
        """The server's name of the model."""
        self._context_length = int(card["max_model_len"])
        root = model_path or card.get("root") or ""
        is_here = model_path is not None or (Path(root) / "config.json").is_file()
        try:
            self._skeleton = Skeleton(root, trust_remote_code) if is_here else None
        except BaseException:
            self.close()
            raise

    @property
    def context_length(self) -> int:
        return self._context_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        self._check_ids(request.prompt_ids)
        context_left = self.context_left(request)
        return await asyncio.wrap_future(self._thread.call(self._sample(request, context_left)))

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        check_scored(ids, start, self.context_length)
        self._check_ids(ids)
        if start == len(ids):
            return []
        scores = await asyncio.wrap_future(self._thread.call(self._score(list(ids))))
        return scores[start - 1 :]

    def update_weights(self, weights: NewWeights) -> int:
        """Load new weights in place, from tensors by their Hugging Face names or from a folder.

        Running turns finish first, with the old weights. With `in_flight` they are cut, and go on
        with the new weights after the tokens that have arrived.
        """
        if weights is None:
            raise ConfigError(
                "a server has weights of its own, so it must be given the new ones: "
                "update_weights(model.state_dict()), or the path of a folder that it sees"
            )
        skeleton = self._skeleton
        if not isinstance(weights, Mapping):
            folder = existing_folder(weights)
            if skeleton is not None:
                skeleton.check_folder(folder)
            return self._load_folder(folder)
        if skeleton is None:
            raise ConfigError(
                "the folder that the server has its model in is not seen here, and tensors are "
                "checked against its configuration. Pass model_path= to the engine, or give "
                "update_weights a folder."
            )
        skeleton.check(weights)
        sample = next(iter(weights.values()))
        if self._thread.call(self._transfer.choose(sample)).result() == "disk":
            with skeleton.written(weights, self._weights_dir) as folder:
                return self._load_folder(folder)
        if sample.is_cuda:  # the kernels that compute them must finish first
            torch.cuda.synchronize()
        named = skeleton.as_files_have_them(weights)
        return self._updated(self._thread.call(self._update(lambda: self._transfer.send(named))))

    def _load_folder(self, folder: Path) -> int:
        async def load() -> None:
            try:
                await self._server.load_weights(folder)
            except EngineError as error:
                raise EngineError(
                    f"{self._server.url} did not take the weights in {folder}: {error}. They must "
                    "lie on a disk that it sees: weights_dir= says where tensors are written."
                ) from error

        return self._updated(self._thread.call(self._update(load)))

    def close(self) -> None:
        self._thread.close(_nothing, 0.0)

    def _connect(self, model: str | None) -> dict[str, Any]:
        return self._thread.loop.run_until_complete(self._server.find_model(model))

    def _disconnect(self) -> None:
        self._thread.loop.run_until_complete(self._server.close())

    async def _sample(self, request: GenerationRequest, context_left: int) -> GenerationResult:
        decode = None if self.tokenizer is None else self.tokenizer.decode
        turn = SampledTurn(request, context_left, decode=decode)
        version = self.weight_version
        reason = None if context_left else FinishReason.CONTEXT
        try:
            async with asyncio.timeout(request.timeout):
                while reason is None:  # again after each update that has cut the turn
                    async with self._turn():
                        turn.weights_changed(version, self.weight_version)
                        version = self.weight_version
                        reason = await self._continue(turn)
        except TimeoutError:
            reason = FinishReason.DEADLINE
        except asyncio.CancelledError:
            if not self._thread.is_closed:
                raise
            reason = FinishReason.ABORTED
        return turn.result(reason, version)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold weight updates back while a turn runs."""
        await self._update_lock.enter()
        try:
            self._check_works()
            yield
        finally:
            self._update_lock.leave()

    async def _continue(self, turn: SampledTurn) -> FinishReason | None:
        """Let the server sample the rest of a turn; return None if an update has cut it."""
        if turn.ids and (reason := turn.finish_reason()) is not None:
            return reason  # all had arrived when it was cut
        try:
            async with asyncio.timeout(None) as cut:
                self._cuts.add(cut)
                await self._check_mode(turn.request)
                return await self._stream(turn)
        except TimeoutError:
            if not cut.expired():
                raise
            return None
        finally:
            self._cuts.discard(cut)

    async def _cut_turns(self) -> None:
        """End every request, which aborts it on the server. Its tokens so far are kept."""
        for cut in self._cuts:
            cut.reschedule(self._thread.loop.time())

    async def _stream(self, turn: SampledTurn) -> FinishReason:
        """Sample, appending tokens as they arrive: a turn that ends early keeps them."""
        request, start = turn.request, len(turn.ids)
        if start:  # it goes on with random numbers of its own, not with those of its first tokens
            request = dataclasses.replace(
                request,
                prompt_ids=[*request.prompt_ids, *turn.ids],
                max_tokens=request.max_tokens - start,
                seed=random.Random(f"{request.seed} {start}").getrandbits(62),
            )
        body = {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            **sampling_arguments(request, turn.context_left - start),
            "stop": list(request.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            # Only a turn that may end early needs partial results.
            "stream_interval": 1 if request.timeout is not None or self.in_flight else 64,
        }
        ended = None
        async with aclosing(self._server.stream(body)) as choices:
            async for choice in choices:
                log_probs = choice["logprobs"]["token_logprobs"] if choice["token_ids"] else []
                for token, log_prob in zip(choice["token_ids"] or [], log_probs, strict=True):
                    turn.ids.append(token)
                    turn.log_probs.append(log_prob)
                    if start and turn.finish_reason() is FinishReason.STOP:
                        return FinishReason.STOP  # a stop string that began before the cut
                ended = choice["finish_reason"] or ended
        return _reason(ended, len(turn.ids) >= turn.request.max_tokens)

    async def _score(self, ids: list[int]) -> list[float]:
        prompt, arguments = scoring_arguments(ids)
        body = {"model": self.model, "prompt": prompt, **arguments}
        body["return_tokens_as_token_ids"] = True
        async with self._turn():
            choice = await self._server.complete(body)
        known = zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
        scores = [at[str(token)]["logprob"] for at, token in known]
        return [*scores, choice["logprobs"]["top_logprobs"][0][f"token_id:{ids[-1]}"]]

    async def _check_mode(self, request: GenerationRequest) -> None:
        """Check that the server's log-probs include temperature and filters; that is its setting.

        With top_k=1 the log-prob of the sampled token is 0 if they do.
        """
        sampling = request.sampling
        if sampling.is_greedy or sampling == SamplingParams():
            return  # equal in both modes
        async with self._mode_lock:
            if self._has_processed_log_probs is None:
                probe = GenerationRequest(request.prompt_ids[:1], 1, SamplingParams(top_k=1))
                turn = SampledTurn(probe, 1)
                await self._stream(turn)
                self._has_processed_log_probs = turn.log_probs[0] == 0.0
        if not self._has_processed_log_probs:
            raise ConfigError(
                "the server gives log-probs before temperature and filters are applied, and "
                "training needs those after. Start it with --logprobs-mode processed_logprobs"
            )

    async def _update(self, load: Callable[[], Awaitable[None]]) -> int:
        try:
            cut = self._cut_turns if self.in_flight is not None else None
            async with asyncio.timeout(self._update_timeout), self._update_lock.exclusive(cut):
                self._check_works()
                await self._load(load)
                self.weight_version = self._next_version
                return self.weight_version
        except TimeoutError:
            raise DeadlineExceeded(
                f"an update of the weights of {self._server.url} took longer than "
                f"{self._update_timeout:g} s. Raise update_timeout, or look at the server's log."
            ) from None

    async def _load(self, load: Callable[[], Awaitable[None]]) -> None:
        self._failure = f"{self._server.url} may have lost its weights in an update that failed"
        try:
            async with self._server.updating():
                await load()
        except UpdatesDisabledError:
            self._failure = None
            raise
        self._failure = None

    def _check_ids(self, ids: Sequence[int]) -> None:
        if self._skeleton is not None:  # otherwise only the server checks
            check_ids(ids, self._skeleton.vocabulary_size)

    def _check_works(self) -> None:
        if self._failure is not None:
            raise EngineError(self._failure)


async def _nothing() -> None:
    """Do nothing: closing cancels running turns."""


def _reason(word: str | None, is_full: bool) -> FinishReason:
    if word == "stop":
        return FinishReason.STOP
    if word == "length":
        return FinishReason.LENGTH if is_full else FinishReason.CONTEXT
    if word == "abort":
        return FinishReason.ABORTED
    raise EngineError(f"the server ended a turn for a reason of its own: {word}")
