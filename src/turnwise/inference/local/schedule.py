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

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from turnwise.errors import ConfigError
from turnwise.inference.local.kv_cache import KVCache
from turnwise.inference.local.session import PrefixIndex, PromptCache, Session, prompt_key
from turnwise.inference.worker import EngineTurn

Work = list[tuple[Session, int]]
"""Sessions, each with how many of its tokens to compute."""


_STEPS_BETWEEN_SWEEPS = 8
"""Thousands of turns may wait: checking each of them at every step would take too long."""


class Schedule:
    """Decides what the engine computes next; owns the sessions and their regions.

    `on_finished` is called with each turn that has finished, and with the error if it failed.
    """

    def __init__(
        self,
        kv_cache: KVCache,
        *,
        max_batch_size: int,
        prefill_tokens: int,
        tile: int | None,
        block: int | None = None,
        on_finished: Callable[[EngineTurn, Exception | None], None],
    ) -> None:
        self.running: list[Session] = []
        """In the order in which they were admitted: the first is never preempted."""
        self.preempted: deque[Session] = deque()
        """Sessions whose cache was taken for older turns; they resume before new turns."""
        self.prompt_cache = PromptCache()
        self._prefixes = PrefixIndex()
        self._kv_cache = kv_cache
        self._max_batch_size = max_batch_size
        self._prefill_tokens = prefill_tokens
        self._tile = tile
        """Most tokens of one forward in batch-invariant mode; None: any number."""
        self._block = block or tile or 1
        """Common beginnings are copied in multiples of so many tokens."""
        self._on_finished = on_finished
        self._sessions: dict[Hashable, Session] = {}
        self._time = 0

    @property
    def is_deterministic(self) -> bool:
        return self._tile is not None

    def tick(self, waiting: deque[EngineTurn]) -> None:
        """Start a step; every few steps, finish waiting turns that are overdue or cancelled."""
        self._time += 1
        if self._time % _STEPS_BETWEEN_SWEEPS:
            return
        for session in [s for s in self.preempted if s.turn is not None and _is_over(s.turn)]:
            self.end(session)
        for turn in [turn for turn in waiting if _is_over(turn)]:
            waiting.remove(turn)
            self._on_finished(turn, None)

    # -- starting and finishing -----------------------------------------------------------------

    def admit(self, waiting: deque[EngineTurn]) -> list[tuple[Session, int]]:
        """Start as many waiting turns as the batch has room for.

        Returns those that can be sampled at once, since their prompt is in the prompt cache, each
        with its row of the cached logits.
        """
        ready: list[tuple[Session, int]] = []
        computing = {s.prompt_key for s in self.running if s.turn is not None and not s.turn.ids}
        # Of the next turn to look at; those before it are postponed. Thousands may wait for a
        # prompt: looking at all of them would take too long.
        index = 0
        while (
            index < min(len(waiting), self._max_batch_size)
            and len(self.running) < self._max_batch_size
        ):
            turn = waiting[index]
            if _is_over(turn):
                del waiting[index]
                self._on_finished(turn, None)
                continue
            session = self._find_session(turn)
            if session.chunk_ends and session.num_cached == 0:
                # It was evicted, and is computed again in its own chunks, which are not those of
                # the same tokens as a new prompt: nothing is copied to it or from it.
                session.prompt_key = None
            elif session.num_cached == 0:
                session.prompt_key = prompt_key(session.ids)
                known = self.prompt_cache.find(session.prompt_key)
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
                self._prefixes.add(session)
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
        elif not session.is_continued_by(prompt):
            self._forget(session)
        session.ids = prompt
        return session

    def _begin_branch(self, session: Session, key: Hashable, num_tokens: int) -> None:
        """Copy the KV cache of the tokens that a new session has in common with another one.

        In batch-invariant mode the new session computes them in the same chunks as the other one
        did, whether or not they can be copied.
        """
        source = self._sessions.get(key)
        if source is None:
            return
        # The last token of a turn is computed with what follows it.
        num_tokens = min(num_tokens, len(session.ids), len(source.ids)) - 1
        if session.ids[:num_tokens] != source.ids[:num_tokens]:
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
        found = self._prefixes.find(session)
        if found is None:
            return True
        source, num_tokens = found
        cuts: list[int] = []
        if self._tile is not None:
            num_tokens -= num_tokens % self._block
            cuts = [*range(self._tile, num_tokens, self._tile), num_tokens]
        if not num_tokens:
            return True
        if source.num_cached < num_tokens:
            is_computing = source.turn is not None and source not in self.preempted
            return not is_computing or 2 * num_tokens < len(session.ids)
        in_blocks = all(cut % self._block == 0 for cut in source.chunk_ends if cut < num_tokens)
        if in_blocks and self._copy_cache(source, session, num_tokens):
            session.chunk_ends = cuts
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
        session.computed(num_tokens, remember=self.is_deterministic)
        session.last_used = self._time

    def end(self, session: Session, error: Exception | None = None) -> None:
        """Finish a session's turn; if it has a key and no error, it keeps its cache."""
        (self.preempted if session in self.preempted else self.running).remove(session)
        turn, session.turn = session.turn, None
        if session.key is None or error is not None:
            self._evict(session)
        if turn is not None:
            self._on_finished(turn, error)

    def end_session(self, key: Hashable) -> None:
        """Forget a session; if a turn of it is running, after that turn."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.key = None
            if session.turn is None:
                self._evict(session)

    def forget_all(self) -> None:
        """Drop all KV caches, after a weight update; no turn is running."""
        for session in self._sessions.values():
            self._forget(session)

    def renew(self, *, keeps_cache: bool) -> None:
        """Prepare for new weights while turns are running.

        Prompts are always computed by one version. A conversation after its prompt keeps its KV
        cache, or computes it again.
        """
        self.prompt_cache.clear()
        self._prefixes.clear()
        for session in {*self._sessions.values(), *self.running, *self.preempted}:
            in_prompt = session.turn is not None and not session.turn.ids
            if in_prompt or not keeps_cache:
                self._forget(session)

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
            if self._evict_idle((session, keep)):
                continue
            if not preempt or self.running[-1] is session:
                return False
            self._preempt(self.running[-1])  # the youngest
        if session.region is not None:
            self._kv_cache.copy(session.region, region, session.num_cached)
            self._kv_cache.free(session.region)
        session.region = region
        return True

    def _evict_idle(self, kept: Sequence[Session | None]) -> bool:
        """Evict the session that was idle longest, except those that are kept."""
        cached = [s for s in self._sessions.values() if s.turn is None and s.region is not None]
        idle = [session for session in cached if session not in kept]
        if not idle:
            return False
        oldest = min(idle, key=lambda session: session.last_used)
        self._evict(oldest)
        if not self.is_deterministic:  # else it must be computed again just as it was
            self._sessions.pop(oldest.key, None)
        return True

    def _preempt(self, session: Session) -> None:
        self._evict(session)
        self.running.remove(session)
        self.preempted.appendleft(session)

    def _evict(self, session: Session) -> None:
        """Free a session's region; its tokens are computed again when they are needed."""
        if session.region is not None:
            self._kv_cache.free(session.region)
        self.prompt_cache.forget(session)
        self._prefixes.forget(session)
        session.region = None
        session.num_cached = 0

    def _forget(self, session: Session) -> None:
        """Evict a session whose cached tokens are no longer valid."""
        self._evict(session)
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
            if session.num_pending > 1 and session.turn and _is_over(session.turn):
                self.end(session)
            elif self._make_room(session, len(session.ids) + 1, preempt=True):
                num_new = session.next_chunk(self._tile or self._chunk_limit(session, budget))
                budget -= num_new if num_new > 1 else 0
                work.append((session, num_new))
            elif len(session.ids) + 1 > self._kv_cache.largest:
                error = ConfigError(
                    f"a conversation of {len(session.ids)} tokens does not fit into the KV cache, "
                    f"whose largest region holds {self._kv_cache.largest}. Raise cache_tokens."
                )
                self.end(session, error)
            else:
                self._preempt(session)
        work = [item for item in work if item[0].region is not None]  # others were preempted since
        if not work:
            return []
        return [work] if self._tile is None else _tiles(work, self._tile)

    def _chunk_limit(self, session: Session, budget: int) -> int:
        """Return how many tokens of a prompt to compute now: all, if few would be left.

        A forward of a few tokens takes nearly as long as one of a thousand.
        """
        few = self._prefill_tokens // 16
        return session.num_pending if session.num_pending <= budget + few else max(budget, 1)


def _is_over(turn: EngineTurn) -> bool:
    return turn.finish_reason() is not None


def _tiles(work: Work, size: int) -> list[Work]:
    """Split work into forwards of at most `size` tokens."""
    tiles: list[Work] = []
    room = 0
    for item in work:
        if item[1] > room:
            tiles.append([])
            room = size
        tiles[-1].append(item)
        room -= item[1]
    return tiles
