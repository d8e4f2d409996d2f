"""Samples a turn: asks the engine, keeps to a budget of thoughts, begins an answer as it must."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.episode.options import EpisodeSetup
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import TurnRecord
from turnwise.errors import DeadlineExceeded, EngineError
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.worker import length_to_stop
from turnwise.tools.thoughts import THOUGHT_ENDS, closing_tags

_LEAST_SECONDS = 0.001
_GRACE_SECONDS = 10.0
"""An engine applies the timeout of a request itself; this is for one that does not."""
_CANCEL_SECONDS = 5.0
"""For an engine to end a request that was cancelled."""
_PAUSE_SECONDS = 0.1
"""The shortest time after which a clock that stood still is read again."""


@dataclass(slots=True)
class TurnTokens(GenerationResult):
    """The tokens of one turn; `log_probs` has one for each token that the policy sampled."""

    inserted: tuple[int, int] | None = None
    """The span of `ids` that was not sampled: the end of a thought, the opening of a call."""

    @property
    def sampled_ids(self) -> Sequence[int]:
        if self.inserted is None:
            return self.ids
        return [*self.ids[: self.inserted[0]], *self.ids[self.inserted[1] :]]

    def record(self, text: str, **facts: Any) -> TurnRecord:
        """Returns the record of the turn; its place in a stream is known later."""
        return TurnRecord(
            (0, 0),
            text,
            self.finish_reason,
            self.weight_version,
            later_versions=self.later_versions,
            **facts,
        )


async def sample_turn(
    setup: EpisodeSetup, request: GenerationRequest, opening: Sequence[int] = ()
) -> TurnTokens:
    """Samples a turn; a thought that uses up `max_thinking_tokens` is closed, and the turn goes on.

    `opening` are tokens that the answer begins with, such as those of a tool call. Where the model
    may think they follow its thought, and a turn without a thought is left as it is. Tokens that
    close a thought or open an answer were not sampled: they have no log-probs and are not trained
    on.
    """
    if len(opening) >= request.max_tokens:
        opening = ()
    started = setup.waits.clock()
    first = TurnTokens([], [], FinishReason.LENGTH, 0)
    inserted = opening
    if not opening or setup.chat.may_think(request.prompt_ids):
        budget = setup.limits.max_thinking_tokens
        most = request.max_tokens if budget is None else min(budget, request.max_tokens)
        stops = (*request.stop_strings, *(THOUGHT_ENDS if opening else ()))
        thinking = dataclasses.replace(request, max_tokens=most, stop_strings=stops)
        first = await _ask_engine(setup, thinking)
        is_whole = most == request.max_tokens and not opening
        close = None if is_whole else _end_of_thought(setup, request, first, bool(opening))
        if close is not None:
            inserted = [*setup.chat.written_ids(close), *opening] if close else []
        if close is None or request.max_tokens - len(first.ids) - len(inserted) < 1:
            return first
    return await _continued(setup, request, first, inserted, started)


def _end_of_thought(
    setup: EpisodeSetup, request: GenerationRequest, first: GenerationResult, has_opening: bool
) -> str | None:
    """Returns what ends the thought, "" if none is open; None if the turn is already over."""
    text = setup.chat.decode(first.ids, setup.chat.thought_marks)
    if first.finish_reason is FinishReason.LENGTH:
        return closing_tags(text, in_thought=setup.chat.begins_in_thought(request.prompt_ids)) or ""
    is_stopped = has_opening and text.endswith(THOUGHT_ENDS)
    return "\n\n" if is_stopped and first.ids[-1] not in request.stop_ids else None


async def _continued(
    setup: EpisodeSetup,
    request: GenerationRequest,
    first: TurnTokens,
    inserted: Sequence[int],
    started: float,
) -> TurnTokens:
    """Samples the rest of a turn after what was sampled of it, and what is inserted there."""
    ids = [*first.ids, *inserted]
    on_tokens = request.on_tokens
    timeout = request.timeout
    if timeout is not None:
        timeout = max(timeout - (setup.waits.clock() - started), _LEAST_SECONDS)

    def report_whole_turn(new: Sequence[int]) -> None:
        assert on_tokens is not None
        on_tokens([*ids, *new])

    rest = await _ask_engine(
        setup,
        dataclasses.replace(
            request,
            prompt_ids=[*request.prompt_ids, *ids],
            max_tokens=request.max_tokens - len(ids),
            seed=derive_seed(request.seed, "after the thought"),
            timeout=timeout,
            branch_of=None if first.ids else request.branch_of,
            on_tokens=None if on_tokens is None else report_whole_turn,
        ),
    )
    num_rest, reason = len(rest.ids), rest.finish_reason
    if not inserted:  # a stop string may begin in what was sampled first
        tokenizer = setup.chat.tokenizer
        length = length_to_stop(
            [*ids, *rest.ids],
            request.stop_strings,
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        )
        if length is not None:
            num_rest = max(length - len(ids), 0)
            reason = FinishReason.STOP
    versions = [(0, first.weight_version), *first.later_versions] if first.ids else []
    versions.append((len(ids), rest.weight_version))
    versions += [(len(ids) + at, number) for at, number in rest.later_versions if at < num_rest]
    return TurnTokens(
        [*ids, *rest.ids[:num_rest]],
        [*first.log_probs, *rest.log_probs[:num_rest]],
        reason,
        versions[0][1],
        tuple(new for old, new in itertools.pairwise(versions) if new[1] != old[1]),
        (len(first.ids), len(ids)) if inserted else None,
    )


async def _ask_engine(setup: EpisodeSetup, request: GenerationRequest) -> TurnTokens:
    """Gives up an engine that does not keep to the request's timeout; checks what it returns."""
    waits = setup.waits  # its clock stands still while an update pauses the engine
    limit = math.inf if request.timeout is None else request.timeout + _GRACE_SECONDS
    deadline = waits.clock() + limit
    # A task of its own: an engine that ignores its cancellation must not hold up the episode.
    sampling = asyncio.create_task(setup.engine.sample(request))
    try:
        while not sampling.done() and (left := deadline - waits.clock()) > 0:
            timeout = None if left == math.inf else max(left, _PAUSE_SECONDS)
            await asyncio.wait({sampling}, timeout=timeout)
        is_late = not sampling.done()
    finally:
        if not sampling.done():
            sampling.cancel()
            await asyncio.wait({sampling}, timeout=_CANCEL_SECONDS)
    waits.engine_answered(is_late=is_late)
    if is_late:
        raise too_slow(limit)
    if sampling.cancelled() or sampling.result().finish_reason is FinishReason.ABORTED:
        raise EngineError("the engine cancelled the turn; was it closed?")
    result = sampling.result()
    reason, version = result.finish_reason, result.weight_version
    if not result.ids and reason is FinishReason.DEADLINE:
        raise too_slow(request.timeout)
    if not result.ids:
        raise EngineError(f"the engine returned a turn without tokens ({reason})")
    if not math.isfinite(sum(result.log_probs)):
        raise EngineError("the engine returned log-probs that are not finite")
    return TurnTokens(result.ids, result.log_probs, reason, version, result.later_versions)


def too_slow(limit: float | None) -> DeadlineExceeded:
    """Returns the error for a turn that the engine did not finish in time."""
    return DeadlineExceeded(
        f"the engine took longer than {limit:g} s for a turn. Lower inference.max_tokens, or raise "
        "limits.generation_timeout."
    )
