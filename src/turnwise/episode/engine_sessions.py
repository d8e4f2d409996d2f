"""Which of the engine's sessions holds the KV cache of which turn of an agent."""

import contextlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from turnwise.chat.tree import ConversationTree, SampledTurn, TreePrompt
from turnwise.inference.base import BaseInferenceEngine

# Processes may share a server, so that the name of a session must be unique to this one.
_PROCESS = uuid.uuid4().hex[:12]
_NUMBERS = itertools.count()


def new_session() -> str:
    """Return the name of a new session."""
    return f"turnwise-{_PROCESS}-{next(_NUMBERS)}"


@dataclass(frozen=True)
class EngineSession:
    """A session of the engine: one conversation, whose KV cache it may keep."""

    name: str
    branch_of: tuple[str, int] | None = None
    """The session that it begins as, and how many tokens of it."""


class EngineSessions:
    """The engine's sessions of one tree of conversations: each branch has its own.

    `most_kept` limits them: the ones that were not used for longest end first. None keeps all.
    """

    def __init__(self, engine: BaseInferenceEngine, most_kept: int | None = None) -> None:
        self._engine = engine
        self._most_kept = most_kept
        self._turns: dict[str, list[SampledTurn]] = {}
        """The turns that each session sampled."""
        self._sampled_by: dict[SampledTurn, str] = {}
        self._idle: dict[str, SampledTurn] = {}
        """The last turn of each session that no request continues; the least recent first."""

    def __len__(self) -> int:
        return len(self._turns)

    @contextlib.contextmanager
    def opened(self, prompt: TreePrompt, tree: ConversationTree) -> Iterator[EngineSession]:
        """Open the session that continues a prompt; if it gets no turn, nothing is left of both."""
        session = self._open(prompt.parent)
        try:
            yield session
        except BaseException:  # a cancellation too must leave nothing
            tree.cancel(prompt)
            turns = self._turns[session.name]
            if turns:
                self._idle[session.name] = turns[-1]
            else:
                self._end(session.name)
            raise

    def _open(self, parent: SampledTurn | None) -> EngineSession:
        """Continue the session of the parent turn, unless another request already does."""
        source = None if parent is None else self._sampled_by.get(parent)
        if source is not None and self._idle.get(source) is parent:
            del self._idle[source]
            return EngineSession(source)
        name = new_session()
        self._turns[name] = []
        if source is None or parent is None:
            return EngineSession(name)
        return EngineSession(name, (source, parent.num_tokens))

    def add(self, session: EngineSession, turn: SampledTurn) -> list[SampledTurn]:
        """Keep the turn that a session has sampled; return the turns of sessions that end."""
        self._turns[session.name].append(turn)
        self._sampled_by[turn] = session.name
        self._idle[session.name] = turn
        ended: list[SampledTurn] = []
        while self._most_kept is not None and len(self._turns) > max(1, self._most_kept):
            oldest = next(iter(self._idle))
            if oldest == session.name:  # all others are in use
                break
            ended += self._end(oldest)
        return ended

    def close(self) -> None:
        """Free what the engine has kept."""
        for name in list(self._turns):
            self._end(name)

    def _end(self, name: str) -> list[SampledTurn]:
        self._idle.pop(name, None)
        turns = self._turns.pop(name)
        for turn in turns:
            del self._sampled_by[turn]
        self._engine.end_session(name)
        return turns
