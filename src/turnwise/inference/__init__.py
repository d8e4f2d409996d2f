"""Engines that generate, behind one small class: token ids in, sampled ids and log-probs out.

Engines that need more than torch and transformers are looked up when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    GenerationResult,
)
from turnwise.inference.batches import BatchError, BatchInferenceManager, VLLMRolloutSPMD
from turnwise.inference.create import create_inference_engine, engine_class
from turnwise.inference.sampling import SamplingParams, choose_tokens, sampling_log_probs
from turnwise.inference.scripted import ScriptedEngine
from turnwise.inference.transformers import InferenceEngine, TransformersEngine

if TYPE_CHECKING:
    from turnwise.inference.local import LocalEngine
    from turnwise.inference.sglang import SGLangInferenceEngine, SGLangServerEngine
    from turnwise.inference.vllm import VLLMInferenceEngine, VLLMServerEngine

__all__ = [
    "BaseInferenceEngine",
    "BatchError",
    "BatchInferenceManager",
    "FinishReason",
    "GenerationOutput",
    "GenerationRequest",
    "GenerationResult",
    "InferenceEngine",
    "LocalEngine",
    "SGLangInferenceEngine",
    "SGLangServerEngine",
    "SamplingParams",
    "ScriptedEngine",
    "TransformersEngine",
    "VLLMInferenceEngine",
    "VLLMRolloutSPMD",
    "VLLMServerEngine",
    "choose_tokens",
    "create_inference_engine",
    "engine_class",
    "sampling_log_probs",
]

_LATER = {
    "LocalEngine": "local",
    "SGLangInferenceEngine": "sglang",
    "SGLangServerEngine": "sglang",
    "VLLMInferenceEngine": "vllm",
    "VLLMServerEngine": "vllm",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
