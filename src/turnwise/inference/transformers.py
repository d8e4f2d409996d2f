"""The transformers engine: any Hugging Face model. Other engines are tested against it.

Waiting requests are sampled together as one padded batch; requests that arrive while a batch runs
wait until it has finished.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from turnwise.inference.base import FinishReason, Overflow
from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.worker import EngineTurn, WorkerEngine
from turnwise.models.attention import model_lock
from turnwise.models.probing import PROBE_ERRORS, is_out_of_memory, rotary_limit

_log = logging.getLogger(__name__)
Logits: TypeAlias = Generator[torch.Tensor, torch.Tensor, None]
"""Yields the logits after the last token of each sequence [B, V]; is sent their next tokens [B]."""


class ModelEngine(WorkerEngine):
    """An engine on a Hugging Face model in this process, on the device it is on."""

    shares_model = True
    merges_adapters = False

    def __init__(
        self, model: Any, tokenizer: Any, max_model_len: int | None, overflow: Overflow
    ) -> None:
        super().__init__(tokenizer, overflow)
        self.model = model.eval()
        self._vocab_size = model.get_input_embeddings().num_embeddings
        self._max_model_len = max_model_len
        self._stream: torch.cuda.Stream | None = None
        """The stream that the engine's thread computes in; None: the default one."""

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _work(self) -> None:
        with self._on_stream():
            super()._work()

    def _synchronize(self) -> None:
        """Wait until the device has computed what this thread has launched.

        Work of one stream is computed in its order, so there is nothing to wait for with one.
        """
        if self._stream is not None:
            torch.cuda.current_stream(self.model.device).synchronize()

    @property
    def context_length(self) -> int:
        """The model's positions; those up to where its rotary embedding changes, if it does."""
        config = self.model.config
        positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        limits = (positions, rotary_limit(config), self._max_model_len)
        return min((int(length) for length in limits if length), default=2**31)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        self._check_scored(ids, start)

        @torch.no_grad()
        def compute() -> list[float]:
            with model_lock(self.model):
                logits = _plain_logits(self.model, ids)
            log_probs = torch.log_softmax(logits[start - 1 : -1].float(), -1)
            chosen = torch.tensor(list(ids[start:]), device=self.model.device)
            scores: list[float] = log_probs.gather(1, chosen[:, None]).squeeze(1).tolist()
            return scores

        return await asyncio.wrap_future(self._in_thread(compute, wait_for_idle=False))

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        self._synchronize()  # the caller's stream may be computing these weights

        def update() -> int:
            if weights is not None:
                self.model.load_state_dict(weights)
            self._on_new_weights()
            self._synchronize()  # the caller may change or free them
            before, self.weight_version = self.weight_version, self._next_version
            for turn in self._active_turns():
                turn.weights_changed(before, self.weight_version)
            if self.is_paused:
                self._paused_before += time.monotonic() - self._paused_since
                self.is_paused = False
            return self.weight_version

        waits = self.in_flight is None and not self.is_paused
        return self._updated(self._in_thread(update, wait_for_idle=waits))

    def _on_new_weights(self) -> None:
        """Drop what was computed with the old weights. Called in the engine's thread."""

    def pause(self) -> None:
        def hold() -> int:
            self._synchronize()  # a step that is still running reads the weights
            self._paused_since = time.monotonic()
            self.is_paused = True
            return self.weight_version

        if not self.is_paused:
            self._updated(self._in_thread(hold, wait_for_idle=False))


class TransformersEngine(ModelEngine):
    """Any causal language model of transformers, on the device it is on."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        max_batch_size: int = 64,
        max_model_len: int | None = None,
        overflow: Overflow = "truncate",
    ) -> None:
        super().__init__(model, tokenizer, max_model_len, overflow)
        self._max_batch_size = max_batch_size
        self._batch: list[EngineTurn] = []
        self._forward = _padded_logits if _can_pad(model) else _single_logits

    def _active_turns(self) -> list[EngineTurn]:
        return self._batch

    def _advance(self, *, may_admit: bool) -> None:
        while may_admit and self._waiting and len(self._batch) < self._max_batch_size:
            self._batch.append(self._waiting.popleft())
        try:
            self._sample(self._batch)
        except Exception as error:  # goes to the callers; the engine continues
            for turn in self._batch:
                turn.deliver(error)
        if not self._is_closed:
            self._batch = []

    @torch.no_grad()
    def _sample(self, turns: list[EngineTurn]) -> None:
        params = [turn.request.sampling for turn in turns]
        forward = self._forward(self.model, [list(turn.request.prompt_ids) for turn in turns])
        reasons: list[FinishReason | None] = [self._end(turn) for turn in turns]
        chosen: Any = None  # the tokens of the step before
        while None in reasons and not self._is_closed:
            with model_lock(self.model):
                logits = forward.send(chosen)
            log_probs = sampling_log_probs(logits, params)
            uniforms = [turn.rng.random() for turn in turns]
            chosen, chosen_log_probs = choose_tokens(log_probs, params, uniforms)
            drawn = zip(turns, chosen.tolist(), chosen_log_probs.tolist(), strict=True)
            for i, (turn, token, log_prob) in enumerate(drawn):
                if reasons[i] is None:
                    turn.append_tokens([token], [log_prob])
                    reasons[i] = self._end(turn)
                    turn.report()

    def _end(self, turn: EngineTurn) -> FinishReason | None:
        """Deliver the result of a turn that has ended; return why it ended, or None."""
        reason = turn.finish_reason()
        if reason is not None:
            turn.deliver(turn.result(reason, self.weight_version))
        return reason


def _padded_logits(model: Any, sequences: Sequence[Sequence[int]]) -> Logits:
    """Compute sequences as one batch with a KV cache, padded on the left."""
    longest = max(map(len, sequences), default=0)
    rows = [[0] * (longest - len(ids)) + list(ids) for ids in sequences]
    seen = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences]
    new = torch.tensor(rows, device=model.device)
    mask = torch.tensor(seen, device=model.device)
    cache: Any = None
    while True:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
        output = model(
            input_ids=new,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        ids = yield output.logits[:, -1]
        new = ids[:, None]
        mask = torch.cat([mask, torch.ones_like(new)], 1)


def _single_logits(model: Any, sequences: Sequence[Sequence[int]]) -> Logits:
    """Compute each whole sequence by itself, which any causal language model can do."""
    rows = [list(ids) for ids in sequences]
    while True:
        ids = yield torch.stack([_plain_logits(model, row)[-1] for row in rows])
        for row, token in zip(rows, ids.tolist(), strict=True):
            row.append(token)


@torch.no_grad()
def _can_pad(model: Any) -> bool:
    """Return whether padded sequences with a KV cache have the logits of each by itself."""
    # They do not in models with a recurrent state: some have no mask, or another cache.
    vocab_size = model.get_input_embeddings().num_embeddings
    sequences = [[(7 * i + 3) % vocab_size for i in range(length)] for length in (7, 4)]
    last = torch.tensor([5 % vocab_size, 1 % vocab_size], device=model.device)
    single, padded = _single_logits(model, sequences), _padded_logits(model, sequences)
    next(single)
    expected = single.send(last)
    try:
        next(padded)
        gap = (padded.send(last) - expected).abs().max() / (1.0 + expected.abs().max())
        # Up to this they differ by rounding alone.
        if gap <= (1e-3 if expected.dtype == torch.float32 else 0.1):
            return True
    except PROBE_ERRORS as error:
        if is_out_of_memory(error):
            raise
    _log.warning(
        "%s cannot compute padded sequences with a cache. Each sequence is computed by itself, "
        "and anew for every token, which is slow.",
        type(model).__name__,
    )
    return False


def _plain_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits [N, V] of one sequence, from one plain forward."""
    logits: torch.Tensor = model(torch.tensor([list(ids)], device=model.device)).logits[0]
    return logits
