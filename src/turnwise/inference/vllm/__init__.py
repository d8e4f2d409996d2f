"""vLLM: in this process (`VLLMInferenceEngine`), or as a server (`VLLMServerEngine`)."""

from turnwise.inference.vllm.client import VLLMServerEngine
from turnwise.inference.vllm.engine import VLLMInferenceEngine

__all__ = ["VLLMInferenceEngine", "VLLMServerEngine"]
