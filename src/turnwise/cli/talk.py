"""A conversation with a model: what is said, token by token, and how long it took."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.chat import ChatFormat, Conversation, Message
from turnwise.cli.talk_tools import MOST_ROUNDS, TalkTools
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from turnwise.tools import ToolCall

# An answer is asked for in pieces, so that it can be read while it grows, and so that what was
# read of an interrupted one is kept. The engine keeps what it has computed for the session.
NUM_TOKENS_AT_ONCE = 16


@dataclass(frozen=True)
class Answer:
    """How an answer went."""

    num_tokens: int
    seconds: float
    reason: FinishReason


@dataclass
class Talk:
    """One conversation after the other with one engine."""

    engine: BaseInferenceEngine
    format: ChatFormat
    system: str | None
    sampling: SamplingParams
    max_tokens: int
    seed: int
    tools: TalkTools | None = None
    answers: list[Answer] = field(default_factory=list)
    conversation: Conversation | None = None

    def __post_init__(self) -> None:
        self._session = object()
        self._seeds = itertools.count(self.seed)

    def reset(self) -> None:
        """Forget all that was said."""
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
    ) -> Answer:
        """Say something; the answer is shown piece by piece as it comes.

        Where it calls tools, the calls are carried out and shown, and the model answers again.
        Ctrl-C ends the answer where it is.
        """
        conversation = self._heard(text)
        for _ in range(MOST_ROUNDS):
            answer = self._answer(conversation, show)
            if self.tools is None or answer.reason is not FinishReason.STOP:
                break
            start, end = conversation.stream.turns[-1]
            keep = self.tools.parser.special_tokens
            said = self.format.decode(conversation.stream.ids[start:end], keep)
            try:
                results = self.tools.carry_out(said, show_call)
            except KeyboardInterrupt:
                return dataclasses.replace(answer, reason=FinishReason.ABORTED)
            if not results:
                break
            conversation.add(results)
        return answer

    def _answer(self, conversation: Conversation, show: Callable[[str], None]) -> Answer:
        """Sample one turn."""
        ids: list[int] = []
        log_probs: list[float] = []
        started = time.monotonic()

        async def answer() -> FinishReason:
            reason, num_shown = None, 0
            while reason is None:
                result = await self.engine.sample(self._request(conversation, ids))
                ids.extend(result.ids)
                log_probs.extend(result.log_probs)
                reason = self._ending(result, ids)
                visible = self._visible(ids, is_over=reason is not None)
                show(visible[num_shown:])
                num_shown = len(visible)
            return reason

        try:
            reason = asyncio.run(answer())
        # asyncio makes the second of a Ctrl-C that comes just as the loop begins.
        except (KeyboardInterrupt, asyncio.CancelledError):
            reason = FinishReason.ABORTED
        conversation.answer(ids, log_probs)
        self.answers.append(Answer(len(ids), time.monotonic() - started, reason))
        return self.answers[-1]

    def _heard(self, text: str) -> Conversation:
        message: Message = {"role": "user", "content": text}
        if self.conversation is not None:
            self.conversation.add([message])
            return self.conversation
        opening: list[Message] = [message]
        if self.tools is not None:
            opening = self.tools.opening(self.system, text)
        elif self.system is not None:
            opening.insert(0, {"role": "system", "content": self.system})
        tools = None if self.tools is None else self.tools.for_template
        self.conversation = Conversation(self.format, opening, tools)
        return self.conversation

    def _request(self, conversation: Conversation, ids: Sequence[int]) -> GenerationRequest:
        return GenerationRequest(
            [*conversation.stream.ids, *ids],
            min(NUM_TOKENS_AT_ONCE, self.max_tokens - len(ids)),
            self.sampling,
            stop_ids=self.format.stop_ids,
            stop_strings=self.format.stop_strings,
            seed=next(self._seeds),
            session=self._session,
        )

    def _ending(self, result: GenerationResult, ids: Sequence[int]) -> FinishReason | None:
        """Why the answer is over; None if there is more to come."""
        if result.finish_reason is not FinishReason.LENGTH:
            return result.finish_reason
        if self.format.stop_strings and self._cut(text := self.format.decode(ids)) != text:
            return FinishReason.STOP  # one that lies across two pieces
        return FinishReason.LENGTH if len(ids) >= self.max_tokens else None

    def _visible(self, ids: Sequence[int], is_over: bool) -> str:
        """What can be shown: no end of turn, no half of a character whose rest is to come."""
        text = self._cut(self.format.decode(ids)).lstrip()
        return text if is_over else text.rstrip("\ufffd")

    def _cut(self, text: str) -> str:
        for stop in self.format.stop_strings:
            text = text.partition(stop)[0]
        return text
