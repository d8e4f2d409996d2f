"""vLLM: in this process (`VLLMInferenceEngine`), or as a server (`VLLMServerEngine`)."""

from turnwise.inference.vllm.engine import VLLMInferenceEngine
from turnwise.inference.vllm.server import VLLMServerEngine

__all__ = ["VLLMInferenceEngine", "VLLMServerEngine"]
