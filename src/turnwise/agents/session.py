"""One agent's calls of the model in one episode: exact tokens, budgets, sampling."""

import asyncio
import hashlib
import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.agents.live import LiveText
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, Delta, check_messages
from turnwise.chat import ChatFormat, ConversationTree, Message
from turnwise.chat.tree import MessageWriter, SampledTurn, ThoughtPolicy, TreePrompt
from turnwise.episode.engine_sessions import EngineSession, EngineSessions
from turnwise.episode.messages import MessageBuilder, TemplateWriter, tool_definition
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.sampling import TurnTokens, sample_turn, too_slow
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import TurnRecord
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import ConfigError, ToolError
from turnwise.inference import FinishReason
from turnwise.tools import ToolCall, answer_of, get_parser
from turnwise.tools.thoughts import read_thought
from turnwise.types import EpisodeStatus

_RESPONSES_PER_CONVERSATION = 16
_MOST_CHARACTERS_PER_TOKEN = 100
_LONG_TEXT = 8192
"""Characters that take some milliseconds to encode, for which other episodes would wait."""


class AgentSession:
    """Serves the requests of one agent; owned by the event loop of its gateway.

    Training samples with the run's own parameters, whatever a request asks for: the loss compares
    with the distribution that was sampled from. `honours_sampling` is for serving, and so is
    `max_conversations`: of more, the ones that were not continued for longest are forgotten.
    """

    def __init__(
        self,
        setup: EpisodeSetup,
        *,
        seeds: Sequence[object] = (),
        thoughts: ThoughtPolicy = "as_sent",
        honours_sampling: bool = False,
        max_conversations: int | None = None,
    ) -> None:
        self._setup = setup
        template = setup.chat.template
        parser = setup.parser
        self._parser = get_parser(parser, template=template) if isinstance(parser, str) else parser
        self._marks = (*self._parser.special_tokens, *setup.chat.thought_marks)
        """Special tokens that the text of a turn keeps: those of calls and thoughts."""
        self.tree = ConversationTree(TemplateWriter(setup.messages, self._parser), thoughts)
        self.records: dict[SampledTurn, TurnRecord] = {}
        """What is known of each turn besides its tokens and its place among the others."""
        self.responses: dict[str, Sequence[Message]] = {}
        """Conversations by the id of the response that ended them, for OpenAI's responses."""
        self.exhausted: EpisodeStatus | None = None
        """The limit that a request ran into, if one did."""
        self.failure: Exception | None = None
        """What the engine raised, if it did: the episode fails, whatever the agent makes of it."""
        self._timer = EpisodeTimer(setup.waits, setup.limits.max_seconds)
        self._seeds = "/".join(map(str, (setup.seed, *seeds)))
        self._honours_sampling = honours_sampling
        self._max_conversations = max_conversations
        self.engine_sessions = EngineSessions(setup.engine, max_conversations)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Replies that are being sampled."""
        self._is_closed = False

    async def complete(
        self, request: ChatRequest, on_delta: Callable[[Delta], None] | None = None
    ) -> list[ChatReply]:
        """Sample the replies to a request. Cancelling it leaves no trace in the tree.

        When serving, `on_delta` gets the text of a single reply while it is sampled. In training a
        reply is sampled whole before any of it is sent: otherwise it would depend on time whether
        the turn of a client that hangs up is part of the episode.

        Raises ApiError for a request that cannot be served, as the APIs do.
        """
        if self._is_closed:
            raise ApiError("the episode has ended", status=401, code="invalid_api_key")
        check_messages(request.messages)
        most = self._setup.limits.turn_limit(None)
        # A request that was refused or cancelled has no turn, and costs none.
        num_under_way = sum(not task.done() for task in self._tasks)
        if len(self.tree.turns) + num_under_way + request.num_replies > most:
            raise self._exhausted(
                EpisodeStatus.TRUNCATED_BY_TURNS, f"have {most} turns (limits.max_turns)"
            )
        self._check_time()
        if not self._honours_sampling or request.num_replies > 1 or request.wants_log_probs:
            on_delta = None
        tasks = [
            asyncio.ensure_future(self._reply(request, number, on_delta))
            for number in range(request.num_replies)
        ]
        self._tasks.update(tasks)
        for task in tasks:  # by itself: this call may be cancelled while it waits for its end
            task.add_done_callback(self._tasks.discard)
        try:
            replies = list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if request.response_id is not None:
            before = request.messages[1:] if request.has_instructions else request.messages
            self.responses[request.response_id] = [*before, replies[0].message]
            if self._max_conversations is not None:
                while len(self.responses) > self._max_conversations * _RESPONSES_PER_CONVERSATION:
                    del self.responses[next(iter(self.responses))]
        return replies

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the tokens of a request's prompt, rendered from its messages."""
        check_messages(request.messages)
        prompt = ConversationTree(self.tree.writer).match(request.messages, request.tools)
        await self._encode(prompt, request)
        return len(prompt.ids)

    async def close(self) -> None:
        """End what is under way, refuse what comes later, and free what the engine has kept."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self.engine_sessions.close()

    def _exhausted(self, status: EpisodeStatus, limit: str) -> ApiError:
        self.exhausted = status
        return ApiError(
            f"You exceeded your current quota: this episode may {limit}.",
            status=429,
            code="insufficient_quota",
        )

    def _check_time(self) -> None:
        if self._timer.is_over:
            seconds = self._setup.limits.max_seconds
            raise self._exhausted(
                EpisodeStatus.TRUNCATED_BY_TIME, f"take {seconds:g} seconds (limits.max_seconds)"
            )

    def _too_long(self, num_tokens: str) -> ApiError:
        self.exhausted = EpisodeStatus.TRUNCATED_BY_TOKENS
        return ApiError(
            f"This model's maximum context length is {self._setup.max_tokens} tokens. However, "
            f"your messages resulted in {num_tokens} tokens. Please reduce the length of the "
            "messages.",
            code="context_length_exceeded",
            param="messages",
        )

    async def _reply(
        self, request: ChatRequest, number: int, on_delta: Callable[[Delta], None] | None
    ) -> ChatReply:
        """Sample one reply; `number` tells it from the others of the same request."""
        setup = self._setup
        started = self._timer.seconds
        prompt = self.tree.match(request.messages, request.tools)
        with self.engine_sessions.opened(prompt, self.tree) as session:
            await self._encode(prompt, request)
            in_thought = setup.chat.begins_in_thought(prompt.ids)
            live = None
            if on_delta is not None:
                live = LiveText(
                    lambda ids: setup.chat.decode(ids, self._marks),
                    on_delta,
                    num_prompt_tokens=len(prompt.ids),
                    in_thought=in_thought,
                    may_call=bool(request.tools) and request.may_call_tools,
                    stops=(*request.stop, *setup.chat.stop_strings),
                )
            if not self._honours_sampling:
                seed = derive_seed(self._seeds, prompt.key)
            elif request.seed is None:
                seed = secrets.randbits(63)
            else:
                seed = derive_seed(request.seed, number)
            result = await self._sample(request, prompt, session, seed, live)
        text = setup.chat.decode(result.ids, self._marks)
        message, calls = self._read(request, text, in_thought, prompt.key)
        turn = self.tree.add(prompt, result.ids, result.log_probs, message, result.inserted)
        self.records[turn] = result.record(
            text,
            in_thought=in_thought,
            calls=calls,
            seconds={"engine": self._timer.seconds - started},
            started=started,
        )
        if forgotten := self.engine_sessions.add(session, turn):
            self.tree.forget(forgotten)
            for turn in forgotten:
                del self.records[turn]
        reason = "tool_calls" if calls else "stop"
        if not calls and result.finish_reason in (FinishReason.LENGTH, FinishReason.CONTEXT):
            reason = "length"
        reply = ChatReply(message, reason, len(prompt.ids), len(result.log_probs))
        reply.log_probs = result.log_probs
        if request.wants_log_probs:
            decode = setup.chat.tokenizer.decode
            reply.tokens = [str(decode([i], skip_special_tokens=False)) for i in result.sampled_ids]
        return reply

    def _read(
        self, request: ChatRequest, text: str, in_thought: bool, key: str
    ) -> tuple[Message, Sequence[ToolCall]]:
        """Return a turn as a message, and its calls, whose ids derive from `key`."""
        for stop in (*request.stop, *self._setup.chat.stop_strings):
            text = text.partition(stop)[0]
        content = answer_of(text, in_thought=in_thought)
        calls: Sequence[ToolCall] = ()
        if request.tools and request.may_call_tools and content:
            parsed = self._parser.parse(text)
            calls = parsed.calls if request.parallel_tool_calls else parsed.calls[:1]
            if calls:
                content = answer_of(parsed.text, in_thought=in_thought)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thought := read_thought(text, in_thought=in_thought):
            message["reasoning_content"] = thought
        for number, call in enumerate(calls):
            # The id is the same in a run that is repeated.
            name = hashlib.blake2b(f"{key}/{number}".encode(), digest_size=12).hexdigest()
            arguments = _sendable(json.dumps(call.arguments, ensure_ascii=False))
            function = {"name": _sendable(call.name), "arguments": arguments}
            message.setdefault("tool_calls", []).append(
                {"id": f"call_{name}", "type": "function", "function": function}
            )
        return message, calls

    async def _encode(self, prompt: TreePrompt, request: ChatRequest) -> None:
        """Encode a prompt; a long one in a thread, so that the loop serves other episodes."""
        tools = prompt.tools if prompt.parent is None else ()
        num_characters = sum(len(str(entry)) for entry in (*prompt.messages, *tools))
        # One that cannot fit would take gigabytes for nothing.
        if num_characters > _MOST_CHARACTERS_PER_TOKEN * self._setup.max_tokens:
            raise self._too_long(f"more than {self._setup.max_tokens}")
        try:
            for tool in request.tools:
                tool_definition(tool)
            writer = self._writer(request.enable_thinking)
            if num_characters < _LONG_TEXT:
                prompt.encode(writer)
            else:
                await asyncio.to_thread(prompt.encode, writer)
        except (ConfigError, ToolError) as error:
            raise ApiError(str(error), param="messages") from error
        if not prompt.ids:
            raise ApiError("the chat template writes nothing for these messages", param="messages")

    def _writer(self, enable_thinking: bool | None) -> MessageWriter:
        """Return what writes a request's messages; raises ConfigError if the template cannot."""
        chat = self._setup.chat
        if enable_thinking in (None, chat.enable_thinking):
            return self.tree.writer
        if not self._honours_sampling:
            raise ApiError(
                f"chat_template_kwargs.enable_thinking is {enable_thinking}, and this run has "
                f"{chat.enable_thinking} (inference.enable_thinking). Leave it out.",
                param="chat_template_kwargs",
            )
        other = ChatFormat(chat.tokenizer, chat.template, enable_thinking=enable_thinking)
        return TemplateWriter(MessageBuilder(other), self._parser)

    async def _sample(
        self,
        request: ChatRequest,
        prompt: TreePrompt,
        session: EngineSession,
        seed: int,
        live: LiveText | None,
    ) -> TurnTokens:
        setup, limits = self._setup, self._setup.limits
        if len(prompt.ids) >= setup.max_tokens:
            raise self._too_long(f"{len(prompt.ids)}")
        most = (request.max_tokens, limits.max_tokens_per_turn)
        timeout = self._timer.within(limits.generation_timeout)
        generation = setup.request(prompt.ids, most, seed, timeout, session)
        generation.stop_strings += request.stop
        if self._honours_sampling and request.sampling is not None:
            generation.sampling = request.sampling
        if live is not None:
            generation.on_tokens = live.add
        opening = self._opening(request.must_call) if request.must_call else ()
        try:
            turn = await sample_turn(setup, generation, opening)
            if turn.finish_reason is FinishReason.DEADLINE:
                raise too_slow(timeout)
        except Exception as error:
            self._check_time()  # it may have cut the turn
            self.failure = error
            raise ApiError(
                f"the engine failed: {error}", status=500, code="server_error"
            ) from error
        return turn

    def _opening(self, names: Sequence[str]) -> list[int]:
        """Return the tokens with which every call of these tools begins."""
        # What the first and the last name have in common, all names have.
        calls = [ToolCall(n, given) for n in (min(names), max(names)) for given in ({}, {"a": 1})]
        try:
            turns = [self._setup.chat.answer_ids(self._parser.render(call)) for call in calls]
        except (ConfigError, ToolError) as error:
            raise ApiError(str(error), param="tool_choice") from error
        same = itertools.takewhile(lambda ids: len(set(ids)) == 1, zip(*turns, strict=False))
        return [ids[0] for ids in same]


def _sendable(text: str) -> str:
    """Return the text with a replacement character for half a surrogate pair.

    A model can write one as an escape in the JSON of a call, and UTF-8 cannot encode it.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
