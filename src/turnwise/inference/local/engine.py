"""The engine that people meet first: continuous batching on the learner's own modules.

Each step computes what is new in every conversation under way, prompts in chunks and sampled
tokens one by one, all packed into one forward. Conversations keep their cache between turns; a
prompt that several samples share is computed once; a conversation that must give way when memory
runs out is computed again later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from turnwise.errors import ConfigError
from turnwise.inference.base import Overflow
from turnwise.inference.local.openings import Openings, opening_of
from turnwise.inference.local.rows import MOST_STEPS, Row
from turnwise.inference.local.runner import Chunk, Runner
from turnwise.inference.local.sampling import draw_tokens
from turnwise.inference.local.session import Session
from turnwise.inference.local.steady import SteadyDecode
from turnwise.inference.protocol import GenerationRequest, GenerationResult
from turnwise.inference.transformers import plain_scores
from turnwise.inference.worker import Turn, WorkerEngine

if TYPE_CHECKING:
    from turnwise.inference.local.graph import DecodeGraphs


class LocalEngine(WorkerEngine):
    """Samples from a Hugging Face model in this process, many conversations at once.

    `deterministic` makes a turn's bits independent of what else is computed beside it; None: on a
    CPU. `cache_tokens` is the size of the KV cache; None: as many as the batch can need, within
    a budget. Raises `UnsupportedModel` for a model that cannot run on our cache.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_batch_size: int = 256,
        cache_tokens: int | None = None,
        prefill_tokens: int | None = None,
        deterministic: bool | None = None,
        max_model_len: int | None = None,
        overflow: Overflow = "truncate",
    ) -> None:
        super().__init__(tokenizer, overflow)
        self.model = model.eval()
        self._max_model_len = max_model_len
        self._max_batch_size = max_batch_size
        on_cpu = model.device.type == "cpu"
        self.deterministic = on_cpu if deterministic is None else deterministic
        self._runner = Runner(
            model,
            cache_tokens=cache_tokens,
            max_tokens=max_batch_size * self.context_length,
            deterministic=self.deterministic,
        )
        self._arena = self._runner.arena
        self._graphs = None if on_cpu else self._make_graphs()
        self._prefill_tokens = prefill_tokens or (512 if on_cpu else 16384)
        self._running: list[Session] = []
        self._preempted: deque[Session] = deque()
        self._sessions: dict[Hashable, Session] = {}
        self._ended_sessions: deque[Hashable] = deque()
        self._openings = Openings()
        self._num_steps = 0
        self._num_words = model.get_input_embeddings().num_embeddings

    @property
    def context_length(self) -> int:
        length = int(getattr(self.model.config, "max_position_embeddings", 2**20))
        return min(length, self._max_model_len or length)

    @property
    def cache_in_use(self) -> int:
        """Tokens of the cache that conversations hold at this moment."""
        return self._arena.num_taken

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        task = self._in_thread(lambda: plain_scores(self.model, ids, start), drained=False)
        return await asyncio.wrap_future(task)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        def update() -> int:
            if weights is not None:
                self.model.load_state_dict(weights)
            for session in self._sessions.values():
                self._forget(session)
            if self._runner.weights_moved() and self._graphs is not None:
                self._graphs = self._make_graphs()
            self.weight_version += 1
            return self.weight_version

        return self._in_thread(update, drained=True).result()

    def end_session(self, session: Hashable) -> None:
        self._ended_sessions.append(session)  # done by the engine's thread, at its next step

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._num_words:
            raise ConfigError(
                f"a prompt holds token ids from {min(request.prompt_ids)} to "
                f"{max(request.prompt_ids)}, and the model knows 0 to {self._num_words - 1}. "
                "Does the tokenizer belong to this model?"
            )
        return await super().sample(request)

    def _under_way(self) -> list[Turn]:
        return [s.turn for s in (*self._running, *self._preempted) if s.turn is not None]

    def _advance(self, *, may_begin: bool) -> None:
        self._num_steps += 1
        if self.model.training:
            self.model.eval()
        self._drop_ended_sessions()
        ready = self._begin_turns() if may_begin else []
        try:
            if ready:
                logits = self._openings.logits([row for _, row in ready])
                self._sample([session for session, _ in ready], logits)
            if self._decode():
                return
            for sessions, logits in self._compute():
                self._sample(sessions, logits)
        except Exception as error:  # handed to those who wait; the engine lives on
            for session in list(self._running):
                self._end(session, error)

    # -- beginning and ending -----------------------------------------------------------------

    def _begin_turns(self) -> list[tuple[Session, int]]:
        """Take in as many turns as there is room for.

        Those whose prompt was just computed for another can be sampled at once: they are given
        with the row of the logits that `_openings` keeps.
        """
        ready: list[tuple[Session, int]] = []
        if not self._resume_preempted():
            return ready
        computing = {s.opening for s in self._running if s.turn is not None and not s.turn.ids}
        postponed: list[Turn] = []
        while self._waiting and len(self._running) < self._max_batch_size:
            turn = self._waiting.popleft()
            if (reason := turn.ending()) is not None:
                turn.settle(reason, self.weight_version)
                continue
            session = self._session_of(turn)
            if session.num_cached == 0:
                session.opening = opening_of(session.ids)
                known = self._openings.find(session.opening)
                if known is not None and self._copy_opening(session, known[0]):
                    ready.append((session, known[1]))
                elif session.opening in computing:  # on its way; it will be copied
                    postponed.append(turn)
                    continue
                computing.add(session.opening)
            session.turn = turn
            if session.key is not None:
                self._sessions[session.key] = session
            self._running.append(session)
        self._waiting.extendleft(reversed(postponed))
        return ready

    def _resume_preempted(self) -> bool:
        """Those that had to give way come first; False while one of them still waits."""
        while self._preempted and len(self._running) < self._max_batch_size:
            session = self._preempted[0]
            if self._running and not self._make_room(session, len(session.ids) + 1, preempt=False):
                return False
            self._running.append(self._preempted.popleft())
        return not self._preempted

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
        """Take another conversation's cache of the same prompt."""
        source.last_used = self._num_steps
        if not self._make_room(session, len(session.ids) + 1, preempt=False):
            return False
        if source.region is None or session.region is None:  # evicted for its own copy
            return False
        self._arena.copy(source.region, session.region, len(session.ids))
        session.num_cached = len(session.ids)
        session.cuts = [cut for cut in source.cuts if cut <= session.num_cached]
        return True

    def _end(self, session: Session, error: BaseException | None = None) -> None:
        """The turn under way is over, or failed; a named conversation keeps its cache."""
        self._running.remove(session)
        turn, session.turn = session.turn, None
        if session.key is None or error is not None:
            self._evict(session)
        if turn is None:
            return
        if error is not None:
            turn.fail(error)
        elif (reason := turn.ending()) is not None:
            turn.settle(reason, self.weight_version)

    def _drop_ended_sessions(self) -> None:
        while self._ended_sessions:
            session = self._sessions.pop(self._ended_sessions.popleft(), None)
            if session is None:
                continue
            session.key = None
            if session.turn is None:
                self._evict(session)

    # -- memory -------------------------------------------------------------------------------

    def _make_room(self, session: Session, num_tokens: int, *, preempt: bool) -> bool:
        """See that a session's region holds so many tokens; False if there is no memory now."""
        if session.region is not None and self._arena.capacity(session.region) >= num_tokens:
            return True
        while (region := self._arena.take(num_tokens)) is None:
            if not self._evict_idle(session) and not (preempt and self._preempt_younger(session)):
                return False
        if session.region is not None:
            self._arena.copy(session.region, region, session.num_cached)
            self._arena.give_back(session.region)
        session.region = region
        return True

    def _evict_idle(self, but: Session) -> bool:
        """Evict the conversation that was idle longest."""
        kept = [s for s in self._sessions.values() if s.turn is None and s.region is not None]
        idle = [session for session in kept if session is not but]
        if idle:
            self._evict(min(idle, key=lambda s: s.last_used))
        return bool(idle)

    def _preempt_younger(self, session: Session) -> bool:
        """Let the youngest turn under way give way, if it is younger than this one.

        The oldest is never held up, so that all come to their end.
        """
        youngest = self._running[-1]
        if youngest is not session:
            self._preempt(youngest)
        return youngest is not session

    def _preempt(self, session: Session) -> None:
        self._evict(session)
        self._running.remove(session)
        self._preempted.appendleft(session)

    def _evict(self, session: Session) -> None:
        """Take a session's cache away; its tokens are computed again when they are needed."""
        if session.region is not None:
            self._arena.give_back(session.region)
        self._openings.forget(session)
        session.region = None
        session.num_cached = 0

    def _forget(self, session: Session) -> None:
        """What was computed is of no use any more."""
        self._evict(session)
        session.cuts = []

    # -- computing ----------------------------------------------------------------------------

    def _compute(self) -> Iterable[tuple[list[Session], torch.Tensor]]:
        """One step for every turn under way: sessions whose next token can be sampled, logits."""
        for batch in self._batches():
            if not batch:
                continue
            chunks = [
                Chunk(
                    session.ids[session.num_cached : session.num_cached + num_new],
                    session.num_cached,
                    session.region,
                    wants_logits=num_new == session.num_pending,
                )
                for session, num_new in batch
                if session.region is not None
            ]
            logits = self._runner.forward(chunks)
            sampling = [session for session, num_new in batch if num_new == session.num_pending]
            for session, num_new in batch:
                session.computed(num_new, remember=self.deterministic)
                session.last_used = self._num_steps
            for session, row in zip(sampling, logits, strict=True):
                self._openings.remember(session, row)
            if sampling:
                yield sampling, logits

    def _batches(self) -> list[list[tuple[Session, int]]]:
        """What to compute now, as forwards: (session, how many of its tokens)."""
        work: list[tuple[Session, int]] = []
        limit = self._runner.most_tokens or self._prefill_tokens
        budget = self._prefill_tokens
        for session in list(self._running):
            if session in self._preempted or (session.num_pending > 1 and budget <= 0):
                continue
            if session.num_pending > 1 and self._is_over(session):
                self._end(session)
            elif self._make_room(session, len(session.ids) + 1, preempt=True):
                num_new = session.next_chunk(limit if self.deterministic else max(budget, 1))
                budget -= num_new if num_new > 1 else 0
                work.append((session, num_new))
            elif len(session.ids) + 1 > self._arena.largest:
                self._end(session, self._too_large(session))
            else:
                self._preempt(session)
        work = [item for item in work if item[0].region is not None]  # others gave way meanwhile
        return _tiles(work, limit) if self.deterministic else [work]

    def _is_over(self, session: Session) -> bool:
        return session.turn is not None and session.turn.ending() is not None

    def _too_large(self, session: Session) -> ConfigError:
        return ConfigError(
            f"a conversation of {len(session.ids)} tokens does not fit into the KV cache, whose "
            f"largest region holds {self._arena.largest}. Raise cache_tokens."
        )

    def _sample(self, sessions: Sequence[Session], logits: torch.Tensor) -> None:
        turns = [session.turn for session in sessions if session.turn is not None]
        ids, chosen = draw_tokens(logits, turns)
        drawn = zip(sessions, turns, ids.tolist(), chosen.tolist(), strict=True)
        for session, turn, token, log_prob in drawn:
            turn.ids.append(token)
            turn.log_probs.append(log_prob)
            session.ids.append(token)
            if turn.ending() is not None:
                self._end(session)

    # -- many steps at once -------------------------------------------------------------------

    def _decode(self) -> bool:
        """Several steps of pure sampling, if that is all that there is to do; whether it was."""
        limit = self._runner.most_tokens or len(self._running)
        if not self._running or any(session.num_pending != 1 for session in self._running):
            return False
        if self._graphs is not None:
            return self._decode_by_graph(self._graphs)
        if len(self._running) > limit or not self._has_room(1):
            return False
        with torch.no_grad():
            decode = SteadyDecode(self._runner, self._rows())
            for _ in range(decode.num_steps):
                ids, log_probs = decode.step()
                drawn = zip(decode.rows, ids, log_probs, strict=True)
                go_on = [self._take_steps(row, [token], [value]) for row, token, value in drawn]
                if not all(go_on) or not self._arrivals.empty():
                    break
        return True

    def _rows(self) -> list[Row]:
        return [
            Row(session, session.turn, session.ids[-1], session.num_cached, session.region)
            for session in self._running
            if session.turn is not None and session.region is not None
        ]

    def _has_room(self, num_steps: int) -> bool:
        return all(
            self._make_room(session, len(session.ids) + num_steps, preempt=False)
            for session in self._running
        )

    def _take_steps(self, row: Row, ids: list[int], log_probs: list[float]) -> bool:
        """Add what a row sampled in a few steps; whether its turn goes on.

        Each step put the token before into the cache. What was sampled after the end is nobody's.
        """
        session, turn = row.session, row.turn
        num_taken = 0
        is_over = False
        while num_taken < len(ids) and not is_over:
            num_taken += turn.take(ids[num_taken:], log_probs[num_taken:])
            is_over = turn.ending() is not None
        session.ids += ids[:num_taken]
        for _ in range(num_taken if self.deterministic else 1):
            session.computed(1 if self.deterministic else num_taken, remember=self.deterministic)
        session.last_used = self._num_steps
        if is_over:
            self._end(session)
        return not is_over

    def _make_graphs(self) -> DecodeGraphs:
        from turnwise.inference.local.graph import DecodeGraphs

        powers = [2**i for i in range(12) if 2**i < self._max_batch_size]
        return DecodeGraphs(self._runner, self._runner.sizes or [*powers, self._max_batch_size])

    def _decode_by_graph(self, graphs: DecodeGraphs) -> bool:
        turns = [session.turn for session in self._running if session.turn is not None]
        if len(turns) > graphs.most_rows or any(t.request.sampling.is_filtered for t in turns):
            return False
        num_steps = _burst_length(turns)
        if not self._has_room(num_steps):
            return False
        rows = self._rows()
        tokens, log_probs = graphs.decode(rows, num_steps)
        for row, ids, values in zip(rows, tokens, log_probs, strict=True):
            self._take_steps(row, ids, values)
        return True


def _burst_length(turns: Sequence[Turn]) -> int:
    """Long enough to keep the device busy, short enough that ended turns make way soon."""
    left = [min(turn.request.max_tokens, turn.room) - len(turn.ids) for turn in turns]
    context = min(turn.room - len(turn.ids) for turn in turns)
    return max(min(MOST_STEPS, max(left), max(min(left), 8), context), 1)


def _tiles(work: list[tuple[Session, int]], size: int) -> list[list[tuple[Session, int]]]:
    """Spread work over forwards of at most `size` tokens."""
    tiles: list[list[tuple[Session, int]]] = []
    room = 0
    for item in work:
        if item[1] > room:
            tiles.append([])
            room = size
        tiles[-1].append(item)
        room -= item[1]
    return tiles
