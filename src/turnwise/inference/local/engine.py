"""The engine that people meet first: continuous batching on the learner's own modules.

Each step computes what is new in every conversation under way, prompts in chunks and sampled
tokens one by one, all packed into one forward. Conversations keep their cache between turns; a
prompt that several samples share is computed once; a conversation that must give way when memory
runs out is computed again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from turnwise.errors import ConfigError
from turnwise.inference.base import Overflow
from turnwise.inference.comparison import is_out_of_memory
from turnwise.inference.local.rows import MOST_STEPS, Row
from turnwise.inference.local.runner import Chunk, Runner
from turnwise.inference.local.sampling import draw_tokens
from turnwise.inference.local.schedule import Schedule
from turnwise.inference.local.session import Session
from turnwise.inference.local.steady import SteadyDecode
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.transformers import context_length, plain_scores
from turnwise.inference.turns import Mail, Outcome, Turn
from turnwise.inference.worker import WorkerEngine

_log = logging.getLogger(__name__)

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
        self._num_words = model.get_input_embeddings().num_embeddings
        self._on_cpu = on_cpu = model.device.type == "cpu"
        self._runner = Runner(
            model,
            cache_tokens=cache_tokens,
            max_tokens=max_batch_size * self.context_length,
            context_length=self.context_length,
            deterministic=on_cpu if deterministic is None else deterministic,
        )
        self._schedule = Schedule(
            self._runner.arena,
            max_batch_size=max_batch_size,
            prefill_tokens=prefill_tokens or _prefill_tokens(model),
            tile=self._runner.most_tokens,
            settle=self._settle,
        )
        self._max_batch_size = max_batch_size
        self._graphs = None if on_cpu else self._make_graphs()
        self._ended_sessions: deque[Hashable] = deque()
        self._outcomes: dict[Mail, list[Outcome]] = {}

    @property
    def context_length(self) -> int:
        return context_length(self.model, self._max_model_len)

    @property
    def deterministic(self) -> bool:
        """Whether a turn's bits do not depend on what else is computed beside it."""
        return self._schedule.is_deterministic

    @property
    def options(self) -> dict[str, Any]:
        return {
            **super().options,
            "deterministic": self.deterministic,
            "max_batch_size": self._max_batch_size,
        }

    @property
    def cache_in_use(self) -> int:
        """Tokens of the cache that conversations hold at this moment."""
        return self._runner.arena.num_taken

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        lowest, highest = min(request.prompt_ids), max(request.prompt_ids)
        if lowest < 0 or highest >= self._num_words:
            raise ConfigError(
                f"a prompt holds token ids from {lowest} to {highest}, and the model knows 0 to "
                f"{self._num_words - 1}. Does the tokenizer belong to this model?"
            )
        return await super().sample(request)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        task = self._in_thread(lambda: plain_scores(self.model, ids, start), drained=False)
        return await asyncio.wrap_future(task)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        def update() -> int:
            if weights is not None:
                self.model.load_state_dict(weights)
            self._schedule.forget_all()
            if self._runner.weights_moved() and self._graphs is not None:
                self._graphs = self._make_graphs()
            self.weight_version += 1
            return self.weight_version

        return self._updated(self._in_thread(update, drained=True))

    def end_session(self, session: Hashable) -> None:
        self._ended_sessions.append(session)  # done by the engine's thread, at its next step

    def _under_way(self) -> list[Turn]:
        sessions = (*self._schedule.running, *self._schedule.preempted)
        return [session.turn for session in sessions if session.turn is not None]

    def _settle(self, turn: Turn, error: Exception | None) -> None:
        reason = turn.ending() or FinishReason.ABORTED
        outcome = (turn.future, error or turn.result(reason, self.weight_version))
        self._outcomes.setdefault(turn.mail, []).append(outcome)

    def _tell_outcomes(self) -> None:
        """All that ended in this step at once, so that what follows on them comes at once."""
        outcomes, self._outcomes = self._outcomes, {}
        for mail, own in outcomes.items():
            mail.to_loop(own)

    def _advance(self, *, may_begin: bool) -> None:
        try:
            self._step(may_begin)
        finally:
            self._tell_outcomes()

    @torch.inference_mode()
    def _step(self, may_begin: bool) -> None:
        schedule = self._schedule
        schedule.tick(self._waiting)
        if self.model.training:
            self.model.eval()
        while self._ended_sessions:
            schedule.end_session(self._ended_sessions.popleft())
        may_begin = schedule.resume_preempted() and may_begin
        ready = schedule.begin(self._waiting) if may_begin else []
        try:
            if ready:
                logits = schedule.openings.logits([row for _, row in ready])
                self._sample([session for session, _ in ready], logits)
            if not self._decode():
                for sessions, logits in self._compute():
                    self._sample(sessions, logits)
        except Exception as error:  # handed to those who wait; the engine lives on
            for session in list(schedule.running):
                schedule.end(session, error)

    def _compute(self) -> Iterator[tuple[list[Session], torch.Tensor]]:
        """One step for every turn under way: sessions whose next token can be sampled, logits."""
        schedule = self._schedule
        for work in schedule.next_forwards():
            chunks = [
                Chunk(
                    session.ids[session.num_cached : session.num_cached + num_new],
                    session.num_cached,
                    session.region,
                    wants_logits=num_new == session.num_pending,
                )
                for session, num_new in work
                if session.region is not None
            ]
            logits = self._runner.forward(chunks)
            sampling = [session for session, num_new in work if num_new == session.num_pending]
            for session, num_new in work:
                schedule.computed(session, num_new)
            for session, row in zip(sampling, logits, strict=True):
                schedule.openings.remember(session, row)
            if sampling:
                yield sampling, logits

    def _sample(self, sessions: Sequence[Session], logits: torch.Tensor) -> None:
        turns = [session.turn for session in sessions if session.turn is not None]
        ids, chosen = draw_tokens(logits, turns)
        drawn = zip(sessions, turns, ids.tolist(), chosen.tolist(), strict=True)
        for session, turn, token, log_prob in drawn:
            turn.take([token], [log_prob])
            session.ids.append(token)
            if turn.ending() is not None:
                self._schedule.end(session)

    # -- many steps at once -------------------------------------------------------------------

    def _decode(self) -> bool:
        """Several steps of pure sampling, if that is all that there is to do; whether it was."""
        schedule = self._schedule
        if not schedule.running or not schedule.is_decoding:
            return False
        if self._graphs is not None:
            return self._decode_by_graph(self._graphs)
        if not self._on_cpu or not schedule.has_room(1):
            return False
        decode = SteadyDecode(self._runner, self._rows())
        turns = [row.turn for row in decode.rows]
        num_steps = min(decode.num_steps, _quiet_steps(turns))
        deadline = min(turn.deadline for turn in turns)
        steps = [decode.step()]
        # Turns are told of their tokens together, as soon as one of them may be over.
        while len(steps) < num_steps and self._arrivals.empty() and time.monotonic() < deadline:
            drawn = zip(turns, steps[-1][0], strict=True)
            if any(t.future.cancelled() or token in t.request.stop_ids for t, token in drawn):
                break
            steps.append(decode.step())
        tokens, log_probs = ([*zip(*step, strict=True)] for step in zip(*steps, strict=True))
        for row, ids, values in zip(decode.rows, tokens, log_probs, strict=True):
            self._take(row, list(ids), list(values))
        return True

    def _decode_by_graph(self, graphs: DecodeGraphs) -> bool:
        turns = self._under_way()
        if len(turns) > graphs.most_rows or any(t.request.sampling.is_filtered for t in turns):
            return False
        num_steps = _burst_length(turns)
        if not self._schedule.has_room(num_steps):
            return False
        rows = self._rows()
        tokens, log_probs = graphs.decode(rows, num_steps)
        for row, ids, values in zip(rows, tokens, log_probs, strict=True):
            self._take(row, ids, values)
        return True

    def _make_graphs(self) -> DecodeGraphs | None:
        """None: the model cannot be captured, and decodes as it computes prompts."""
        from turnwise.inference.local.graph import DecodeGraphs

        powers = [2**i for i in range(12) if 2**i < self._max_batch_size]
        graphs = DecodeGraphs(self._runner, self._runner.sizes or [*powers, self._max_batch_size])
        try:
            graphs.try_capture()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            _log.warning(
                "%s decodes without captured graphs, which is slower: %s",
                type(self.model).__name__,
                error,
            )
            return None
        return graphs

    def _rows(self) -> list[Row]:
        return [
            Row(session, session.turn, session.ids[-1], session.num_cached, session.region)
            for session in self._schedule.running
            if session.turn is not None and session.region is not None
        ]

    def _take(self, row: Row, ids: list[int], log_probs: list[float]) -> bool:
        """Add what a row sampled in a few steps; whether its turn goes on.

        Each step put the token before into the cache. What was sampled after the end is nobody's.
        """
        session, turn = row.session, row.turn
        num_taken, is_over = 0, False
        while num_taken < len(ids) and not is_over:
            num_taken += turn.take(ids[num_taken:], log_probs[num_taken:])
            is_over = turn.ending() is not None
        session.ids += ids[:num_taken]
        steps = [1] * num_taken if self.deterministic else [num_taken]
        for num_tokens in steps:
            self._schedule.computed(session, num_tokens)
        if is_over:
            self._schedule.end(session)
        return not is_over


def _prefill_tokens(model: Any) -> int:
    """Tokens of prompts in one step: much work at once, but the others do not wait for long."""
    if model.device.type == "cuda":
        return 16384
    num_parameters = int(sum(parameter.numel() for parameter in model.parameters()))
    return max(1024, min(4096, 2_000_000_000 // num_parameters))


def _quiet_steps(turns: Sequence[Turn]) -> int:
    """Steps in which none of these turns ends but by a stop token, the clock, or an abort."""
    if any(turn.request.stop_strings for turn in turns):
        return 1  # only the text after each token tells
    return min(min(turn.request.max_tokens, turn.room) - len(turn.ids) for turn in turns)


def _burst_length(turns: Sequence[Turn]) -> int:
    """Long enough to keep the device busy, short enough that ended turns make way soon."""
    left = [min(turn.request.max_tokens, turn.room) - len(turn.ids) for turn in turns]
    context = min(turn.room - len(turn.ids) for turn in turns)
    return max(min(MOST_STEPS, max(left), max(min(left), 8), context), 1)
