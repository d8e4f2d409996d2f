"""Scheduling of the local engine: which turns run, what each forward computes, who holds memory.

The engine's thread calls this before each step. The rules:

- A turn waits until it is admitted; at most `max_batch_size` turns run at once, in the order in
  which they came.
- A forward computes one token of every turn that is decoding, and prompts in chunks: about
  `prefill_tokens` of all prompts together, so that decoding turns do not wait for long.
- A session keeps its KV cache between turns. When memory runs out, idle sessions are evicted, the
  least recently used first; if none is idle, the youngest running turn is preempted. Its tokens are
  computed again later, before any new turn is admitted, so the oldest turn always makes progress.
- A session that branches off another one copies the KV cache of the tokens before the branch.
- Turns with the same prompt wait while the first of them computes it, then copy its cache. Turns
  whose prompts begin alike do so with the common part, if it is at least half of the prompt.
- In batch-invariant mode a forward holds at most `tile` tokens, and an evicted session is computed
  again in the same chunks, so that a turn's bits do not depend on the rest of the batch. Common
  beginnings are shared in whole blocks (`Runner.block`).
"""

from array import array
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch

from turnwise.errors import ConfigError
from turnwise.inference.local.kv_cache import KVCache
from turnwise.inference.worker import EngineTurn

MAX_GRAPH_STEPS = 16
"""Decode steps in the longest burst on a GPU."""
_MAX_PROMPTS = 64
"""Prompts that are cached; the oldest is dropped for a new one."""
BLOCK = 64
"""Tokens between two entries of the prefix index; shorter beginnings are not worth a copy."""
_TOKEN_BYTES = 8
"""Bytes of a token in a prompt's key."""
_STEPS_BETWEEN_SWEEPS = 8
"""Thousands of turns may wait: checking each of them at every step would take too long."""


@dataclass(eq=False)
class Session:
    """Tokens of one conversation, of which the first `num_cached` are computed."""

    key: Hashable | None
    """The caller's key; None for an anonymous session, which ends with its turn."""
    turn: EngineTurn | None = None
    """The turn under way."""
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    region: int | None = None
    """Start of its region in the KV cache."""
    chunk_ends: list[int] = field(default_factory=list)
    """Where each prefill chunk and decode step ended. If the cache is evicted and computed again,
    the same chunks give the same bits; others would round differently."""
    prompt_key: bytes | None = None
    """Key in the index of the prompt that this session was the first to compute."""
    last_used: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.ids) - self.num_cached


def kernel_seed(turn: EngineTurn) -> int:
    """Return a request's seed in the range of the kernels that sample."""
    return turn.request.seed & (2**62 - 1)


class PromptIndex:
    """What sessions have computed of their prompts, for others that begin alike.

    A whole prompt is known with the logits after its last token. Prompts of one task differ late:
    all have the system message and the tools in common. So beginnings are known too, by an entry
    for the first `BLOCK`, 2 · `BLOCK`, ... tokens: the longest common one is found without
    comparing prompts with each other.
    """

    def __init__(self) -> None:
        self.whole: dict[bytes, tuple[Session, torch.Tensor]] = {}
        """By prompt: the session that holds its KV cache, and the logits [V]."""
        self._owners: dict[int, dict[Session, None]] = {}
        """By the hash of a beginning; a dictionary keeps the order, which a set does not."""
        self._entries: dict[Session, list[int]] = {}

    def add(self, session: Session) -> None:
        """Add a session that begins to compute its prompt."""
        self.forget(session)  # a turn that ended before it computed anything
        assert session.prompt_key is not None
        self._entries[session] = _hashes(session.prompt_key)
        for entry in self._entries[session]:
            self._owners.setdefault(entry, {})[session] = None

    def remember(self, session: Session, logits: torch.Tensor) -> None:
        """Keep the logits [V] after a session's whole prompt, if that is where it stands."""
        key = session.prompt_key
        if key is None or len(key) != _TOKEN_BYTES * session.num_cached or key in self.whole:
            return
        if len(self.whole) == _MAX_PROMPTS:
            del self.whole[next(iter(self.whole))]
        self.whole[key] = (session, logits.clone())

    def find_beginning(self, session: Session) -> tuple[Session, int]:
        """Return the session that has most of this one's prompt, and how many tokens it has.

        The last token of a prompt is never counted: its logits are needed.
        """
        assert session.prompt_key is not None
        known = [*takewhile(self._owners.__contains__, _hashes(session.prompt_key))]
        if not known:
            return session, 0
        source = max(self._owners[known[-1]], key=lambda owner: owner.num_cached)
        assert source.prompt_key is not None
        keys = (source.prompt_key, session.prompt_key)
        length = min(map(len, keys)) // _TOKEN_BYTES
        first, second = (np.frombuffer(key, np.int64, length) for key in keys)
        differs = np.flatnonzero(first != second)
        num_common = int(differs[0]) if len(differs) else length
        return source, min(num_common, len(session.ids) - 1)

    def forget(self, session: Session) -> None:
        """Drop a session whose KV cache was evicted."""
        for entry in self._entries.pop(session, ()):
            del self._owners[entry][session]
            if not self._owners[entry]:
                del self._owners[entry]
        key = session.prompt_key
        if key in self.whole and self.whole[key][0] is session:
            del self.whole[key]


def _hashes(key: bytes) -> list[int]:
    """Return a number for each beginning of whole blocks; it takes in the one before it."""
    size, number = BLOCK * _TOKEN_BYTES, 0
    numbers = []
    for start in range(0, len(key) - size + 1, size):
        number = hash((number, key[start : start + size]))
        numbers.append(number)
    return numbers


Work = list[tuple[Session, int]]
"""Sessions, each with how many of its tokens to compute."""


class Schedule:
    """Decides what the engine computes next; owns the sessions and their regions."""

    def __init__(
        self,
        kv_cache: KVCache,
        *,
        max_batch_size: int,
        prefill_tokens: int,
        tile: int | None,
        block: int | None = None,
    ) -> None:
        self.running: list[Session] = []
        """In the order in which they were admitted: the first is never preempted."""
        self.preempted: deque[Session] = deque()
        """Sessions whose cache was taken for older turns; they resume before new turns."""
        self.prompts = PromptIndex()
        self._kv_cache = kv_cache
        self._max_batch_size = max_batch_size
        self._prefill_tokens = prefill_tokens
        self._tile = tile
        """Most tokens of one forward in batch-invariant mode; None: any number."""
        self._block = block or tile or 1
        """Common beginnings are copied in multiples of so many tokens."""
        self.finished: list[tuple[EngineTurn, Exception | None]] = []
        """Turns that have finished, each with its error if it failed; the engine takes them."""
        self._sessions: dict[Hashable, Session] = {}
        self._time = 0
        self.is_deterministic = tile is not None

    def tick(self, waiting: deque[EngineTurn]) -> None:
        """Start a step; every few steps, finish waiting turns that are overdue or cancelled."""
        self._time += 1
        if self._time % _STEPS_BETWEEN_SWEEPS:
            return
        for session in [s for s in self.preempted if s.turn and s.turn.finish_reason()]:
            self.end(session)
        for turn in [turn for turn in waiting if turn.finish_reason()]:
            waiting.remove(turn)
            self.finished.append((turn, None))

    # -- starting and finishing -----------------------------------------------------------------

    def admit(self, waiting: deque[EngineTurn]) -> list[tuple[Session, torch.Tensor]]:
        """Start as many waiting turns as the batch has room for.

        Returns those that can be sampled at once, since their prompt is known, each with the
        logits [V] after it.
        """
        ready: list[tuple[Session, torch.Tensor]] = []
        computing = {s.prompt_key for s in self.running if s.turn is not None and not s.turn.ids}
        most = self._max_batch_size
        # Of the next turn to look at; those before it are postponed. Thousands may wait for a
        # prompt: looking at all of them would take too long.
        index = 0
        while index < min(len(waiting), most) and len(self.running) < most:
            turn = waiting[index]
            if turn.finish_reason():
                del waiting[index]
                self.finished.append((turn, None))
                continue
            session = self._find_session(turn)
            if session.chunk_ends and session.num_cached == 0:
                # It was evicted, and is computed again in its own chunks, which are not those of
                # the same tokens as a new prompt: nothing is copied to it or from it.
                session.prompt_key = None
            elif session.num_cached == 0:
                # Bytes cache their hash, where a tuple would be hashed at every lookup.
                session.prompt_key = array("q", session.ids).tobytes()
                known = self.prompts.whole.get(session.prompt_key)
                if known is not None and self._copy_cache(known[0], session, len(session.ids)):
                    ends = known[0].chunk_ends
                    session.chunk_ends = [cut for cut in ends if cut <= session.num_cached]
                    ready.append((session, known[1]))
                elif session.prompt_key in computing:  # on its way; it will be copied
                    index += 1
                    continue
                elif turn.request.branch_of is not None:
                    self._begin_branch(session, *turn.request.branch_of)
                elif not self._begin_with_prefix(session):
                    index += 1
                    continue
                computing.add(session.prompt_key)
                self.prompts.add(session)
            del waiting[index]
            session.turn = turn
            if session.key is not None:
                self._sessions[session.key] = session
            self.running.append(session)
        return ready

    def resume_preempted(self) -> bool:
        """Resume preempted turns; False while one of them still waits for memory.

        They resume also when no new turn is admitted: a weight update waits for them too.
        """
        while self.preempted and len(self.running) < self._max_batch_size:
            session = self.preempted[0]
            if self.running and not self._make_room(session, len(session.ids) + 1, preempt=False):
                return False
            self.running.append(self.preempted.popleft())
        return not self.preempted

    def _find_session(self, turn: EngineTurn) -> Session:
        key, prompt = turn.request.session, list(turn.request.prompt_ids)
        session = self._sessions.get(key) if key is not None else None
        if session is None or session.turn is not None:  # two turns at once: anonymous
            session = Session(key if session is None else None)
        elif len(prompt) <= session.num_cached or prompt[: len(session.ids)] != session.ids:
            self._evict(session, is_valid=False)  # the prompt does not extend its tokens
        session.ids = prompt
        return session

    def _begin_branch(self, session: Session, key: Hashable, num_tokens: int) -> None:
        """Copy the KV cache of the tokens that a new session has in common with another one.

        In batch-invariant mode the new session computes them in the same chunks as the other one
        did, whether or not they can be copied.
        """
        source = self._sessions.get(key, session)
        # The last token of a turn is computed with what follows it.
        num_tokens = min(num_tokens, len(session.ids), len(source.ids)) - 1
        if source is session or session.ids[:num_tokens] != source.ids[:num_tokens]:
            return
        num_cached = min(num_tokens, source.num_cached)
        if self.is_deterministic:
            session.chunk_ends = [cut for cut in source.chunk_ends if cut <= num_tokens]
            num_cached = max((cut for cut in session.chunk_ends if cut <= num_cached), default=0)
        if num_cached >= 1:
            self._copy_cache(source, session, num_cached)

    def _begin_with_prefix(self, session: Session) -> bool:
        """Copy the KV cache of a beginning that a new session has in common with another one.

        Returns False while the other one still computes it, and it is worth waiting for. In
        batch-invariant mode whole blocks are copied, which have the bits that the session would
        compute itself.
        """
        source, num_tokens = self.prompts.find_beginning(session)
        num_tokens -= num_tokens % self._block
        if not num_tokens:
            return True
        if source.num_cached < num_tokens:
            is_computing = source.turn is not None and source not in self.preempted
            return not is_computing or 2 * num_tokens < len(session.ids)
        in_blocks = all(cut % self._block == 0 for cut in source.chunk_ends if cut < num_tokens)
        if in_blocks and self._copy_cache(source, session, num_tokens) and self._tile is not None:
            session.chunk_ends = [*range(self._tile, num_tokens, self._tile), num_tokens]
        return True

    def _copy_cache(self, source: Session, session: Session, num_tokens: int) -> bool:
        """Copy the first tokens of a cached session to a new one, if there is memory for it."""
        source.last_used = self._time
        if not self._make_room(session, len(session.ids) + 1, preempt=False, keep=source):
            return False
        assert source.region is not None
        assert session.region is not None
        self._kv_cache.copy(source.region, session.region, num_tokens)
        session.num_cached = num_tokens
        return True

    def computed(self, session: Session, num_tokens: int) -> None:
        """Count tokens of a session that are now in the cache."""
        session.num_cached += num_tokens
        session.last_used = self._time
        ends = session.chunk_ends
        if self.is_deterministic and (not ends or ends[-1] < session.num_cached):
            ends.append(session.num_cached)

    def end(self, session: Session, error: Exception | None = None) -> None:
        """Finish a session's turn; if it has a key and no error, it keeps its cache."""
        (self.preempted if session in self.preempted else self.running).remove(session)
        turn, session.turn = session.turn, None
        if session.key is None or error is not None:
            self._evict(session)
        if turn is not None:
            self.finished.append((turn, error))

    def end_session(self, key: Hashable) -> None:
        """Forget a session; if a turn of it is running, after that turn."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.key = None
            if session.turn is None:
                self._evict(session)

    def renew(self, *, keeps_cache: bool) -> None:
        """Prepare for new weights; turns may be running.

        Prompts are always computed by one version. A conversation after its prompt keeps its KV
        cache, or computes it again.
        """
        self.prompts = PromptIndex()
        for session in {*self._sessions.values(), *self.running, *self.preempted}:
            in_prompt = session.turn is not None and not session.turn.ids
            if in_prompt or not keeps_cache:
                self._evict(session, is_valid=False)

    # -- memory -------------------------------------------------------------------------------

    def has_room(self, num_steps: int) -> bool:
        """Return whether every running turn has memory for so many more tokens."""
        return all(
            self._make_room(session, len(session.ids) + num_steps, preempt=False)
            for session in self.running
        )

    def _make_room(
        self, session: Session, num_tokens: int, *, preempt: bool, keep: Session | None = None
    ) -> bool:
        """Grow a session's region to so many tokens; False if there is no memory now.

        Idle sessions are evicted for it, except `keep`.
        """
        if session.region is not None and self._kv_cache.capacity(session.region) >= num_tokens:
            return True
        while (region := self._kv_cache.alloc(num_tokens)) is None:
            others = (s for s in self._sessions.values() if s is not session and s is not keep)
            idle = [s for s in others if s.turn is None and s.region is not None]
            if idle:
                oldest = min(idle, key=lambda other: other.last_used)
                self._evict(oldest)
                if not self.is_deterministic:  # else it must be computed again just as it was
                    self._sessions.pop(oldest.key, None)
            elif not preempt or self.running[-1] is session:
                return False
            else:
                self._preempt(self.running[-1])  # the youngest
        if session.region is not None:
            self._kv_cache.copy(session.region, region, session.num_cached)
            self._kv_cache.free(session.region)
        session.region = region
        return True

    def _preempt(self, session: Session) -> None:
        self._evict(session)
        self.running.remove(session)
        self.preempted.appendleft(session)

    def _evict(self, session: Session, *, is_valid: bool = True) -> None:
        """Free a session's region; valid tokens are computed again as before when needed."""
        if session.region is not None:
            self._kv_cache.free(session.region)
        self.prompts.forget(session)
        session.region = None
        session.num_cached = 0
        if not is_valid:
            session.chunk_ends = []

    # -- what to compute ----------------------------------------------------------------------

    @property
    def is_decoding(self) -> bool:
        """Whether all running turns are decoding, and one forward takes them all."""
        fits = self._tile is None or len(self.running) <= self._tile
        return fits and all(session.num_pending == 1 for session in self.running)

    def next_forwards(self) -> list[Work]:
        """Return the forwards of one step: prompts in chunks, decoding turns a token each."""
        work: Work = []
        budget = self._prefill_tokens
        for session in list(self.running):
            if session in self.preempted or (session.num_pending > 1 and budget <= 0):
                continue
            if session.num_pending > 1 and session.turn and session.turn.finish_reason():
                self.end(session)
            elif self._make_room(session, len(session.ids) + 1, preempt=True):
                # Few tokens more are computed at once: a forward of a few takes nearly as long as
                # one of a thousand.
                limit = session.num_pending
                if limit > budget + self._prefill_tokens // 16:
                    limit = max(budget, 1)
                num_new = min(session.num_pending, self._tile or limit)
                if session.chunk_ends and session.chunk_ends[-1] > session.num_cached:  # as before
                    ends = (cut for cut in session.chunk_ends if cut > session.num_cached)
                    num_new = next(ends) - session.num_cached
                budget -= num_new if num_new > 1 else 0
                work.append((session, num_new))
            elif len(session.ids) + 1 > (largest := self._kv_cache.largest):
                error = ConfigError(
                    f"a conversation of {len(session.ids)} tokens does not fit into the KV cache, "
                    f"which holds {largest}. Raise cache_tokens."
                )
                self.end(session, error)
            else:
                self._preempt(session)
        work = [item for item in work if item[0].region is not None]  # others were preempted since
        tiles: list[Work] = []
        room = 0
        for item in work:
            if item[1] > room:
                tiles.append([])
                room = self._tile or sum(num_new for _, num_new in work)
            tiles[-1].append(item)
            room -= item[1]
        return tiles
