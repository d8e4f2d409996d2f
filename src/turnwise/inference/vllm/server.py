"""The HTTP calls of a vLLM server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, EngineError, did_you_mean
from turnwise.inference.http import JsonClient

START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


class VLLMServer:
    """A client of one server, for use in one event loop."""

    def __init__(self, url: str, api_key: str | None) -> None:
        # URLs for other clients often end in /v1.
        self._client = JsonClient(url.rstrip("/").removesuffix("/v1"), api_key)

    @property
    def url(self) -> str:
        return self._client.url

    async def find_model(self, name: str | None) -> dict[str, Any]:
        """Return the server's description of a model, by default of its first."""
        try:
            reply = await self._client.request("GET", "/v1/models")
        except EngineError as error:
            raise EngineError(f"{error} Start a server with: {START}") from error
        known: dict[str, dict[str, Any]] = {card["id"]: card for card in reply["data"]}
        name = next(iter(known)) if name is None else name
        if name not in known:
            raise ConfigError(
                f"the server at {self.url} has no model {name!r}. {did_you_mean(name, known)}"
            )
        return known[name]

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a whole completion."""
        reply = await self._client.request("POST", "/v1/completions", body)
        (choice,) = reply["choices"]
        return dict(choice)

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Yield a completion in pieces."""
        lines = self._client.post_lines("/v1/completions", {**body, "stream": True})
        async for line in lines:
            data = line.removeprefix("data:").strip()
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise EngineError(f"{self.url} gave up a turn: {event['error']['message']}")
            for choice in event["choices"]:
                yield choice

    @asynccontextmanager
    async def updating(self) -> AsyncIterator[None]:
        """Pause the server after all running turns, also those of other clients.

        At the end its cache is reset: the cached keys and values belong to the old weights.
        """
        try:
            await self._client.request("POST", "/pause?mode=wait")
        except EngineError as error:
            raise UpdatesDisabledError(
                f"{error}. Only a server that was started with VLLM_SERVER_DEV_MODE=1 in its "
                "environment takes new weights."
            ) from error
        try:
            yield
            reply = await self._client.request("POST", "/reset_prefix_cache")
            if isinstance(reply, dict) and not reply.get("success", True):
                raise EngineError(f"{self.url} keeps keys and values of the old weights")
        except BaseException:
            with suppress(EngineError):  # the first error is the one to raise
                await self._client.request("POST", "/resume")
            raise
        await self._client.request("POST", "/resume")

    async def rpc(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of every worker; return what each returns."""
        body = {"method": method, "kwargs": arguments}
        reply = await self._client.request("POST", "/collective_rpc", body)
        return list(reply["results"]) if reply else []

    async def load_weights(self, folder: Path) -> None:
        """Load the weights of a folder; the server must be paused."""
        await self.rpc("reload_weights", weights_path=str(folder))

    async def close(self) -> None:
        await self._client.close()


class UpdatesDisabledError(EngineError):
    """The server does not accept weight updates; its weights are unchanged."""
