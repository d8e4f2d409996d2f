"""`ServerEngine`: VERL's inference servers as the engine of an episode, tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.errors import ConfigError, EngineError
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
)
from turnwise.scale.verl.targets import CPU_ROLLOUT

_SEEDED = (CPU_ROLLOUT, "vllm")
"""Servers that take a seed for each request."""


class ServerEngine(BaseInferenceEngine):
    """The engine of one episode.

    VERL stores prompt and response in tensors of fixed width: what follows the prompt has at most
    `response_length` tokens, however short the prompt was.
    """

    def __init__(
        self, client: Any, backend: str, prompt_length: int, response_length: int, tokenizer: Any
    ) -> None:
        super().__init__(tokenizer)
        self._client = client
        self._backend = backend
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._prompt_tokens: int | None = None
        self.refusal: ConfigError | None = None
        """An error that every episode would have; the run ends with it."""

    @property
    def context_length(self) -> int:
        num_prompt = self._prompt_length if self._prompt_tokens is None else self._prompt_tokens
        return num_prompt + self._response_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        length = len(request.prompt_ids)
        try:
            if self._prompt_tokens is None:
                self._begin(length)
            self._check(request)
        except ConfigError as error:
            self.refusal = error
            raise
        num_left = self.context_length - length
        max_tokens = min(request.max_tokens, num_left)
        output = await self._client.generate(
            request.session or f"turnwise-{request.seed}",
            prompt_ids=list(request.prompt_ids),
            sampling_params=self._params(request, max_tokens),
        )
        if output.log_probs is None:
            raise EngineError(
                "VERL's server gave no log-probs. Leave rollout.calculate_log_probs at true."
            )
        self.weight_version = int(output.extra_fields.get("global_steps") or 0)
        ids, log_probs = list(output.token_ids), list(output.log_probs)
        reason = _finish_reason(ids, output.stop_reason, request, max_tokens, num_left)
        return GenerationResult(ids, log_probs, reason, self.weight_version)

    def _begin(self, length: int) -> None:
        if length > self._prompt_length:
            raise ConfigError(
                f"the prompt of an episode has {length} tokens, and VERL was configured for at "
                f"most {self._prompt_length}. Set more: verl_overrides="
                f"['data.max_prompt_length={length + length // 2}']"
            )
        self._prompt_tokens = length

    def _check(self, request: GenerationRequest) -> None:
        if request.stop_strings and self._backend != CPU_ROLLOUT:
            raise ConfigError(
                "this model has no chat template, so its turns end with a text, and VERL's "
                "servers end them with tokens only. Take a model with a chat template."
            )

    def _params(self, request: GenerationRequest, max_tokens: int) -> dict[str, Any]:
        sampling = request.sampling
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": max_tokens,
            "stop_token_ids": sorted(request.stop_ids),
        }
        if self._backend == "sglang":
            params["max_new_tokens"] = params.pop("max_tokens")
        if self._backend in _SEEDED:
            params["seed"] = request.seed
        if request.stop_strings:
            params["stop"] = list(request.stop_strings)
        return params


def _finish_reason(
    ids: Sequence[int],
    stop_reason: str | None,
    request: GenerationRequest,
    max_tokens: int,
    num_left: int,
) -> FinishReason:
    if stop_reason in ("aborted", "abort"):
        return FinishReason.ABORTED
    if ids and ids[-1] in request.stop_ids:
        return FinishReason.STOP
    if len(ids) >= max_tokens:
        return FinishReason.CONTEXT if max_tokens == num_left else FinishReason.LENGTH
    return FinishReason.STOP
