"""Engines that generate, behind one small class: token ids in, sampled ids and log-probs out."""

from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    GenerationResult,
)
from turnwise.inference.create import create_inference_engine, engine_class
from turnwise.inference.local import LocalEngine
from turnwise.inference.sampling import SamplingParams, choose_tokens, sampling_log_probs
from turnwise.inference.scripted import ScriptedEngine
from turnwise.inference.sglang import SGLangInferenceEngine, SGLangServerEngine
from turnwise.inference.transformers import TransformersEngine
from turnwise.inference.vllm import VLLMInferenceEngine, VLLMServerEngine

__all__ = [
    "BaseInferenceEngine",
    "FinishReason",
    "GenerationOutput",
    "GenerationRequest",
    "GenerationResult",
    "LocalEngine",
    "SGLangInferenceEngine",
    "SGLangServerEngine",
    "SamplingParams",
    "ScriptedEngine",
    "TransformersEngine",
    "VLLMInferenceEngine",
    "VLLMServerEngine",
    "choose_tokens",
    "create_inference_engine",
    "engine_class",
    "sampling_log_probs",
]
