"""The plain engine: a Hugging Face model, forward by forward. The others are tested against it.

Requests that are waiting are sampled together as one padded batch; those that come while a batch
is at work wait for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from turnwise.inference.base import Overflow
from turnwise.inference.protocol import FinishReason
from turnwise.inference.sampling import choose_tokens, sampling_log_probs
from turnwise.inference.turns import Turn
from turnwise.inference.worker import WorkerEngine


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
        self._batch: list[Turn] = []

    @property
    def context_length(self) -> int:
        return context_length(self.model, self._max_model_len)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        task = self._in_thread(lambda: plain_scores(self.model, ids, start), drained=False)
        return await asyncio.wrap_future(task)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        def update() -> int:
            if weights is not None:
                self.model.load_state_dict(weights)
            self.weight_version += 1
            return self.weight_version

        return self._in_thread(update, drained=True).result()

    def _under_way(self) -> list[Turn]:
        return self._batch

    def _advance(self, *, may_begin: bool) -> None:
        while may_begin and self._waiting and len(self._batch) < self._max_batch_size:
            self._batch.append(self._waiting.popleft())
        try:
            self._sample(self._batch)
        except Exception as error:  # handed to those who wait; the engine lives on
            for turn in self._batch:
                turn.fail(error)
        if not self._is_closed:
            self._batch = []

    @torch.no_grad()
    def _sample(self, turns: list[Turn]) -> None:
        device = self.model.device
        longest = max((len(turn.request.prompt_ids) for turn in turns), default=0)
        ids = torch.zeros(len(turns), longest, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for i, turn in enumerate(turns):
            prompt = torch.tensor(list(turn.request.prompt_ids), device=device)
            ids[i, longest - len(prompt) :] = prompt  # padded on the left: all end together
            mask[i, longest - len(prompt) :] = 1
        params = [turn.request.sampling for turn in turns]
        cache: Any = None
        reasons: list[FinishReason | None] = [self._end(turn) for turn in turns]
        while None in reasons and not self._is_closed:
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            log_probs = sampling_log_probs(output.logits[:, -1], params)
            uniforms = [turn.rng.random() for turn in turns]
            chosen, chosen_log_probs = choose_tokens(log_probs, params, uniforms)
            drawn = zip(chosen.tolist(), chosen_log_probs.tolist(), strict=True)
            for i, (token, log_prob) in enumerate(drawn):
                if reasons[i] is None:
                    turns[i].ids.append(token)
                    turns[i].log_probs.append(log_prob)
                    reasons[i] = self._end(turns[i])
            ids = chosen[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)

    def _end(self, turn: Turn) -> FinishReason | None:
        """Settle a turn that has ended."""
        reason = turn.ending()
        if reason is not None:
            turn.settle(reason, self.weight_version)
        return reason


def context_length(model: Any, at_most: int | None) -> int:
    """Tokens that a model has positions for, or fewer if so wished."""
    length = int(getattr(model.config, "max_position_embeddings", 2**31))
    return min(length, at_most or length)


@torch.no_grad()
def plain_scores(model: Any, ids: Sequence[int], start: int) -> list[float]:
    """Log-probs of `ids[start:]` from one plain forward of the whole sequence."""
    sequence = torch.tensor([list(ids)], device=model.device)
    logits = model(sequence).logits[0, start - 1 : -1]
    log_probs = torch.log_softmax(logits.float(), -1)
    scores: list[float] = log_probs.gather(1, sequence[0, start:, None]).squeeze(1).tolist()
    return scores
