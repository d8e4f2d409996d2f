"""The engine for a vLLM server, over HTTP; and requests as vLLM's arguments, here and there."""

import asyncio
import dataclasses
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Unpack

import torch

from turnwise.errors import ConfigError, EngineError
from turnwise.inference.base import FinishReason, GenerationRequest
from turnwise.inference.sampling import SamplingParams
from turnwise.inference.served import JsonClient, ServedEngine, ServedOptions, WeightsRefused
from turnwise.inference.vllm.receiver import RECEIVER
from turnwise.inference.weights import (
    GroupAddress,
    Transfer,
    export_tensors,
    gpu_ids,
    machine_id,
    run_both,
    tensor_specs,
)
from turnwise.inference.worker import EngineTurn

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""vLLM silently raises lower temperatures, and refuses higher ones."""
_START = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"


def sampling_arguments(request: GenerationRequest, context_left: int) -> dict[str, Any]:
    """Return the sampling parameters of a request under vLLM's names.

    Defaults are included: a server would take missing ones from the model's generation config.
    Only our stop tokens end a turn, so the model's own is ignored.
    """
    params = request.sampling
    is_in_range = LOWEST_TEMPERATURE <= params.temperature <= HIGHEST_TEMPERATURE
    if not params.is_greedy and not is_in_range:
        raise ConfigError(
            f"temperature got {params.temperature}, expected what vLLM takes: 0 (greedy), or "
            f"{LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g}"
        )
    return {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed % 2**63,  # −1 means "no seed" in vLLM
        "max_tokens": min(request.max_tokens, context_left),
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
    }


def scoring_arguments(ids: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
    """Return a prompt and parameters that give the log-probs of all of `ids` but the first.

    vLLM always samples a token, so it refuses a prompt as long as the context. The last token is
    therefore left out of the prompt, and its log-prob requested at the sampled position.
    """
    *prompt, last = ids
    return prompt, {
        "temperature": 0.0,  # log-probs of a greedy row are those at temperature 1
        "max_tokens": 1,
        "ignore_eos": True,
        "prompt_logprobs": 0,
        "logprobs": 1,
        "logprob_token_ids": [last],
    }


class VLLMServerEngine(ServedEngine):
    """A vLLM server at `url`, started for instance with

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs \\
            --worker-extension-cls turnwise.inference.vllm.receiver.WeightReceiver

    The mode makes log-probs those of the distribution that was sampled from; the variable enables
    weight updates. With the extension, which needs turnwise on the server, tensors go by CUDA IPC
    if the server sees the learner's GPU, and otherwise by NCCL (gloo without GPUs). Without it they
    are written into a folder in `weights_dir`. `transfer` chooses one of "ipc", "broadcast" and
    "disk" itself. Only one engine should update a server's weights: it does not see the updates of
    others.
    """

    name = "vLLM"

    def __init__(
        self, url: str, *, api_key: str | None = None, **options: Unpack[ServedOptions]
    ) -> None:
        # URLs for other clients often end in /v1.
        self._client = JsonClient(url.rstrip("/").removesuffix("/v1"), api_key)
        self._cuts: set[asyncio.Timeout] = set()
        """End the requests that are being sampled, when they expire."""
        super().__init__(**options)

    def _connect(self) -> str:
        try:
            reply = self._loop.run_until_complete(self._client.request("GET", "/v1/models"))
        except EngineError as error:
            raise EngineError(f"{error} Start a server with: {_START}") from error
        card = reply["data"][0]
        self.model = str(card["id"])
        """The server's name of the model."""
        self.context_length = int(card["max_model_len"])
        # Whether log-probs include temperature and filters is the server's setting: with top_k=1
        # that of the sampled token is 0 if they do.
        probe = EngineTurn(GenerationRequest([0], 1, SamplingParams(top_k=1)), 1)
        self._loop.run_until_complete(self._stream(probe))
        self._has_processed_log_probs = probe.log_probs[0] == 0.0
        return str(card.get("root") or self.model)

    async def _continue(self, turn: EngineTurn) -> FinishReason | None:
        sampling = turn.request.sampling
        is_plain = sampling.is_greedy or sampling == SamplingParams()  # equal in both modes
        if not (is_plain or self._has_processed_log_probs):
            raise ConfigError(
                "the server gives log-probs before temperature and filters are applied, and "
                "training needs those after. Start it with --logprobs-mode processed_logprobs"
            )
        cut = asyncio.timeout_at(turn.deadline)
        try:
            async with cut:
                self._cuts.add(cut)
                return await self._stream(turn)
        except TimeoutError:
            if not cut.expired():
                raise
            return turn.finish_reason()  # None: cut by new weights before its deadline
        finally:
            self._cuts.discard(cut)

    async def _end_turns(self) -> None:
        for cut in self._cuts:  # which aborts it on the server; its tokens so far are kept
            cut.reschedule(self._loop.time())

    async def _stream(self, turn: EngineTurn) -> FinishReason:
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
            "stream": True,
            # Only a turn that may end early needs partial results.
            "stream_interval": 1 if request.timeout is not None or self.in_flight else 64,
        }
        ended = None
        async with aclosing(self._client.post_lines("/v1/completions", body)) as lines:
            async for line in lines:
                data = line.removeprefix("data:").strip()
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    reason = event["error"]["message"]
                    raise EngineError(f"{self._client.url} gave up a turn: {reason}")
                for choice in event["choices"]:
                    ids = choice["token_ids"] or []
                    log_probs = choice["logprobs"]["token_logprobs"] if ids else []
                    for token, log_prob in zip(ids, log_probs, strict=True):
                        turn.ids.append(token)
                        turn.log_probs.append(log_prob)
                        if start and turn.finish_reason() is FinishReason.STOP:
                            return FinishReason.STOP  # a stop string that began before the cut
                    ended = choice["finish_reason"] or ended
        if ended == "length":
            is_full = len(turn.ids) >= turn.request.max_tokens
            return FinishReason.LENGTH if is_full else FinishReason.CONTEXT
        if ended not in ("stop", "abort"):
            raise EngineError(f"the server ended a turn for a reason of its own: {ended}")
        return FinishReason.STOP if ended == "stop" else FinishReason.ABORTED

    async def _score(self, ids: Sequence[int], start: int) -> list[float]:
        prompt, arguments = scoring_arguments(ids)
        body = {"model": self.model, "prompt": prompt, "return_tokens_as_token_ids": True}
        reply = await self._client.request("POST", "/v1/completions", body | arguments)
        (choice,) = reply["choices"]
        known = zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
        scores = [at[str(token)]["logprob"] for at, token in known]
        scores.append(choice["logprobs"]["top_logprobs"][0][f"token_id:{ids[-1]}"])
        return scores[start - 1 :]

    @asynccontextmanager
    async def _updating(self) -> AsyncIterator[None]:
        """Pause the server after all running turns, also those of other clients.

        At the end its cache is reset: the cached keys and values belong to the old weights.
        """
        try:
            await self._client.request("POST", "/pause?mode=wait")
        except EngineError as error:
            raise WeightsRefused(f"{error}. To take new weights it needs {_START}") from error
        try:
            yield
            reply = await self._client.request("POST", "/reset_prefix_cache")
            if isinstance(reply, dict) and not reply.get("success", True):
                raise EngineError(f"{self._client.url} keeps keys and values of the old weights")
        finally:
            await self._client.request("POST", "/resume")

    async def _rpc(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of every worker; return what each returns."""
        body = {"method": method, "kwargs": arguments}
        reply = await self._client.request("POST", "/collective_rpc", body)
        return list(reply["results"]) if reply else []

    async def _load(self, folder: str) -> None:
        async with self._updating():
            await self._rpc("reload_weights", weights_path=folder)

    async def _send(self, weights: Mapping[str, torch.Tensor]) -> None:
        async with self._updating():
            if self._sender is None:
                await self._rpc("turnwise_open", handles=export_tensors(weights))
            else:
                receiving = self._rpc("turnwise_receive", specs=tensor_specs(weights))
                await run_both(receiving, partial(self._sender.send, weights.values()))

    async def _choose_transfer(self, sample: torch.Tensor) -> tuple[Transfer, str]:
        try:
            workers = await self._rpc("turnwise_describe")
        except EngineError:
            return "disk", f"for CUDA IPC or NCCL it needs --worker-extension-cls {RECEIVER}"
        gpu = gpu_ids()[sample.device.index] if sample.is_cuda else None
        shares_gpu = all(w["machine"] == machine_id() and gpu in w["gpus"] for w in workers)
        if self._asked_transfer == "ipc" or (self._asked_transfer == "auto" and shares_gpu):
            return "ipc", "its workers see the GPU with the learner's weights"
        backend = "nccl" if sample.is_cuda and all(w["gpus"] for w in workers) else "gloo"
        return await self._make_group(len(workers), backend)

    async def _join(self, address: GroupAddress) -> None:
        await self._rpc("turnwise_join", address=dataclasses.asdict(address))
