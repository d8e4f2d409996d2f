"""The engine for an SGLang server, over HTTP."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Literal

import torch

from turnwise.errors import EngineError
from turnwise.inference.base import Overflow
from turnwise.inference.http import JsonClient
from turnwise.inference.loop_thread import START_SECONDS
from turnwise.inference.sglang import wire
from turnwise.inference.sglang.engine import SGLangEngine
from turnwise.inference.weight_group import Transfer, WeightSender, buckets, run_both
from turnwise.models import load_tokenizer

_LOG = logging.getLogger("turnwise")
_BUCKET_BYTES = 2**30
"""SGLang holds this much of the new weights beside the old ones."""


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

    With `stream`, tokens arrive as they are sampled. A long turn then costs more, since SGLang
    sends all of it again with each token; but the tokens until the deadline are kept even if the
    server has stopped responding.
    """

    def __init__(
        self,
        url: str,
        *,
        tokenizer: Any = None,
        model_path: str | None = None,
        api_key: str | None = None,
        stream: bool = False,
        num_top_log_probs: int = 128,
        weights_dir: str | os.PathLike[str] | None = None,
        transfer: Transfer = "auto",
        sleep: bool = False,
        trust_remote_code: bool = False,
        overflow: Overflow = "truncate",
        start_timeout: float | None = START_SECONDS,
    ) -> None:
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        self._client = JsonClient(url, api_key)
        self._is_stream = stream
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

    def _connect(self) -> Mapping[str, Any]:
        return self._loop.run_until_complete(self._describe())

    async def _describe(self) -> Mapping[str, Any]:
        # The second has what was changed while the server ran.
        info = await self._client.request("GET", "/server_info")
        model = await self._client.request("GET", "/model_info")
        return {**info, **model}

    async def _responses(self, body: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        if not self._is_stream:
            yield await self._client.request("POST", "/generate", body)
            return
        answer = None
        async for line in self._client.post_lines("/generate", {**body, "stream": True}):
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise EngineError(f"{self._client.url}/generate: {chunk['error']['message']}")
            answer = wire.join_chunks(answer, chunk)
            yield answer

    async def _abort(self, rid: str) -> None:
        await self._client.request("POST", "/abort_request", {"rid": rid})

    async def _load(self, folder: str, weight_version: str) -> None:
        body = {"model_path": folder, "flush_cache": True, "weight_version": weight_version}
        try:
            await self._client.request("POST", "/update_weights_from_disk", body)
        except EngineError as error:
            raise EngineError(
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

    async def _send(self, weights: Mapping[str, torch.Tensor], weight_version: str) -> None:
        if self._sender is not None:
            try:
                await self._broadcast(self._sender, weights, weight_version)
                return
            except RuntimeError as error:  # of the server, or of NCCL at this end
                # NCCL says so when it connects, before anything is sent.
                if "Duplicate GPU" not in str(error):
                    raise
            self._sender, self._transfer = None, "ipc"
            _LOG.info("weights reach SGLang by ipc: it runs on the learner's GPU")
        body = wire.tensor_body(weights, self._facts.num_workers, weight_version)
        await self._client.request("POST", "/update_weights_from_tensor", body)

    async def _broadcast(
        self, sender: WeightSender, weights: Mapping[str, torch.Tensor], weight_version: str
    ) -> None:
        parts = buckets(weights, _BUCKET_BYTES)
        for number, part in enumerate(parts, 1):
            body = wire.broadcast_body(sender.address, part, weight_version)
            if number < len(parts):  # the version and the cache belong to all of them
                body |= {"weight_version": None, "flush_cache": False}
            receiving = self._client.request("POST", "/update_weights_from_distributed", body)
            await run_both(receiving, partial(sender.send, part.values()))

    async def _occupy(self, action: Literal["release", "resume"], tags: list[str]) -> None:
        await self._client.request("POST", f"/{action}_memory_occupation", {"tags": tags})

    async def _flush_cache(self) -> str:
        await self._client.request("POST", "/flush_cache")
        return wire.ServerFacts.read(await self._describe()).weight_version

    def _disconnect(self) -> None:
        self._loop.run_until_complete(self._client.close())
