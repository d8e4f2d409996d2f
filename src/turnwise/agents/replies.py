"""A sampled turn as a message: its thoughts, its text and its tool calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.agents.requests import ChatReply, ChatRequest
from turnwise.chat import Message
from turnwise.episode.sampling import TurnTokens
from turnwise.inference import FinishReason
from turnwise.tools import ActionParser, ToolCall, answer_of
from turnwise.tools.thoughts import thought_of


@dataclass
class TurnFacts:
    """What is known of a sampled turn besides its tokens."""

    text: str
    """What the tokens say, thoughts and calls included."""
    in_thought: bool
    calls: Sequence[ToolCall]
    finish_reason: FinishReason
    weight_version: int
    started: float
    """Seconds after the session's beginning."""
    seconds: float
    later_versions: tuple[tuple[int, int], ...] = ()
    """As in `TurnRecord`."""


def read_message(request: ChatRequest, facts: TurnFacts, parser: ActionParser, key: str) -> Message:
    """The turn as a message; puts its calls into `facts`. The ids of calls derive from `key`."""
    text, in_thought = facts.text, facts.in_thought
    for stop in request.stop:
        text = text.partition(stop)[0]
    content = answer_of(text, in_thought=in_thought)
    calls: list[dict[str, Any]] = []
    if request.tools and request.may_call_tools and content:
        parsed = parser.parse(text)
        found = parsed.calls if request.parallel_tool_calls else parsed.calls[:1]
        if found:
            facts.calls = found
            content = answer_of(parsed.text, in_thought=in_thought)
            calls = [_openai_call(call, key, number) for number, call in enumerate(found)]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    thought = thought_of(text, in_thought=in_thought)
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def make_reply(
    message: Message, num_prompt_tokens: int, result: TurnTokens, texts: Sequence[str]
) -> ChatReply:
    """What the agent gets; `texts` are those of the sampled tokens, if it asked for them."""
    reason = "stop"
    if message.get("tool_calls"):
        reason = "tool_calls"
    elif result.finish_reason in (FinishReason.LENGTH, FinishReason.CONTEXT):
        reason = "length"
    num_sampled = len(result.log_probs)
    return ChatReply(message, reason, num_prompt_tokens, num_sampled, texts, result.log_probs)


def _openai_call(call: ToolCall, key: str, number: int) -> dict[str, Any]:
    """A call in OpenAI's form; its id is the same in a run that is repeated."""
    name = hashlib.blake2b(f"{key}/{number}".encode(), digest_size=12).hexdigest()
    arguments = _sendable(json.dumps(call.arguments, ensure_ascii=False))
    return {
        "id": f"call_{name}",
        "type": "function",
        "function": {"name": _sendable(call.name), "arguments": arguments},
    }


def _sendable(text: str) -> str:
    """The text with a replacement character for half a surrogate pair, which UTF-8 cannot encode.

    A model can write one as an escape in the JSON of a call.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
