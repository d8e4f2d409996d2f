"""A conversation with a model in the terminal, with tools if there are any."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat import ChatFormat, Conversation, Message
from turnwise.episode.messages import MessageBuilder
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from turnwise.tools import ActionParser, ToolCall, ToolRegistry, get_parser
from turnwise.tools.context import ToolContext

MOST_ROUNDS = 20
"""Replies in a row that may call tools."""


@dataclass(frozen=True)
class Reply:
    """The length, duration and finish reason of a reply."""

    num_tokens: int
    seconds: float
    reason: FinishReason


@dataclass
class ChatTools:
    """The tools of a conversation; each conversation has a context of its own."""

    registry: ToolRegistry
    chat: ChatFormat
    choice: ActionParser | str = "auto"
    messages: MessageBuilder = field(init=False)
    parser: ActionParser = field(init=False)

    def __post_init__(self) -> None:
        self.messages = MessageBuilder(self.chat)
        self.parser = (
            get_parser(
                self.choice, template=self.chat.template, definitions=self.registry.definitions
            )
            if isinstance(self.choice, str)
            else self.choice
        )
        self._context: ToolContext = self.registry.open_context()

    def reset(self) -> None:
        """Open a new context for the next conversation."""
        self.close()
        self._context = self.registry.open_context()

    def close(self) -> None:
        self._context.close()

    def initial_messages(self, system: str | None, first: str) -> list[Message]:
        """Return the first messages; they describe the tools if the chat template does not."""
        definitions = self.registry.definitions
        return self.messages.initial(system or "", first, definitions, self.parser)

    @property
    def for_template(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools for the chat template; None if it takes none."""
        if not self.messages.supports_tools:
            return None
        return [definition.to_openai() for definition in self.registry.definitions]

    def execute(self, text: str, show_call: Callable[[ToolCall], None]) -> Sequence[Message]:
        """Execute the tool calls of a reply; return the results as messages."""
        parsed = self.parser.parse(text)
        results: list[tuple[str, str]] = []
        for call in parsed.calls:
            result = self.registry.execute(call, self._context)
            call.success, call.result = result.success, result.value
            show_call(call)
            results.append((call.name, result.text))
        if parsed.malformed is not None:
            results.append(("", f"A call could not be read: {parsed.malformed}"))
        return self.messages.tool_results(results) if results else ()


@dataclass
class ChatSession:
    """Conversations with one engine, one after the other."""

    engine: BaseInferenceEngine
    format: ChatFormat
    system: str | None
    sampling: SamplingParams
    max_tokens: int
    seed: int
    tools: ChatTools | None = None
    replies: list[Reply] = field(default_factory=list)
    conversation: Conversation | None = None

    def __post_init__(self) -> None:
        self._session = object()
        self._seeds = itertools.count(self.seed)

    def reset(self) -> None:
        """Start a new conversation."""
        self.engine.end_session(self._session)
        self._session = object()
        self.conversation = None
        if self.tools is not None:
            self.tools.reset()

    def say(
        self,
        text: str,
        show: Callable[[str], None],
        show_call: Callable[[ToolCall], None] = lambda call: None,
    ) -> Reply:
        """Send a message, and show the reply as it is generated.

        Tool calls are executed and shown, and the model replies again. Ctrl-C ends the reply.
        """
        conversation = self._add_message(text)
        for _ in range(MOST_ROUNDS):
            reply = self._reply(conversation, show)
            if self.tools is None or reply.reason is not FinishReason.STOP:
                break
            start, end = conversation.stream.turns[-1]
            keep = self.tools.parser.special_tokens
            said = self.format.decode(conversation.stream.ids[start:end], keep)
            try:
                results = self.tools.execute(said, show_call)
            except KeyboardInterrupt:
                return dataclasses.replace(reply, reason=FinishReason.ABORTED)
            if not results:
                break
            conversation.add(results)
        return reply

    def _reply(self, conversation: Conversation, show: Callable[[str], None]) -> Reply:
        """Generate one turn; Ctrl-C keeps what was shown of it."""
        ids: list[int] = []
        num_shown = 0
        started = time.monotonic()

        def show_new(sampled: Sequence[int], is_over: bool = False) -> None:
            nonlocal num_shown
            ids[:] = sampled
            visible = self._visible(ids, is_over)
            show(visible[num_shown:])
            num_shown = max(num_shown, len(visible))

        async def generate() -> GenerationResult:
            request = GenerationRequest(
                list(conversation.stream.ids),
                self.max_tokens,
                self.sampling,
                stop_ids=self.format.stop_ids,
                stop_strings=self.format.stop_strings,
                seed=next(self._seeds),
                session=self._session,
                on_tokens=show_new,
            )
            return await self.engine.sample(request)

        try:
            result = asyncio.run(generate())
            reason, log_probs = result.finish_reason, result.log_probs
            show_new(result.ids, is_over=True)
        # asyncio raises the second for a Ctrl-C that comes just as the loop begins.
        except (KeyboardInterrupt, asyncio.CancelledError):
            reason, log_probs = FinishReason.ABORTED, [0.0] * len(ids)
        conversation.answer(ids, log_probs)
        self.replies.append(Reply(len(ids), time.monotonic() - started, reason))
        return self.replies[-1]

    def _add_message(self, text: str) -> Conversation:
        message: Message = {"role": "user", "content": text}
        if self.conversation is not None:
            self.conversation.add([message])
            return self.conversation
        messages: list[Message] = [message]
        if self.tools is not None:
            messages = self.tools.initial_messages(self.system, text)
        elif self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        tools = None if self.tools is None else self.tools.for_template
        self.conversation = Conversation(self.format, messages, tools)
        return self.conversation

    def _visible(self, ids: Sequence[int], is_over: bool) -> str:
        """Return the text without the end of turn, and without what may become one."""
        text = self.format.decode(ids)
        for stop in self.format.stop_strings:
            text = text.partition(stop)[0]
            begun = [n for n in range(1, len(stop)) if text.endswith(stop[:n])]
            if begun and not is_over:
                text = text[: -max(begun)]
        text = text.lstrip()
        return text if is_over else text.rstrip("\ufffd")
