"""The server that samples on a CPU. It does not import VERL, which would double its start time."""

import asyncio
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.inference import (
    FinishReason,
    GenerationRequest,
    SamplingParams,
    create_inference_engine,
)
from turnwise.models import load_model


@dataclass
class Sampled:
    """A sampled turn, with the fields of VERL's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    extra_fields: dict[str, Any]
    num_preempted: int | None = None
    routed_experts: Any = None


class CpuServer:
    """A Ray actor that holds the model and samples for many conversations at once."""

    def __init__(self, model_path: str, trust_remote_code: bool) -> None:
        loaded = load_model(
            model_path, dtype="float32", device="cpu", trust_remote_code=trust_remote_code
        )
        self._engine = create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer)
        self._global_steps: int | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> Sampled:
        """Sample one turn."""
        params = sampling_params
        request = GenerationRequest(
            list(prompt_ids),
            params["max_tokens"],
            SamplingParams(
                params.get("temperature", 1.0),
                max(params.get("top_k", 0), 0),  # VERL writes "all" as -1
                params.get("top_p", 1.0),
            ),
            stop_ids=frozenset(params.get("stop_token_ids", ())),
            stop_strings=tuple(params.get("stop", ())),
            seed=params.get("seed", 0),
        )
        result = await self._engine.sample(request)
        is_cut = result.finish_reason is FinishReason.ABORTED
        return Sampled(
            token_ids=list(result.ids),
            log_probs=list(result.log_probs),
            stop_reason="aborted" if is_cut else "completed",
            extra_fields={"global_steps": self._global_steps},
        )

    async def update_weights(
        self, weights: dict[str, torch.Tensor], global_steps: int | None
    ) -> None:
        """Load new weights to sample from."""
        # Tensors from Ray's store are read-only; the model copies them.
        await asyncio.to_thread(self._engine.update_weights, weights)
        self._global_steps = global_steps

    async def ready(self) -> None:
        """Returns when the model is loaded."""

    async def wake_up(self, *_: Any, **__: Any) -> None:
        """Nothing to do: the model stays in memory between rollouts."""

    sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = wake_up
    abort_all_requests = resume_generation = start_profile = stop_profile = wake_up
