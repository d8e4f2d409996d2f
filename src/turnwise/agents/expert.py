"""An expert in the model's place: the agent runs unchanged, and its replies are the expert's."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from turnwise.agents.live import LiveText
from turnwise.agents.requests import ApiError, ChatRequest
from turnwise.agents.session import AgentSession
from turnwise.chat.tree import TreePrompt
from turnwise.deadlines import call_with_deadline
from turnwise.episode.engine_sessions import EngineSession
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.sampling import TurnTokens
from turnwise.errors import ConfigError, describe_error
from turnwise.inference import FinishReason
from turnwise.tools import ToolCall
from turnwise.types import EpisodeStatus

Expert: TypeAlias = Callable[..., Any]
"""`expert(messages, tools)`, plain or async: what the model should reply, as a text or a message
`{"content": ..., "tool_calls": [{"name": ..., "arguments": {...}}]}`."""


class ExpertSession(AgentSession):
    """Serves an agent with an expert's turns, in the tokens that the model would have to sample.

    A turn of the expert that the model could not write fails the episode.
    """

    def __init__(self, setup: EpisodeSetup, expert: Expert, **options: Any) -> None:
        super().__init__(setup, **options)
        self._expert = expert

    async def _sample(
        self,
        request: ChatRequest,
        prompt: TreePrompt,
        session: EngineSession,
        seed: int,
        live: LiveText | None,
    ) -> TurnTokens:
        try:
            reply = await call_with_deadline(
                self._expert,
                list(request.messages),
                list(request.tools),
                timeout=self._timer.within(None),
                waiting_for="the expert",
                limit_name="limits.max_seconds",
            )
            ids = self._written(reply, request, prompt)
        except Exception as error:
            self.failure = error
            raise ApiError(f"the expert failed: {describe_error(error)}", status=500) from error
        return TurnTokens(ids, [0.0] * len(ids), FinishReason.STOP, 0)

    def _written(self, reply: Any, request: ChatRequest, prompt: TreePrompt) -> list[int]:
        """The tokens of the expert's turn, with the end of the turn."""
        content, thought, calls = _read(reply)
        text = "\n".join(filter(None, [content, *map(self._parser.render, calls)]))
        if self._setup.chat.begins_in_thought(prompt.ids):
            text = f"{thought}\n</think>\n\n{text}"
        elif thought:
            text = f"<think>\n{thought}\n</think>\n\n{text}"
        chat, limits = self._setup.chat, self._setup.limits
        ids = chat.answer_ids(text)
        readable = chat.decode(ids, self._marks)
        parsed = self._parser.parse(readable).calls if request.tools else ()
        if [(call.name, call.arguments) for call in parsed] != [
            (call.name, call.arguments) for call in calls
        ]:
            raise ConfigError(
                f"the expert's turn {text!r:.200} is read as {len(parsed)} tool calls, expected "
                f"{len(calls)}: the request has no tools, or the model's format cannot write this. "
                "Reply with one call at a time, or with a text."
            )
        wanted = (limits.max_tokens_per_turn, request.max_tokens)
        most = min((number for number in wanted if number is not None), default=len(ids))
        if len(ids) > most:
            raise ConfigError(
                f"the expert's turn {text!r:.200} has {len(ids)} tokens, and the model may write "
                f"{most}: raise inference.max_tokens, or max_tokens of the request"
            )
        if len(prompt.ids) + len(ids) > self._setup.max_tokens:
            self.exhausted = EpisodeStatus.TRUNCATED_BY_TOKENS
            raise ConfigError(
                f"the expert's conversation has {len(prompt.ids) + len(ids)} tokens, at most "
                f"{self._setup.max_tokens} fit (limits.max_tokens, the model's context)"
            )
        return ids


def _read(reply: Any) -> tuple[str, str, list[ToolCall]]:
    if isinstance(reply, str):
        return reply, "", []
    try:
        if not {"content", "tool_calls"} & reply.keys():
            raise KeyError("content")
        calls = [_call(call) for call in reply.get("tool_calls") or ()]
        return str(reply.get("content") or ""), str(reply.get("reasoning_content") or ""), calls
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the expert returned {reply!r:.200}, expected a text, or a message such as "
            '{"content": "...", "tool_calls": [{"name": "...", "arguments": {...}}]}'
        ) from error


def _call(call: Mapping[str, Any]) -> ToolCall:
    """A call in OpenAI's form, or as its name and arguments alone."""
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return ToolCall(function["name"], dict(arguments))
