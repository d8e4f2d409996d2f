"""One agent of an episode: its conversation with the engine, and those that its tools hold."""

import contextlib
import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from turnwise.chat import ChatFormat, Conversation, ConversationTree, Message
from turnwise.chat.format import with_thought
from turnwise.chat.tree import SampledTurn, StreamPlaces
from turnwise.episode.engine_sessions import EngineSession, EngineSessions, new_session
from turnwise.episode.messages import TemplateWriter
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.sampling import sample_turn, too_slow
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.errors import ConfigError, ToolError
from turnwise.inference import FinishReason
from turnwise.tools import ToolDefinition, answer_of, get_parser
from turnwise.tools.thoughts import read_thought

_LOG = logging.getLogger("turnwise")
_COMPARED: weakref.WeakSet[ChatFormat] = weakref.WeakSet()
"""The formats of which a conversation was compared with the template's own rendering."""


class Agent:
    """A conversation with the engine; `record` is its result."""

    def __init__(
        self, setup: EpisodeSetup, name: str = "agent", seeds: tuple[int, ...] = ()
    ) -> None:
        self.record = AgentRecord(name)
        self.conversation: Conversation | None = None
        self.unplaced_reward = 0.0
        """Reward earned before the first turn, by actions of other agents."""
        self._setup = setup
        self._seeds = "/".join(map(str, (setup.seed, *seeds, name)))
        self._session = EngineSession(new_session())
        """Until the first turn of a branch was sampled, it names the session before."""
        self._tools: list[Mapping[str, Any]] | None = None
        """The tools as the template writes them; None if it writes none."""
        self._sub_agents: SubAgents | None = None

    def start(
        self, messages: Sequence[Message], definitions: Sequence[ToolDefinition] = ()
    ) -> None:
        """Starts the conversation with the initial prompt and the tools."""
        if definitions and self._setup.messages.supports_tools:
            self._tools = [definition.to_openai() for definition in definitions]
        self.conversation = Conversation(self._setup.chat, messages, self._tools)
        self.record.stream = self.conversation.stream
        self.record.messages = list(messages)

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Appends what follows the last turn: an observation, tool results."""
        conversation = self.conversation
        assert conversation is not None
        self.record.messages += messages
        if self._setup.thoughts == "keep":
            conversation.add(messages)
            return
        # The template decides about thoughts, so that it gets those of the model's turns apart.
        history = list(conversation.history)
        num_initial = sum(m["role"] == "assistant" for m in conversation.initial)
        spoken = [n for n, m in enumerate(history) if m["role"] == "assistant"][num_initial:]
        turns = [turn for turn in self.record.turns if turn.kind != "sub_agent"]
        for number, turn in zip(spoken, turns[-len(spoken) :], strict=True):
            answer = answer_of(turn.text, in_thought=turn.in_thought)
            thought = read_thought(turn.text, in_thought=turn.in_thought)
            history[number] = with_thought(self._setup.chat.template, answer, thought)
        num_shared = conversation.add_as_template(messages, history)
        if num_shared is not None:
            self._begin_branch(num_shared)

    def must_summarise(self, messages: Sequence[Message]) -> bool:
        """Whether these messages would make the context longer than `max_context_tokens`."""
        limit = self._setup.limits.max_context_tokens
        if limit is None or self.conversation is None:
            return False
        num_new = len(self.conversation.increment_ids(messages))
        return self.record.stream.path_length + num_new > limit

    def restart(self, text: str) -> None:
        """Continues from the initial prompt and this text, in a branch of the stream."""
        assert self.conversation is not None
        self._begin_branch(self.conversation.restart(text))
        self.record.messages.append(self.conversation.messages[-1])

    def _begin_branch(self, num_shared: int) -> None:
        self._session = EngineSession(new_session(), (self._session.name, num_shared))

    @property
    def tokens_left(self) -> int:
        """How many tokens the conversation may still get."""
        return self._setup.max_tokens - self.record.stream.path_length

    async def sample_turn(
        self, timeout: float | None, keep: Collection[str] = (), max_tokens: int | None = None
    ) -> TurnRecord:
        """Samples the next turn, of at most as many tokens as are left."""
        setup, stream = self._setup, self.record.stream
        most = max_tokens or setup.limits.max_tokens_per_turn
        seed = derive_seed(self._seeds, len(stream.turns))
        request = setup.request(list(stream.path), [most], seed, timeout, self._session)
        in_thought = setup.chat.begins_in_thought(request.prompt_ids)
        result = await sample_turn(setup, request)
        if self._session.branch_of is not None:
            setup.engine.end_session(self._session.branch_of[0])
            self._session = EngineSession(self._session.name)
        assert self.conversation is not None
        text = self.conversation.answer(
            result.ids, result.log_probs, result.inserted, (*keep, *setup.chat.thought_marks)
        )
        turn = result.record(text, in_thought=in_thought)
        self.record.add_turn(turn, stream.turns[-1])
        return turn

    async def ask(
        self, messages: Sequence[Message], max_tokens: int | None, timeout: float | None
    ) -> str:
        """Samples the answer to a tool that asks, in a conversation of its own."""
        if self._sub_agents is None:
            self._sub_agents = SubAgents(self._setup, self.record, self._seeds)
        return await self._sub_agents.ask(messages, max_tokens, timeout)

    def place_sub_agents(self) -> Exception | None:
        """Appends what tools have asked for to the record; returns what the engine raised."""
        if self._sub_agents is None:
            return None
        self._sub_agents.place()
        return self._sub_agents.failure

    def warn_of_difference(self) -> None:
        """Logs where the template would write the conversation differently, once per format."""
        chat, stream = self._setup.chat, self.record.stream
        is_plain = self._setup.thoughts == "keep" and not stream.branches
        if not is_plain or len(stream.turns) < 2 or chat in _COMPARED:
            return
        sampled = (stream.ids[start : end - 1] for start, end in stream.turns)
        is_broken = any("\ufffd" in turn.text for turn in self.record.turns)
        if is_broken or any(map(chat.control.special.intersection, sampled)):
            return  # untrained models sample special tokens and broken characters
        assert self.conversation is not None
        _COMPARED.add(chat)
        ids = chat.with_template_ends(stream.ids, stream.turns)
        with contextlib.suppress(ConfigError):  # some templates take messages only one by one
            difference = chat.difference(self.conversation.messages, ids, self._tools)
            if difference is not None:
                _LOG.warning(
                    "The chat template is not append-only: %s. Training keeps the tokens as they "
                    "were sampled; a server that renders the whole conversation again will see "
                    "the other.",
                    difference,
                )

    def close(self) -> None:
        """Ends the session, so that the engine can free its cache."""
        if self._sub_agents is not None:
            self._sub_agents.sessions.close()
        if self._session.branch_of is not None:
            self._setup.engine.end_session(self._session.branch_of[0])
        self._setup.engine.end_session(self._session.name)


class SubAgents:
    """The conversations that the tools of one agent hold; owned by the event loop of the episode.

    Their turns are sampled as the agent's own. They become branches of the agent's stream when the
    turn whose tools asked for them was carried out.
    """

    def __init__(self, setup: EpisodeSetup, record: AgentRecord, seeds: str) -> None:
        self._setup = setup
        self._record = record
        self._seeds = seeds
        parser = setup.parser
        if isinstance(parser, str):
            parser = get_parser(parser, template=setup.chat.template)
        self._tree = ConversationTree(TemplateWriter(setup.messages, parser), "keep")
        self._places = StreamPlaces(record.stream)
        self.sessions = EngineSessions(setup.engine)
        self._waiting: dict[SampledTurn, TurnRecord] = {}
        """Turns that are not in the stream yet."""
        self.failure: Exception | None = None
        """What the engine raised, if it did: the episode fails, whatever the tool makes of it."""

    async def ask(
        self, messages: Sequence[Message], max_tokens: int | None, timeout: float | None
    ) -> str:
        """Samples the answer to these messages; returns it without its thoughts."""
        setup = self._setup
        prompt = self._tree.match(messages)
        with self.sessions.opened(prompt, self._tree) as session:
            try:
                prompt.encode(self._tree.writer)
            except ConfigError as error:
                raise ToolError(f"the template cannot write these messages: {error}") from error
            if len(prompt.ids) >= setup.max_tokens:
                raise ToolError(
                    f"the messages have {len(prompt.ids)} tokens, and a conversation may have "
                    f"{setup.max_tokens} (limits.max_tokens)"
                )
            most = (max_tokens, setup.limits.max_tokens_per_turn)
            seed = derive_seed(self._seeds, "sub-agent", prompt.key)
            request = setup.request(prompt.ids, most, seed, timeout, session)
            try:
                result = await sample_turn(setup, request)
                if result.finish_reason is FinishReason.DEADLINE:
                    raise too_slow(timeout)
            except Exception as error:
                self.failure = error
                raise
        text = setup.chat.decode(result.ids, setup.chat.thought_marks)
        in_thought = setup.chat.begins_in_thought(prompt.ids)
        answer = answer_of(text, in_thought=in_thought)
        reply = {"role": "assistant", "content": answer}
        turn = self._tree.add(prompt, result.ids, result.log_probs, reply, result.inserted)
        self.sessions.add(session, turn)
        self._waiting[turn] = result.record(text, kind="sub_agent", in_thought=in_thought)
        return answer

    def place(self) -> None:
        """Appends the new turns to the agent's record, each with the messages that it answers."""
        stream = self._record.stream
        after = len(stream)
        for turn in sorted(self._waiting, key=lambda turn: turn.order):
            self._record.add_turn(self._waiting[turn], self._places.add(turn), turn.messages)
        self._waiting.clear()
        stream.begin_branch(after)  # the agent's own conversation continues
