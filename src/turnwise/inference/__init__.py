"""Engines that generate, behind one small protocol: token ids in, sampled ids and log-probs out.

The engine on transformers is imported from `turnwise.inference.transformers`.
"""

from turnwise.inference.base import BaseInferenceEngine
from turnwise.inference.output import GenerationOutput
from turnwise.inference.protocol import (
    Engine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
)
from turnwise.inference.sampling import SamplingParams, choose_tokens, sampling_log_probs
from turnwise.inference.scripted import ScriptedEngine

__all__ = [
    "BaseInferenceEngine",
    "Engine",
    "FinishReason",
    "GenerationOutput",
    "GenerationRequest",
    "GenerationResult",
    "SamplingParams",
    "ScriptedEngine",
    "choose_tokens",
    "sampling_log_probs",
]
