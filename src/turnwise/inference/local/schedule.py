"""Who is under way, who must wait, and who holds which part of the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from turnwise.errors import ConfigError
from turnwise.inference.local.arena import Arena
from turnwise.inference.local.openings import Openings, opening_of
from turnwise.inference.local.session import Session
from turnwise.inference.turns import Turn

Work = list[tuple[Session, int]]
"""Sessions, each with how many of its tokens to compute."""


_STEPS_BETWEEN_LOOKS = 8
"""Thousands of turns may wait: looking at each of them in every step would take its time."""


class Schedule:
    """The conversations of an engine. It decides; the engine computes.

    `settle` is called with each turn that is over, and with the error if it failed.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        max_batch_size: int,
        prefill_tokens: int,
        tile: int | None,
        settle: Callable[[Turn, Exception | None], None],
    ) -> None:
        self.running: list[Session] = []
        """In the order in which they began: the first is never held up by the others."""
        self.preempted: deque[Session] = deque()
        """Had to give way for want of memory; they go on before any new turn begins."""
        self.openings = Openings()
        self._arena = arena
        self._max_batch_size = max_batch_size
        self._prefill_tokens = prefill_tokens
        self._tile = tile
        """Most tokens of one forward, when each row must get the same bits in any company."""
        self._settle = settle
        self._sessions: dict[Hashable, Session] = {}
        self._time = 0

    @property
    def is_deterministic(self) -> bool:
        return self._tile is not None

    def tick(self, waiting: deque[Turn]) -> None:
        """A new step begins; now and then, turns that wait are ended if they are overdue."""
        self._time += 1
        if self._time % _STEPS_BETWEEN_LOOKS:
            return
        for session in [s for s in self.preempted if s.turn is not None and _is_over(s.turn)]:
            self.end(session)
        for turn in [turn for turn in waiting if _is_over(turn)]:
            waiting.remove(turn)
            self._settle(turn, None)

    # -- beginning and ending -----------------------------------------------------------------

    def begin(self, waiting: deque[Turn]) -> list[tuple[Session, int]]:
        """Take in as many turns as there is room for.

        Those whose prompt was just computed for another can be sampled at once: they are given
        with the row of the logits that `openings` keeps.
        """
        ready: list[tuple[Session, int]] = []
        computing = {s.opening for s in self.running if s.turn is not None and not s.turn.ids}
        index = 0  # of the next turn to look at; those before it are postponed
        while index < len(waiting) and len(self.running) < self._max_batch_size:
            turn = waiting[index]
            if _is_over(turn):
                del waiting[index]
                self._settle(turn, None)
                continue
            session = self._session_of(turn)
            if session.num_cached == 0:
                session.opening = opening_of(session.ids)
                known = self.openings.find(session.opening)
                if known is not None and self._copy_opening(session, known[0]):
                    ready.append((session, known[1]))
                elif session.opening in computing:  # on its way; it will be copied
                    index += 1
                    continue
                computing.add(session.opening)
            del waiting[index]
            session.turn = turn
            if session.key is not None:
                self._sessions[session.key] = session
            self.running.append(session)
        return ready

    def resume_preempted(self) -> bool:
        """Those that had to give way come before new turns; False while one of them still waits.

        Also when no new turn may begin: new weights wait for all turns under way, these too.
        """
        while self.preempted and len(self.running) < self._max_batch_size:
            session = self.preempted[0]
            if self.running and not self._make_room(session, len(session.ids) + 1, preempt=False):
                return False
            self.running.append(self.preempted.popleft())
        return not self.preempted

    def _session_of(self, turn: Turn) -> Session:
        key, prompt = turn.request.session, list(turn.request.prompt_ids)
        session = self._sessions.get(key) if key is not None else None
        if session is None or session.turn is not None:  # a second turn at once is a stranger
            session = Session(key if session is None else None)
        elif not session.is_continued_by(prompt):
            self._forget(session)
        session.ids = prompt
        return session

    def _copy_opening(self, session: Session, source: Session) -> bool:
        """Copy another conversation's cache of the same prompt, if there is memory beside it."""
        source.last_used = self._time
        if not self._make_room(session, len(session.ids) + 1, preempt=False, keep=source):
            return False
        assert source.region is not None
        assert session.region is not None
        self._arena.copy(source.region, session.region, len(session.ids))
        session.num_cached = len(session.ids)
        session.cuts = [cut for cut in source.cuts if cut <= session.num_cached]
        return True

    def computed(self, session: Session, num_tokens: int) -> None:
        """So many tokens more of a session are in the cache."""
        session.computed(num_tokens, remember=self.is_deterministic)
        session.last_used = self._time

    def end(self, session: Session, error: Exception | None = None) -> None:
        """The turn under way is over, or failed; a named conversation keeps its cache."""
        (self.preempted if session in self.preempted else self.running).remove(session)
        turn, session.turn = session.turn, None
        if session.key is None or error is not None:
            self._evict(session)
        if turn is not None:
            self._settle(turn, error)

    def end_session(self, key: Hashable) -> None:
        """A conversation is over; if a turn of it is under way, with that turn."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.key = None
            if session.turn is None:
                self._evict(session)

    def forget_all(self) -> None:
        """Nothing that was computed is valid any more; no turn is under way."""
        for session in self._sessions.values():
            self._forget(session)

    # -- memory -------------------------------------------------------------------------------

    def has_room(self, num_steps: int) -> bool:
        """Whether every turn under way can go on for so many tokens without anyone giving way."""
        return all(
            self._make_room(session, len(session.ids) + num_steps, preempt=False)
            for session in self.running
        )

    def _make_room(
        self, session: Session, num_tokens: int, *, preempt: bool, keep: Session | None = None
    ) -> bool:
        """See that a session's region holds so many tokens; False if there is no memory now.

        Idle conversations are evicted for it, but not `keep`.
        """
        if session.region is not None and self._arena.capacity(session.region) >= num_tokens:
            return True
        while (region := self._arena.take(num_tokens)) is None:
            if not self._evict_idle((session, keep)) and not (
                preempt and self._preempt_younger(session)
            ):
                return False
        if session.region is not None:
            self._arena.copy(session.region, region, session.num_cached)
            self._arena.give_back(session.region)
        session.region = region
        return True

    def _evict_idle(self, kept: Sequence[Session | None]) -> bool:
        """Evict the conversation that was idle longest, of all but those that are kept."""
        cached = [s for s in self._sessions.values() if s.turn is None and s.region is not None]
        idle = [session for session in cached if session not in kept]
        if not idle:
            return False
        oldest = min(idle, key=lambda session: session.last_used)
        self._evict(oldest)
        if not self.is_deterministic:  # else it must be computed again just as it was
            self._sessions.pop(oldest.key, None)
        return True

    def _preempt_younger(self, session: Session) -> bool:
        """Let the youngest turn under way give way, if it is younger than this one."""
        youngest = self.running[-1]
        if youngest is not session:
            self._preempt(youngest)
        return youngest is not session

    def _preempt(self, session: Session) -> None:
        self._evict(session)
        self.running.remove(session)
        self.preempted.appendleft(session)

    def _evict(self, session: Session) -> None:
        """Take a session's cache away; its tokens are computed again when they are needed."""
        if session.region is not None:
            self._arena.give_back(session.region)
        self.openings.forget(session)
        session.region = None
        session.num_cached = 0

    def _forget(self, session: Session) -> None:
        """What was computed is of no use any more."""
        self._evict(session)
        session.cuts = []

    # -- what to compute ----------------------------------------------------------------------

    @property
    def is_decoding(self) -> bool:
        """Whether all turns under way just go on sampling, and one forward takes them all."""
        fits = self._tile is None or len(self.running) <= self._tile
        return fits and all(session.num_pending == 1 for session in self.running)

    def next_forwards(self) -> list[Work]:
        """One step for every turn under way: prompts by chunks, sampled tokens one by one."""
        work: Work = []
        budget = self._prefill_tokens
        for session in list(self.running):
            if session in self.preempted or (session.num_pending > 1 and budget <= 0):
                continue
            if session.num_pending > 1 and session.turn and session.turn.ending() is not None:
                self.end(session)
            elif self._make_room(session, len(session.ids) + 1, preempt=True):
                num_new = session.next_chunk(self._tile or max(budget, 1))
                budget -= num_new if num_new > 1 else 0
                work.append((session, num_new))
            elif len(session.ids) + 1 > self._arena.largest:
                self.end(session, self._too_large(session))
            else:
                self._preempt(session)
        work = [item for item in work if item[0].region is not None]  # others gave way meanwhile
        if not work:
            return []
        return [work] if self._tile is None else _tiles(work, self._tile)

    def _too_large(self, session: Session) -> ConfigError:
        return ConfigError(
            f"a conversation of {len(session.ids)} tokens does not fit into the KV cache, whose "
            f"largest region holds {self._arena.largest}. Raise cache_tokens."
        )


def _is_over(turn: Turn) -> bool:
    return turn.ending() is not None


def _tiles(work: Work, size: int) -> list[Work]:
    """Spread work over forwards of at most `size` tokens."""
    tiles: list[Work] = []
    room = 0
    for item in work:
        if item[1] > room:
            tiles.append([])
            room = size
        tiles[-1].append(item)
        room -= item[1]
    return tiles
