"""The engine for an SGLang server, over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from turnwise.errors import EngineError
from turnwise.inference.base import Overflow
from turnwise.inference.http import JsonClient
from turnwise.inference.loop_thread import START_SECONDS
from turnwise.inference.sglang import wire
from turnwise.inference.sglang.engine import SGLangEngine
from turnwise.models import load_tokenizer


class SGLangServerEngine(SGLangEngine):
    """A running server, which closing the engine leaves running.

    python -m sglang.launch_server --model-path MODEL --port 30000

    `tokenizer`, a name or a folder, is for strings only: `generate` and stop strings. `model_path`
    is the model's folder on this machine, if it differs from the server's: token ids and new
    weights are checked against its configuration.

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
        trust_remote_code: bool = False,
        overflow: Overflow = "truncate",
        start_timeout: float | None = START_SECONDS,
    ) -> None:
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
        self._client = JsonClient(url, api_key)
        self._is_stream = stream
        super().__init__(
            tokenizer,
            overflow,
            model_path=model_path,
            num_top_log_probs=num_top_log_probs,
            weights_dir=weights_dir,
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

    async def _flush_cache(self) -> str:
        await self._client.request("POST", "/flush_cache")
        return wire.ServerFacts.read(await self._describe()).weight_version

    def _disconnect(self) -> None:
        self._loop.run_until_complete(self._client.close())
