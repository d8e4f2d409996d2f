"""The conversations of one episode as a tree of token streams.

An agent that owns its loop sends the whole list of messages with each request, and may change it:
it edits or drops messages, summarises them, retries, forks, calls in parallel. A request is matched
with what the episode has seen. Where it continues a turn that was sampled here, it continues that
turn's exact tokens; nothing that was sampled is rendered or encoded again. Where it differs, a
branch begins after the last sampled turn that both have in common.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from turnwise.chat.rendering import Message, Tools
from turnwise.chat.stream import TokenStream, common_length

ThoughtPolicy: TypeAlias = Literal["as_sent", "keep"]
"""What becomes of a turn's thoughts when the agent sends its message back without them. `as_sent`:
the message was changed, and a branch begins that has it without thoughts, as a server would render
it. `keep`: the thoughts stay in the context, and the conversation only grows."""


class MessageWriter(Protocol):
    """Messages into tokens; a `ChatFormat` is one."""

    def prompt_ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]: ...

    def increment_ids(
        self, messages: Sequence[Message], turn_ids: Sequence[int], history: Sequence[Message] = ()
    ) -> list[int]: ...


@dataclass(eq=False)
class SampledTurn:
    """One turn of the policy, and the tokens between it and the turn before."""

    parent: SampledTurn | None
    """The turn that it follows; None at the beginning of a conversation."""
    messages: Sequence[Message]
    """The messages that were new in its request."""
    context_ids: Sequence[int]
    """Their tokens, from the end of `parent` to where the policy began."""
    ids: Sequence[int]
    log_probs: Sequence[float]
    inserted: tuple[int, int] | None
    """The span of `ids` that was not sampled, if there is one: see `TokenStream.add_turn`."""
    reply: Message
    """The message as the agent received it."""
    num_tokens: int
    """Tokens of the conversation up to the end of this turn."""
    order: tuple[int, int, bytes, int]
    """Place in the stream: the same for the same requests, in whichever order parallel ones came
    back."""

    def conversation_ids(self) -> list[int]:
        """All tokens up to the end of this turn, as the engine had them."""
        turns: list[SampledTurn] = []
        turn: SampledTurn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return [i for turn in reversed(turns) for ids in (turn.context_ids, turn.ids) for i in ids]


@dataclass(eq=False)
class TreePrompt:
    """What the engine is asked to continue, for one request."""

    parent: SampledTurn | None
    history: Sequence[Message]
    """The messages up to the end of `parent`."""
    messages: Sequence[Message]
    """The messages that are new."""
    tools: Sequence[Mapping[str, Any]]
    digest: bytes
    """Of the messages: two requests with the same ones have the same."""
    wave: int
    """Requests that were under way together have the same number."""
    repeat: int
    """How many requests with the same messages came before."""
    context_ids: Sequence[int] = ()
    """The tokens of the new messages, once they are encoded."""
    ids: Sequence[int] = ()
    """The whole conversation, from its first token."""

    def encode(self, writer: MessageWriter) -> None:
        """Encode what is new. This changes nothing else, so that a thread may do it.

        Raises ConfigError for messages that the chat template cannot write.
        """
        if self.parent is None:
            before: list[int] = []
            context = writer.prompt_ids(self.messages, self.tools or None)
        else:
            before = self.parent.conversation_ids()
            context = writer.increment_ids(self.messages, self.parent.ids, self.history)
        self.context_ids, self.ids = context, before + context

    @property
    def key(self) -> str:
        """Names the request within its episode, for its random seed."""
        return f"{self.digest.hex()}/{self.repeat}"


@dataclass
class ConversationTree:
    """Every conversation of one agent in one episode; owned by the loop that serves it."""

    writer: MessageWriter
    thoughts: ThoughtPolicy = "as_sent"
    turns: list[SampledTurn] = field(default_factory=list)
    """In the order in which they were sampled."""
    _known: dict[bytes, list[SampledTurn]] = field(default_factory=dict)
    _requests: Counter[bytes] = field(default_factory=Counter)
    _under_way: int = 0
    _wave: int = 0

    def match(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> TreePrompt:
        """Find what these messages continue; `encode` the prompt, then `add` or `cancel` it."""
        digest = _digest(b"", tools)
        parent = None
        num_common = 0
        for number, message in enumerate(messages, 1):
            digest = _digest(digest, self._key(message))
            if message.get("role") == "assistant" and digest in self._known:
                parent, num_common = _same_calls(self._known[digest], message), number
        if self._under_way == 0:
            self._wave += 1
        self._under_way += 1
        repeat = self._requests[digest]
        self._requests[digest] += 1
        history, new = messages[:num_common], messages[num_common:]
        return TreePrompt(parent, history, new, tools, digest, self._wave, repeat)

    def add(
        self,
        prompt: TreePrompt,
        ids: Sequence[int],
        log_probs: Sequence[float],
        reply: Message,
        inserted: tuple[int, int] | None = None,
    ) -> SampledTurn:
        """Keep a turn as it was sampled; `reply` is the message that the agent gets for it."""
        self._under_way -= 1
        parent = prompt.parent
        depth = 0 if parent is None else parent.order[1] + 1
        turn = SampledTurn(
            parent,
            prompt.messages,
            prompt.context_ids,
            ids,
            log_probs,
            inserted,
            reply,
            len(prompt.ids) + len(ids),
            (prompt.wave, depth, prompt.digest, prompt.repeat),
        )
        self.turns.append(turn)
        self._known.setdefault(_digest(prompt.digest, self._key(reply)), []).append(turn)
        return turn

    def cancel(self, prompt: TreePrompt) -> None:
        """Forget a request that got no turn."""
        self._under_way -= 1

    def forget(self, turns: Sequence[SampledTurn]) -> None:
        """Drop turns that no request will continue, for a server that runs for long.

        Turns that follow them keep their tokens.
        """
        gone = set(turns)
        self.turns = [turn for turn in self.turns if turn not in gone]
        known = {d: [turn for turn in same if turn not in gone] for d, same in self._known.items()}
        self._known = {digest: same for digest, same in known.items() if same}
        kept = {turn.order[2] for turn in self.turns}
        self._requests = Counter({d: n for d, n in self._requests.items() if d in kept})

    def in_order(self) -> list[SampledTurn]:
        """The turns in the order of the stream: parents first, then by time."""
        return sorted(self.turns, key=lambda turn: turn.order)

    def stream(self) -> TokenStream:
        """All turns as one stream with branches: every sampled token stands in it once."""
        stream = TokenStream()
        writer = StreamPlaces(stream)
        for turn in self.in_order():
            writer.add(turn)
        return stream

    def _key(self, message: Message) -> list[Any]:
        """What must be equal for two messages to be the same."""
        role, content = message.get("role"), message.get("content") or ""
        if role != "assistant":
            return [role, content, message.get("name") or ""]
        calls = [_call_key(call) for call in message.get("tool_calls") or ()]
        thought = (message.get("reasoning_content") or "") if self.thoughts == "as_sent" else ""
        # Clients strip white space around an answer; its tokens are those that were sampled.
        return [role, str(content).strip(), calls, thought.strip()]


class StreamPlaces:
    """Adds turns of a tree to a stream, parents first, and knows where they stand in it."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream
        self._ends: dict[SampledTurn | None, int] = {None: 0}
        self._siblings: dict[SampledTurn | None, list[tuple[Sequence[int], list[int]]]] = {}
        """The contexts that follow a turn, and where each token of them stands in the stream."""

    def add(self, turn: SampledTurn) -> tuple[int, int]:
        """Append a turn, in a branch unless it follows the last token; return its span."""
        stream = self._stream
        known = self._siblings.setdefault(turn.parent, [])
        shared: list[int] = []
        for ids, places in known:
            num_shared = common_length(ids, turn.context_ids)
            if num_shared > len(shared):
                shared = places[:num_shared]
        stream.begin_branch(shared[-1] + 1 if shared else self._ends[turn.parent])
        start = len(stream)
        stream.add_context(turn.context_ids[len(shared) :])
        known.append((turn.context_ids, [*shared, *range(start, len(stream))]))
        stream.add_turn(turn.ids, turn.log_probs, turn.inserted)
        self._ends[turn] = len(stream)
        return stream.turns[-1]


def _call_key(call: Mapping[str, Any]) -> list[Any]:
    """A tool call without its id; its arguments as values, since clients format JSON anew."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]


def _digest(before: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(before + text.encode(), digest_size=16).digest()


def _same_calls(turns: Sequence[SampledTurn], message: Message) -> SampledTurn:
    """Of turns with equal replies, the one with the same ids of its calls; else the latest."""
    wanted = [call.get("id") for call in message.get("tool_calls") or ()]
    for turn in turns if wanted else ():
        if wanted == [call.get("id") for call in turn.reply.get("tool_calls") or ()]:
            return turn
    return turns[-1]
