"""One turn as SGLang samples it, in one request or several."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.inference.base import FinishReason
from turnwise.inference.sglang.wire import Response
from turnwise.inference.worker import SampledTurn, length_to_stop


@dataclass(eq=False)
class StreamedTurn(SampledTurn):
    """A request that is being sampled."""

    deadline: float | None
    """On the clock of the engine's event loop."""

    @property
    def num_left(self) -> int:
        """How many more tokens may be sampled."""
        return min(self.request.max_tokens, self.context_left) - len(self.ids)

    def time_left(self, now: float) -> float | None:
        return None if self.deadline is None else max(self.deadline - now, 0.0)

    def add(self, response: Response, *, is_cut: bool) -> bool:
        """Append what was sampled; return whether the turn has ended.

        It has not if SGLang stopped at an end token of the model that the request does not list,
        or at an abort that only cuts the turn for an update of the weights.
        """
        self.ids += response.ids
        self.log_probs += response.log_probs
        if is_cut and response.finish == "abort":
            return self.cut_at_stop_string() or self.finish_reason() is not None
        is_unrequested_end = (
            response.finish == "stop"
            and isinstance(response.matched, int)
            and response.matched not in self.request.stop_ids
        )
        return not is_unrequested_end or self.num_left <= 0

    def reason(self, response: Response, now: float) -> FinishReason:
        """Return why the turn ended with this response."""
        if response.finish == "abort":
            is_late = self.time_left(now) == 0.0
            return self.finish_reason() or (
                FinishReason.DEADLINE if is_late else FinishReason.ABORTED
            )
        if response.finish == "stop" and (
            isinstance(response.matched, str) or response.matched in self.request.stop_ids
        ):
            return FinishReason.STOP
        is_full = len(self.ids) < self.request.max_tokens
        return FinishReason.CONTEXT if is_full else FinishReason.LENGTH

    def cut_at_stop_string(self) -> bool:
        """Drop what follows a stop string that SGLang missed; return whether there is one.

        SGLang checks as many tokens as the encoded string has; the model may have used more.
        """
        if self.decode is None:
            return False
        length = length_to_stop(self.ids, self.request.stop_strings, self.decode)
        if length is None:
            return False
        del self.ids[length:], self.log_probs[length:]
        return True
