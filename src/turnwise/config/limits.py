"""The section `limits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from turnwise.config.fields import Positive, Seconds, Section, setting


@dataclass
class LimitsConfig(Section):
    """Limits and deadlines of one episode; null: no limit."""

    max_turns: Positive | None = setting(None, "Turns of an episode; null: inference.max_turns.")
    max_tokens_per_turn: Positive | None = setting(
        None, "Tokens of one turn; null: inference.max_tokens."
    )
    max_tokens: Positive | None = setting(
        None, "Tokens of the whole conversation, observations included; null: the model's context."
    )
    max_tool_calls: Annotated[int, Ge(0)] | None = setting(100, "Tool calls in an episode.")
    max_seconds: Seconds | None = setting(1800.0, "Duration of an episode.")
    max_observation: Positive | None = setting(50_000, "Characters of one observation.")
    reset_timeout: Seconds | None = setting(120.0, "Seconds to make and reset an environment.")
    step_timeout: Seconds | None = setting(60.0, "Seconds for one step.")
    tool_timeout: Seconds | None = setting(600.0, "Seconds for one tool call.")
    generation_timeout: Seconds | None = setting(600.0, "Seconds for one turn of the model.")
    reward_timeout: Seconds | None = setting(60.0, "Seconds for the reward function.")
    close_timeout: Seconds | None = setting(10.0, "Seconds to close an environment.")
