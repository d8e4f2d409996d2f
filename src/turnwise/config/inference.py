"""The section `inference`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from turnwise.config.fields import Positive, Probability, Section, setting


@dataclass
class InferenceConfig(Section):
    """How the model is sampled, and how long a conversation may be."""

    backend: Literal["local", "transformers", "vllm", "sglang", "scripted"] = setting(
        "local", "The engine that generates."
    )
    max_tokens: Positive = setting(64, "Most tokens in one turn of the model.")
    temperature: Annotated[float, Ge(0)] = setting(1.0, "Sampling temperature; 0 is greedy.")
    top_p: Probability = setting(1.0, "Sample from the smallest set of tokens with this mass.")
    multi_turn: bool = setting(True, "False ends every episode after the first action.")
    max_turns: Positive = setting(10, "Most turns of the model in one episode.")
    stall_timeout: Annotated[float, Gt(0)] | None = setting(
        900.0,
        "Seconds without any result from the engine, while episodes wait for it, after which the "
        "run is saved and stops; null disables it.",
    )
