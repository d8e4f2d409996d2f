"""One turn as SGLang samples it, in one request or several."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from turnwise.inference.protocol import FinishReason, GenerationRequest
from turnwise.inference.sglang.wire import Answer


@dataclass(eq=False)
class StreamedTurn:
    """A request that is being sampled."""

    request: GenerationRequest
    limit: int
    """Most tokens, as far as the context has room."""
    deadline: float | None
    """On the clock of the engine's loop."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def time_left(self, now: float) -> float | None:
        return None if self.deadline is None else max(self.deadline - now, 0.0)

    def add(self, answer: Answer) -> bool:
        """Take in what was sampled; whether the turn has ended.

        It has not if it met an end token of the model's that nobody asked to stop at: given any
        stop tokens, SGLang stops at those too.
        """
        self.ids += answer.ids
        self.log_probs += answer.log_probs
        is_foreign = (
            answer.finish == "stop"
            and isinstance(answer.matched, int)
            and answer.matched not in self.request.stop_ids
        )
        return not is_foreign or len(self.ids) >= self.limit

    def reason(self, answer: Answer, now: float) -> FinishReason:
        """Why it ended with this answer."""
        if answer.finish == "abort":
            return FinishReason.DEADLINE if self.time_left(now) == 0.0 else FinishReason.ABORTED
        if answer.finish == "stop" and (
            isinstance(answer.matched, str) or answer.matched in self.request.stop_ids
        ):
            return FinishReason.STOP
        is_full = len(self.ids) < self.request.max_tokens
        return FinishReason.CONTEXT if is_full else FinishReason.LENGTH

    def cut_at_stop_string(self, tokenizer: Any) -> bool:
        """Drop what was sampled after a stop string that SGLang did not see; whether there is one.

        It looks at as many tokens as the string has when it is encoded, and the model may have
        spelt it with more.
        """
        stops = self.request.stop_strings

        def has_stop(length: int) -> bool:
            text = tokenizer.decode(self.ids[:length])
            return any(stop in text for stop in stops)

        if not stops or tokenizer is None or not has_stop(len(self.ids)):
            return False
        length = bisect_left(range(len(self.ids)), True, key=has_stop)
        del self.ids[length:], self.log_probs[length:]
        return True
