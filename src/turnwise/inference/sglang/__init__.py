"""SGLang as the engine: in this process, or a server over HTTP."""

from turnwise.inference.sglang.in_process import SGLangInferenceEngine
from turnwise.inference.sglang.server import SGLangServerEngine

__all__ = ["SGLangInferenceEngine", "SGLangServerEngine"]
