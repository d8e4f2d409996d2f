"""The plain engine: a Hugging Face model, forward by forward. The others are tested against it.

Requests that are waiting are sampled together as one padded batch; those that come while a batch
is at work wait for its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from turnwise.inference.base import Overflow
from turnwise.inference.comparison import (
    PROBE_ERRORS,
    is_out_of_memory,
    largest_gap,
    relative_gap,
)
from turnwise.inference.protocol import FinishReason
from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.turns import EngineTurn
from turnwise.inference.worker import WorkerEngine

_log = logging.getLogger(__name__)


class TransformersEngine(WorkerEngine):
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
        super().__init__(tokenizer, overflow)
        self.model = model.eval()
        self._max_model_len = max_model_len
        self._max_batch_size = max_batch_size
        self._batch: list[EngineTurn] = []
        self._forward = _Padded if _can_pad(model) else _OneByOne

    @property
    def context_length(self) -> int:
        return context_length(self.model, self._max_model_len)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        task = self._in_thread(lambda: plain_scores(self.model, ids, start), wait_for_idle=False)
        return await asyncio.wrap_future(task)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        def update() -> int:
            if weights is not None:
                self.model.load_state_dict(weights)
            self.weight_version += 1
            return self.weight_version

        return self._updated(self._in_thread(update, wait_for_idle=True))

    def _active_turns(self) -> list[EngineTurn]:
        return self._batch

    def _advance(self, *, may_admit: bool) -> None:
        while may_admit and self._waiting and len(self._batch) < self._max_batch_size:
            self._batch.append(self._waiting.popleft())
        try:
            self._sample(self._batch)
        except Exception as error:  # handed to those who wait; the engine lives on
            for turn in self._batch:
                turn.fail(error)
        if not self._is_closed:
            self._batch = []

    @torch.no_grad()
    def _sample(self, turns: list[EngineTurn]) -> None:
        params = [turn.request.sampling for turn in turns]
        forward = self._forward(self.model, [list(turn.request.prompt_ids) for turn in turns])
        reasons: list[FinishReason | None] = [self._end(turn) for turn in turns]
        while None in reasons and not self._is_closed:
            log_probs = sampling_log_probs(forward.next_logits(), params)
            uniforms = [turn.rng.random() for turn in turns]
            chosen, chosen_log_probs = choose_tokens(log_probs, params, uniforms)
            drawn = zip(chosen.tolist(), chosen_log_probs.tolist(), strict=True)
            for i, (token, log_prob) in enumerate(drawn):
                if reasons[i] is None:
                    turns[i].ids.append(token)
                    turns[i].log_probs.append(log_prob)
                    reasons[i] = self._end(turns[i])
            forward.append(chosen)

    def _end(self, turn: EngineTurn) -> FinishReason | None:
        """Settle a turn that has ended."""
        reason = turn.finish_reason()
        if reason is not None:
            turn.finish(reason, self.weight_version)
        return reason


class _Padded:
    """Sequences as one batch, padded on the left, so that all end together; with a cache."""

    def __init__(self, model: Any, sequences: Sequence[Sequence[int]]) -> None:
        self._model = model
        longest = max(map(len, sequences), default=0)
        rows = [[0] * (longest - len(ids)) + list(ids) for ids in sequences]
        seen = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences]
        self._new = torch.tensor(rows, device=model.device)
        self._mask = torch.tensor(seen, device=model.device)
        self._cache: Any = None

    def next_logits(self) -> torch.Tensor:
        """After the last token of each sequence [B, V]."""
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -self._new.shape[1] :]
        output = self._model(
            input_ids=self._new,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = output.past_key_values
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def append(self, ids: torch.Tensor) -> None:
        """One more token for each sequence [B]."""
        self._new = ids[:, None]
        self._mask = torch.cat([self._mask, torch.ones_like(self._new)], 1)


class _OneByOne:
    """Each sequence by itself and as a whole: what any causal language model can do."""

    def __init__(self, model: Any, sequences: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._sequences = [list(ids) for ids in sequences]

    def next_logits(self) -> torch.Tensor:
        return torch.stack([_plain_logits(self._model, ids)[-1] for ids in self._sequences])

    def append(self, ids: torch.Tensor) -> None:
        for sequence, token in zip(self._sequences, ids.tolist(), strict=True):
            sequence.append(token)


@torch.no_grad()
def _can_pad(model: Any) -> bool:
    """Whether padded sequences with a cache have the logits of each sequence by itself.

    Not so with models that keep another state than keys and values: some do not take a mask, or
    call their cache otherwise.
    """
    vocab_size = model.get_input_embeddings().num_embeddings
    sequences = [[(7 * i + 3) % vocab_size for i in range(length)] for length in (7, 4)]
    one_by_one = _OneByOne(model, sequences)
    last = torch.tensor([5 % vocab_size, 1 % vocab_size], device=model.device)
    one_by_one.append(last)
    expected = one_by_one.next_logits()
    try:
        padded = _Padded(model, sequences)
        padded.next_logits()
        padded.append(last)
        gap = relative_gap(padded.next_logits(), expected)
    except PROBE_ERRORS as error:
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {error}"
    else:
        if gap <= largest_gap(expected.dtype):
            return True
        reason = f"its logits are then {gap:.2g} away from those of each by itself"
    _log.warning(
        "%s cannot compute padded sequences with a cache (%s). Each sequence is computed by "
        "itself, and anew for every token, which is slow.",
        type(model).__name__,
        reason,
    )
    return False


def context_length(model: Any, at_most: int | None) -> int:
    """Tokens that a model has positions for, or fewer if so wished.

    Some rotary embeddings change for all tokens of a text that is longer than some length. What
    was computed before is then another model's, so that they are used up to that length alone.
    """
    config = model.config
    length = int(getattr(config, "max_position_embeddings", None) or 2**31)
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") in {"dynamic", "longrope"}:
        original = rotary.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        length = min(length, int(original or length))
    return min(length, at_most or length)


def _plain_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits [N, V] of one sequence, from one plain forward."""
    logits: torch.Tensor = model(torch.tensor([list(ids)], device=model.device)).logits[0]
    return logits


@torch.no_grad()
def plain_scores(model: Any, ids: Sequence[int], start: int) -> list[float]:
    """Log-probs of `ids[start:]` from one plain forward of the whole sequence."""
    log_probs = torch.log_softmax(_plain_logits(model, ids)[start - 1 : -1].float(), -1)
    chosen = torch.tensor(list(ids[start:]), device=model.device)
    scores: list[float] = log_probs.gather(1, chosen[:, None]).squeeze(1).tolist()
    return scores
