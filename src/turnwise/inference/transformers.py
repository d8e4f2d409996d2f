"""The plain engine: a Hugging Face model, forward by forward. The others are tested against it.

Requests that are waiting are sampled together as one padded batch; those that come while a batch
is at work wait for its end.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.sampling import choose_tokens, sampling_log_probs


@dataclass
class _Row:
    """A request that is being sampled."""

    request: GenerationRequest
    future: asyncio.Future[GenerationResult]
    loop: asyncio.AbstractEventLoop
    room: int
    """Tokens that the context still holds."""
    rng: random.Random = field(init=False)
    started: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.request.seed)

    def settle(self, weight_version: int, error: BaseException | None = None) -> None:
        """Hand the result to whoever waits, in their own loop."""

        def hand_over() -> None:
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
                return
            reason = self.reason or FinishReason.ABORTED
            result = GenerationResult(self.ids, self.log_probs, reason, weight_version)
            self.future.set_result(result)

        self.loop.call_soon_threadsafe(hand_over)


class TransformersEngine:
    """Any causal language model of transformers, on the device it is on."""

    def __init__(self, model: Any, tokenizer: Any = None, max_batch_size: int = 64) -> None:
        self.model = model.eval()
        self.weight_version = 0
        self._tokenizer = tokenizer
        self._max_batch_size = max_batch_size
        self._waiting: queue.SimpleQueue[_Row | None] = queue.SimpleQueue()
        self._is_closed = False
        self._at_work = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="turnwise: engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        if self._is_closed:
            raise RuntimeError("this engine is closed. Make a new one.")
        loop = asyncio.get_running_loop()
        room = self._context_length - len(request.prompt_ids)
        row = _Row(request, loop.create_future(), loop, room)
        self._waiting.put(row)
        return await row.future

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        with self._at_work:
            if weights is not None:
                self.model.load_state_dict(weights)
            self.weight_version += 1
            return self.weight_version

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._waiting.put(None)  # wakes the thread
            self._thread.join()
            while not self._waiting.empty():
                if (row := self._waiting.get()) is not None:
                    row.settle(self.weight_version)

    @property
    def _context_length(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", 2**31))

    def _work(self) -> None:
        while not self._is_closed:
            rows = self._next_rows()
            with self._at_work:
                try:
                    self._sample(rows)
                    error = None
                except Exception as raised:  # handed to those who wait; the engine lives on
                    error = raised
                for row in rows:
                    row.settle(self.weight_version, error)

    def _next_rows(self) -> list[_Row]:
        """Wait for a request, then take along whatever else is waiting; none when it closes."""
        rows = [self._waiting.get()]
        while len(rows) < self._max_batch_size and not self._waiting.empty():
            rows.append(self._waiting.get())
        return [row for row in rows if row is not None]

    @torch.no_grad()
    def _sample(self, rows: list[_Row]) -> None:
        device = self.model.device
        longest = max((len(row.request.prompt_ids) for row in rows), default=0)
        ids = torch.zeros(len(rows), longest, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            prompt = torch.tensor(list(row.request.prompt_ids), device=device)
            ids[i, longest - len(prompt) :] = prompt  # padded on the left: all end together
            mask[i, longest - len(prompt) :] = 1
            row.reason = self._ending(row)
        cache: Any = None
        while any(row.reason is None for row in rows):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            params = [row.request.sampling for row in rows]
            uniforms = [row.rng.random() for row in rows]
            log_probs = sampling_log_probs(output.logits[:, -1], params)
            chosen, chosen_log_probs = choose_tokens(log_probs, params, uniforms)
            for row, token, log_prob in zip(
                rows, chosen.tolist(), chosen_log_probs.tolist(), strict=True
            ):
                if row.reason is None:
                    row.ids.append(token)
                    row.log_probs.append(log_prob)
                    row.reason = self._ending(row)
            ids = chosen[:, None]
            mask = torch.cat([mask, torch.ones_like(ids)], 1)

    def _ending(self, row: _Row) -> FinishReason | None:
        """Why this row samples no further; None if it goes on."""
        request = row.request
        if row.ids and row.ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if row.ids and request.stop_strings:
            text = self._tokenizer.decode(row.ids)
            if any(stop in text for stop in request.stop_strings):
                return FinishReason.STOP
        if len(row.ids) >= request.max_tokens:
            return FinishReason.LENGTH
        if len(row.ids) >= row.room:
            return FinishReason.CONTEXT
        if request.timeout is not None and time.monotonic() - row.started > request.timeout:
            return FinishReason.DEADLINE
        if self._is_closed or row.future.cancelled():
            return FinishReason.ABORTED
        return None
