"""One turn as SGLang samples it, in one request or several."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from turnwise.inference.protocol import FinishReason, GenerationRequest
from turnwise.inference.sglang.wire import Response


@dataclass(eq=False)
class StreamedTurn:
    """A request that is being sampled."""

    request: GenerationRequest
    limit: int
    """Maximum number of tokens that fit into the context."""
    deadline: float | None
    """On the clock of the engine's event loop."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def time_left(self, now: float) -> float | None:
        return None if self.deadline is None else max(self.deadline - now, 0.0)

    def add(self, response: Response) -> bool:
        """Append what was sampled; return whether the turn has ended.

        It has not if SGLang stopped at an end token of the model that the request does not list.
        """
        self.ids += response.ids
        self.log_probs += response.log_probs
        is_unrequested_end = (
            response.finish == "stop"
            and isinstance(response.matched, int)
            and response.matched not in self.request.stop_ids
        )
        return not is_unrequested_end or len(self.ids) >= self.limit

    def reason(self, response: Response, now: float) -> FinishReason:
        """Return why the turn ended with this response."""
        if response.finish == "abort":
            return FinishReason.DEADLINE if self.time_left(now) == 0.0 else FinishReason.ABORTED
        if response.finish == "stop" and (
            isinstance(response.matched, str) or response.matched in self.request.stop_ids
        ):
            return FinishReason.STOP
        is_full = len(self.ids) < self.request.max_tokens
        return FinishReason.CONTEXT if is_full else FinishReason.LENGTH

    def cut_at_stop_string(self, tokenizer: Any) -> bool:
        """Drop what follows a stop string that SGLang missed; return whether there is one.

        SGLang checks as many tokens as the encoded string has; the model may have used more.
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
