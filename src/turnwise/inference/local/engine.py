"""The default engine: continuous batching on the learner's own modules.

Each step packs the new tokens of all running conversations into one forward, prompts in chunks and
sampled tokens one by one. `schedule.py` has the rules: what runs, what waits, who holds memory.
"""

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from turnwise.inference.base import FinishReason, Overflow
from turnwise.inference.local.cuda_graphs import DecodeGraphs
from turnwise.inference.local.runner import Chunk, Runner
from turnwise.inference.local.schedule import MAX_GRAPH_STEPS, Schedule, Session, Work, kernel_seed
from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.transformers import ModelEngine
from turnwise.inference.worker import EngineTurn
from turnwise.models.probing import is_out_of_memory

_log = logging.getLogger(__name__)


class LocalEngine(ModelEngine):
    """Samples from a Hugging Face model in this process, many conversations at once.

    `deterministic` makes results batch-invariant: a turn's bits do not depend on the rest of the
    batch; None enables it on a CPU. `cache_tokens` is the size of the KV cache; None allocates what
    the batch can need, within a budget. With `own_stream` a GPU computes its steps beside those of
    a learner in another thread, and before them. Raises `UnsupportedModel` for a model that cannot
    run on this cache.
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
        own_stream: bool = False,
        max_model_len: int | None = None,
        overflow: Overflow = "truncate",
    ) -> None:
        super().__init__(model, tokenizer, max_model_len, overflow)
        if own_stream and model.device.type == "cuda":
            self._stream = torch.cuda.Stream(model.device, priority=-1)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(model.device))
        on_cpu = model.device.type == "cpu"
        with self._on_stream():  # what it allocates is reused by work of the same stream only
            self._runner = Runner(
                model,
                cache_tokens=cache_tokens,
                max_tokens=max_batch_size * self.context_length,
                context_length=self.context_length,
                deterministic=on_cpu if deterministic is None else deterministic,
            )
            self.merges_adapters = self._runner.is_fused
            self._max_batch_size = max_batch_size
            self._graphs = None if on_cpu else self._make_graphs()
        if not prefill_tokens:  # of one step: a large batch that decoding turns can wait for
            num_parameters = sum(parameter.numel() for parameter in model.parameters())
            prefill_tokens = max(1024, min(4096, 2_000_000_000 // num_parameters))
            prefill_tokens = prefill_tokens if on_cpu else 16384
        self._schedule = Schedule(
            self._runner.kv_cache,
            max_batch_size=max_batch_size,
            prefill_tokens=prefill_tokens,
            tile=self._runner.max_forward_tokens,
            block=self._runner.block,
        )
        self.deterministic = self._schedule.is_deterministic
        """Whether results are batch-invariant."""
        self._ended_sessions: deque[Hashable] = deque()

    @property
    def options(self) -> dict[str, Any]:
        sizes = {"deterministic": self.deterministic, "max_batch_size": self._max_batch_size}
        return super().options | sizes

    def _on_new_weights(self) -> None:
        self._schedule.renew(keeps_cache=self.in_flight == "keep")
        if self._runner.take_new_weights() and self._graphs is not None:
            self._graphs = self._make_graphs()

    def end_session(self, session: Hashable) -> None:
        self._ended_sessions.append(session)  # the engine's thread ends it at its next step

    def _active_turns(self) -> list[EngineTurn]:
        sessions = (*self._schedule.running, *self._schedule.preempted)
        return [session.turn for session in sessions if session.turn is not None]

    @torch.inference_mode()
    def _advance(self, *, may_admit: bool) -> None:
        schedule = self._schedule
        try:
            schedule.tick(self._waiting)
            if self.model.training:
                self.model.eval()
            while self._ended_sessions:
                schedule.end_session(self._ended_sessions.popleft())
            may_admit = schedule.resume_preempted() and may_admit
            ready = schedule.admit(self._waiting) if may_admit else []
            try:
                if ready:
                    sessions, logits = zip(*ready, strict=True)
                    self._sample(sessions, torch.stack(logits))
                if self._graphs is None or not self._decode_by_graph(self._graphs):
                    for work in schedule.next_forwards():
                        self._compute(work)
            except Exception as error:  # goes to the callers; the engine continues
                for session in list(schedule.running):
                    schedule.end(session, error)
        finally:
            # The results of a step together, so that the next turns arrive together.
            finished, schedule.finished = schedule.finished, []
            for turn, failure in finished:
                reason = turn.finish_reason() or FinishReason.ABORTED
                turn.deliver(failure or turn.result(reason, self.weight_version))

    def _compute(self, work: Work) -> None:
        """Compute one forward, and sample the next token of turns whose last one is in it."""
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
            self._schedule.computed(session, num_new)
        for session, row in zip(sampling, logits, strict=True):
            self._schedule.prompts.remember(session, row)
        if sampling:
            self._sample(sampling, logits)

    def _sample(self, sessions: Sequence[Session], logits: torch.Tensor) -> None:
        turns = [session.turn for session in sessions if session.turn is not None]
        ids, chosen = _draw_tokens(logits, turns)
        drawn = zip(sessions, turns, ids.tolist(), chosen.tolist(), strict=True)
        for session, turn, token, log_prob in drawn:
            turn.append_tokens([token], [log_prob])
            session.ids.append(token)
            if turn.finish_reason() is not None:
                self._schedule.end(session)

    # -- many steps at once, on a GPU ---------------------------------------------------------

    def _decode_by_graph(self, graphs: DecodeGraphs) -> bool:
        """Run several decode steps at once, if all running turns are decoding; whether it did."""
        schedule = self._schedule
        if not schedule.running or not schedule.is_decoding:
            return False
        turns = [session.turn for session in schedule.running if session.turn is not None]
        if len(turns) > graphs.sizes[-1] or any(t.request.sampling.is_filtered for t in turns):
            return False
        # Long enough to keep the device busy, and short enough to free rows soon.
        left = [min(turn.request.max_tokens, turn.context_left) - len(turn.ids) for turn in turns]
        context = min(turn.context_left - len(turn.ids) for turn in turns)
        num_steps = max(min(MAX_GRAPH_STEPS, max(left), max(min(left), 8), context), 1)
        if not schedule.has_room(num_steps):
            return False
        sessions = list(schedule.running)
        tokens, log_probs = graphs.decode(sessions, num_steps)
        for session, turn, ids, values in zip(sessions, turns, tokens, log_probs, strict=True):
            # Each step put the token before into the cache. Tokens after the end are dropped.
            num_taken = 0
            is_over = False
            while num_taken < len(ids) and not is_over:
                num_taken += turn.append_tokens(ids[num_taken:], values[num_taken:])
                is_over = turn.finish_reason() is not None
            session.ids += ids[:num_taken]
            for num_tokens in [1] * num_taken if self.deterministic else [num_taken]:
                schedule.computed(session, num_tokens)
            if is_over:
                schedule.end(session)
        return True

    def _make_graphs(self) -> DecodeGraphs | None:
        """Capture decode graphs; None if the model cannot be captured."""
        powers = [2**i for i in range(12) if 2**i < self._max_batch_size]
        graphs = DecodeGraphs(self._runner, self._runner.sizes or [*powers, self._max_batch_size])
        try:
            graphs.capture(graphs.sizes[0], is_first=True)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            name = type(self.model).__name__
            _log.warning("%s decodes without captured graphs, which is slower: %s", name, error)
            return None
        return graphs


def _draw_tokens(
    logits: torch.Tensor, turns: Sequence[EngineTurn]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token for each turn from logits [B, V]: (ids [B], their log-probs [B]).

    Each turn has its own random stream, which does not depend on the other turns.
    """
    params = [turn.request.sampling for turn in turns]
    if not logits.is_cuda:
        uniforms = [turn.rng.random() for turn in turns]
        return choose_tokens(sampling_log_probs(logits, params), params, uniforms)
    from turnwise.inference.local.kernels import sample_rows

    # The kernel's random numbers depend on seed and token index, as in a graph.
    numbers = torch.tensor([[kernel_seed(turn), len(turn.ids)] for turn in turns])
    seeds, counts = numbers.T.contiguous().to(logits.device, non_blocking=True)
    counts = counts.int()
    # Log-probs after temperature and filters are logits at temperature 1.
    temperatures = [1.0 if p.is_filtered else p.temperature for p in params]
    scales = torch.tensor(temperatures).to(logits.device, non_blocking=True)
    ids, log_probs = sample_rows(logits, scales, seeds, counts)
    # The kernel sums float32 and bfloat16 in different orders. So only filtered rows, whose filters
    # need float32, are drawn anew; the bits of the others must not depend on them.
    if rows := [i for i, p in enumerate(params) if p.is_filtered]:
        chosen = sampling_log_probs(logits[rows], [params[i] for i in rows])
        drawn = sample_rows(chosen, scales[rows], seeds[rows], counts[rows])
        ids[rows], log_probs[rows] = drawn
    return ids, log_probs
