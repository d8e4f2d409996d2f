"""Requests as vLLM's arguments, the same for its engine and for its server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.errors import ConfigError
from turnwise.inference.base import GenerationRequest
from turnwise.inference.sampling import SamplingParams

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0
"""vLLM silently raises lower temperatures, and refuses higher ones."""


def sampling_arguments(request: GenerationRequest, context_left: int) -> dict[str, Any]:
    """Return the sampling parameters of a request under vLLM's names.

    Defaults are included: a server would take missing ones from the model's generation config.
    Only our stop tokens end a turn, so the model's own is ignored.
    """
    params = request.sampling
    _check_temperature(params)
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


def _check_temperature(params: SamplingParams) -> None:
    temperature = params.temperature
    if not params.is_greedy and not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        raise ConfigError(
            f"temperature got {temperature}, expected what vLLM takes: 0 (greedy), or "
            f"{LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE:g}"
        )
