"""Turns the thoughts of a model on or off, in the way of its chat template."""

from __future__ import annotations

from turnwise.chat.rendering import Message, Renderer
from turnwise.errors import ConfigError

# Qwen3, GLM, SmolLM3 and Hunyuan have the first, DeepSeek-V3.1 and Granite the second.
_NAMES = ("enable_thinking", "thinking")
_PROBE: Message = {"role": "user", "content": "q"}


def with_thought(template: str, answer: str, thought: str) -> Message:
    """Return an answer and the thought before it as the message that a template takes."""
    message = {"role": "assistant", "content": answer}
    if not thought:
        return message
    if "reasoning_content" in template:
        return {**message, "reasoning_content": thought}
    return {**message, "content": f"<think>\n{thought}\n</think>\n\n{answer}"}


def thinking_variables(renderer: Renderer, enable: bool) -> dict[str, bool]:
    """Return the variables that tell a template whether the model thinks.

    Raises ConfigError for a template that writes the same prompt with and without thoughts.
    """
    for name in _NAMES:
        written = []
        for value in (True, False):
            renderer.variables = {name: value}
            written.append(renderer.render([_PROBE]))
        if written[0] != written[1]:
            return {name: enable}
    raise ConfigError(
        f"enable_thinking got {enable}, and this chat template writes the same prompt with and "
        f"without thoughts (it has no variable {' or '.join(_NAMES)}). Leave enable_thinking out; "
        "limits.max_thinking_tokens bounds the thoughts of any model."
    )
