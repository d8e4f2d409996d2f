"""The section `model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from turnwise.config.fields import Positive, Section, setting


@dataclass
class ModelConfig(Section):
    """Which model, and where it runs."""

    model_name: str = setting(
        "tiny", "A built-in model (tiny, smollm2-135m) or a Hugging Face model id."
    )
    local_path: str | None = setting(None, "A folder with the model, used instead of model_name.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Precision of the weights; auto: float32 on a CPU, bfloat16 on a GPU."
    )
    device: str = setting("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    tensor_parallel_size: Positive = setting(1, "GPUs that one copy of the model is split over.")
    trust_remote_code: bool = setting(False, "Run Python code that comes with the model.")
