"""`InferenceEngine`: a model's name, and one can generate. Nothing but transformers behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from turnwise.inference.base import Overflow, Prompts
from turnwise.inference.output import GenerationOutput
from turnwise.inference.transformers import TransformersEngine
from turnwise.models import load_model


class InferenceEngine(TransformersEngine):
    """The transformers engine on a model that it loads itself: a name, a folder, or a hub id."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        device: str | torch.device = "auto",
        *,
        dtype: str | torch.dtype = "auto",
        trust_remote_code: bool = False,
        max_batch_size: int = 64,
        overflow: Overflow = "truncate",
    ) -> None:
        loaded = load_model(
            model_path, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        super().__init__(
            loaded.model, loaded.tokenizer, max_batch_size=max_batch_size, overflow=overflow
        )
        self.device: torch.device = loaded.model.device

    def generate(
        self,
        prompts: Prompts,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        *,
        top_k: int = 0,
        min_p: float = 0.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        timeout: float | None = None,
        max_new_tokens: int | None = None,
    ) -> GenerationOutput:
        """As every engine does, but a little cooler where nothing is said."""
        return super().generate(
            prompts,
            max_tokens,
            temperature,
            top_p,
            top_k=top_k,
            min_p=min_p,
            stop=stop,
            seed=seed,
            timeout=timeout,
            max_new_tokens=max_new_tokens,
        )
