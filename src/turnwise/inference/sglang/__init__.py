"""SGLang: in this process (`SGLangInferenceEngine`), or as a server (`SGLangServerEngine`)."""

from turnwise.inference.sglang.engine import SGLangInferenceEngine, SGLangServerEngine

__all__ = ["SGLangInferenceEngine", "SGLangServerEngine"]
