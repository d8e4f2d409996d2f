"""The calls that a vLLM server takes, and what its refusals mean."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.inference.vllm.http import HttpClient, ServerError

START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


class NotThereError(ConfigError):
    """The server does not know the path, or the model."""


class VLLMServer:
    """One server, spoken to from one event loop."""

    def __init__(self, url: str, api_key: str | None) -> None:
        # The address that other clients are given often ends in /v1.
        self._http = HttpClient(url.rstrip("/").removesuffix("/v1"), api_key=api_key)
        self._where = f"the server at {self._http.url}"

    async def find_model(self, name: str | None) -> dict[str, Any]:
        """What the server says of a model, by default of the first that it has."""
        try:
            cards = (await self._ask("GET", "/v1/models"))["data"]
        except ServerError as error:
            raise ConfigError(f"{error}. Start a server with: {START}") from error
        known: dict[str, dict[str, Any]] = {card["id"]: card for card in cards}
        name = next(iter(known)) if name is None else name
        if name not in known:
            raise ConfigError(f"{self._where} has no model {name!r}. {did_you_mean(name, known)}")
        return known[name]

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """A completion, whole."""
        reply = await self._ask("POST", "/v1/completions", body)
        (choice,) = reply["choices"]
        return dict(choice)

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """A completion, piece by piece."""
        async with self._http.send("POST", "/v1/completions", body) as response:
            if response.status != 200:
                self._refuse(response.status, _parse(await response.read()))
            async for line in response.lines():
                data = line.removeprefix("data:").strip()
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    self._refuse(int(event["error"].get("code") or 500), event)
                for choice in event["choices"]:
                    yield choice

    async def load_weights(self, folder: Path) -> None:
        """Have the server take the weights in this folder, when no turn is under way.

        The turns of other clients are waited for, too.
        """
        await self._control("/pause?mode=wait")
        try:
            arguments = {"weights_path": str(folder)}
            await self._control(
                "/collective_rpc", {"method": "reload_weights", "kwargs": arguments}
            )
            # Keys and values computed with the old weights would be used again.
            if not (await self._control("/reset_prefix_cache")).get("success", True):
                raise ServerError(f"{self._where} keeps keys and values of the old weights")
        except BaseException:
            with suppress(TurnwiseError):  # the first failure is the one to tell of
                await self._control("/resume")
            raise
        await self._control("/resume")

    async def _control(self, path: str, body: Any = None) -> dict[str, Any]:
        try:
            return await self._ask("POST", path, body)
        except NotThereError:
            raise NotThereError(
                f"{self._where} has no {path.partition('?')[0]}, which an update of weights "
                "needs. Start it with VLLM_SERVER_DEV_MODE=1 in its environment."
            ) from None

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        async with self._http.send(method, path, body) as response:
            answer = _parse(await response.read())
        if response.status != 200:
            self._refuse(response.status, answer)
        return answer

    def _refuse(self, status: int, answer: dict[str, Any]) -> NoReturn:
        # vLLM says "error", the framework below it "detail".
        error = answer.get("error", answer.get("detail", answer))
        text = error["message"] if isinstance(error, dict) and "message" in error else error
        if status == 404:
            raise NotThereError(f"{self._where} found nothing: {text}")
        if 400 <= status < 500:
            raise ConfigError(f"{self._where} refused a request: {text}")
        raise ServerError(f"{self._where} failed: {text}")


def _parse(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    return {"error": content.decode(errors="replace")[:2000]}
