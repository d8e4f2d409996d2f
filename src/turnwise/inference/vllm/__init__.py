"""vLLM: in this process (`VLLMInferenceEngine`), or as a server (`VLLMServerEngine`)."""

from turnwise.inference.vllm.engine import VLLMInferenceEngine as VLLMInferenceEngine
from turnwise.inference.vllm.server import VLLMServerEngine as VLLMServerEngine
