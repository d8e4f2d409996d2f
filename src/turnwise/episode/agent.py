"""One agent in one episode: what it has heard, and how it is asked to speak."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Collection, Sequence

from turnwise.chat import Conversation, Message
from turnwise.chat.stream import Prefix
from turnwise.deadlines import Abandonable, time_limit
from turnwise.episode.seeds import derive_seed
from turnwise.episode.setup import EpisodeSetup
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.errors import ConfigError, DeadlineExceeded, TurnwiseError
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult
from turnwise.tools import ToolDefinition
from turnwise.tools.thoughts import opens_thought

# A server may be shared by processes: the name of a conversation must be nobody else's.
_PROCESS = uuid.uuid4().hex[:12]
_NUMBERS = itertools.count()

# An engine ends a turn in time by itself; this is for one that does not.
_GRACE_SECONDS = 10.0


# More tokens than the opening tag of a thought and the space after it can have.
_NUM_OPENING = 12


class EngineFault(TurnwiseError, RuntimeError):
    """An engine gave what cannot be a turn."""


class Agent:
    """A conversation with the engine; `record` is what is left of it."""

    def __init__(
        self, setup: EpisodeSetup, name: str = "agent", seeds: tuple[int, ...] = ()
    ) -> None:
        self.record = AgentRecord(name)
        self.conversation: Conversation | None = None
        self.unplaced_reward = 0.0
        """Earned before the first turn, by what others did."""
        self._setup = setup
        length, limit = setup.engine.context_length, setup.limits.max_tokens
        self._most_tokens = length if limit is None else min(length, limit)
        self._seeds = "/".join(map(str, (setup.seed, *seeds, name)))
        self._session = f"turnwise-{_PROCESS}-{next(_NUMBERS)}"

    def open(self, messages: Sequence[Message], definitions: Sequence[ToolDefinition] = ()) -> None:
        """Begin the conversation."""
        tools = None
        if definitions and self._setup.abilities.takes_tools:
            tools = [definition.to_openai() for definition in definitions]
        self.conversation = Conversation(self._setup.chat, messages, tools)
        self.record.stream = self.conversation.stream
        self.record.messages = self.conversation.messages

    def hear(self, messages: Sequence[Message]) -> None:
        """What the world said to the last turn."""
        assert self.conversation is not None
        self.conversation.add(messages)

    @property
    def room(self) -> int:
        """Tokens that its stream may still get."""
        return self._most_tokens - len(self.record.stream)

    async def speak(
        self,
        timeout: float | None,
        keep: Collection[str] = (),
        max_tokens: int | None = None,
    ) -> TurnRecord:
        """Sample the next turn, of at most as many tokens as there is room for."""
        setup, stream = self._setup, self.record.stream
        most = max_tokens or setup.limits.max_tokens_per_turn
        request = GenerationRequest(
            Prefix(stream.ids),
            self.room if most is None else min(self.room, most),
            setup.sampling,
            stop_ids=setup.chat.stop_ids,
            stop_strings=setup.chat.stop_strings,
            seed=derive_seed(self._seeds, len(stream.turns)),
            timeout=timeout,
            session=self._session,
        )
        result = await _sample(setup, request)
        _check(result)
        stream.add_turn(result.ids, result.log_probs)
        text = setup.chat.decode(result.ids, (*keep, *setup.thought_marks))
        self.record.messages.append({"role": "assistant", "content": text})
        turn = TurnRecord(stream.turns[-1], text, result.finish_reason, result.weight_version)
        turn.in_thought = self._begins_in_thought(turn)
        self.record.turns.append(turn)
        return turn

    def _begins_in_thought(self, turn: TurnRecord) -> bool:
        if not self._setup.may_open_thought:
            return False
        begin = turn.tokens[0]
        before = list(self.record.stream.ids[max(0, begin - _NUM_OPENING) : begin])
        decoded = self._setup.chat.tokenizer.decode(before, skip_special_tokens=False)
        return opens_thought(str(decoded))

    def tell_difference(self) -> None:
        """Log where the template would write the conversation otherwise, if it would."""
        if self.conversation is None or len(self.record.turns) < 2:
            return
        try:
            self.conversation.tell_difference()
        except ConfigError:  # a template that takes the messages only one by one
            return

    def close(self) -> None:
        """The engine need not keep anything for it."""
        self._setup.engine.end_session(self._session)


async def _sample(setup: EpisodeSetup, request: GenerationRequest) -> GenerationResult:
    limit = None if request.timeout is None else request.timeout + _GRACE_SECONDS
    try:
        async with time_limit(limit) as deadline:
            try:
                return await Abandonable(setup.engine.sample(request), "the engine", deadline)
            finally:
                if not deadline.expired():
                    setup.waits.silence.end()
    except TimeoutError:
        if not deadline.expired():
            raise  # the engine's own, such as a socket's
    setup.waits.silence.give_up()
    raise too_slow(limit)


def too_slow(limit: float | None) -> DeadlineExceeded:
    """A turn for which the engine took longer than it may."""
    return DeadlineExceeded(
        f"the engine took longer than {limit:g} s for a turn. Lower inference.max_tokens, or raise "
        "limits.generation_timeout."
    )


def _check(result: GenerationResult) -> None:
    if result.finish_reason is FinishReason.ABORTED:
        raise EngineFault("the engine called the turn off; was it closed?")
    if not result.ids:
        raise EngineFault(f"the engine gave a turn without tokens ({result.finish_reason})")
    if not math.isfinite(sum(result.log_probs)):
        raise EngineFault("the engine gave log-probs that are not finite")
