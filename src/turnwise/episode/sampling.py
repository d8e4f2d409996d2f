"""Samples a turn: asks the engine, keeps to a budget of thoughts, begins an answer as it must."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.deadlines import contained_call
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.seeds import derive_seed
from turnwise.errors import DeadlineExceeded, EngineError
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.worker import length_to_stop
from turnwise.tools.thoughts import THOUGHT_ENDS, close_of

_LEAST_SECONDS = 0.001
_GRACE_SECONDS = 10.0
"""An engine applies the timeout of a request itself; this is for one that does not."""
_CANCEL_SECONDS = 5.0
"""For an engine to end a request that was cancelled."""
_PAUSE_SECONDS = 0.1
"""The shortest time after which a clock that stood still is read again."""


@dataclass(slots=True)
class TurnTokens:
    """The tokens of one turn."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    """One for each token that the policy sampled."""
    finish_reason: FinishReason
    weight_version: int
    inserted: tuple[int, int] | None = None
    """The span of `ids` that was not sampled: the end of a thought, the opening of a call."""
    later_versions: tuple[tuple[int, int], ...] = ()
    """As in `GenerationResult`."""

    @property
    def sampled_ids(self) -> Sequence[int]:
        if self.inserted is None:
            return self.ids
        return [*self.ids[: self.inserted[0]], *self.ids[self.inserted[1] :]]


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
    started = setup.waits.silence.clock()
    if opening and not setup.may_think(request.prompt_ids):
        return await _continued(setup, request, None, opening, started)
    budget = setup.limits.max_thinking_tokens
    most = request.max_tokens if budget is None else min(budget, request.max_tokens)
    if most == request.max_tokens and not opening:
        return _tokens(await _ask_engine(setup, request))
    stops = (*request.stop_strings, *(THOUGHT_ENDS if opening else ()))
    thought = dataclasses.replace(request, max_tokens=most, stop_strings=stops)
    first = await _ask_engine(setup, thought)
    text = setup.chat.decode(first.ids, setup.thought_marks)
    if first.finish_reason is FinishReason.LENGTH:
        close = close_of(text, in_thought=setup.begins_in_thought(request.prompt_ids))
    elif opening and text.endswith(THOUGHT_ENDS) and first.ids[-1] not in request.stop_ids:
        close = "\n\n"
    else:
        return _tokens(first)
    inserted = [] if close is None else [*setup.chat.written_ids(close), *opening]
    if request.max_tokens - len(first.ids) - len(inserted) < 1:  # an answer does not fit
        return _tokens(first)
    return await _continued(setup, request, first, inserted, started)


async def _continued(
    setup: EpisodeSetup,
    request: GenerationRequest,
    first: GenerationResult | None,
    inserted: Sequence[int],
    started: float,
) -> TurnTokens:
    """Samples the rest of a turn after what was sampled of it, and what is inserted there."""
    before = [] if first is None else first.ids
    ids = [*before, *inserted]
    timeout = request.timeout
    if timeout is not None:
        timeout = max(timeout - (setup.waits.silence.clock() - started), _LEAST_SECONDS)
    request_for_rest = dataclasses.replace(
        request,
        prompt_ids=[*request.prompt_ids, *ids],
        max_tokens=request.max_tokens - len(ids),
        seed=derive_seed(request.seed, "after the thought"),
        timeout=timeout,
        branch_of=request.branch_of if first is None else None,
        on_tokens=request.on_tokens and _after(ids, request.on_tokens),
    )
    rest = await _ask_engine(setup, request_for_rest)
    if not inserted:
        rest = _cut_at_stop(setup, request, ids, rest)
    version = rest.weight_version if first is None else first.weight_version
    changes = [(0, rest.weight_version), *rest.later_versions]
    versions = [] if first is None else list(first.later_versions)
    versions += [(len(ids) + start, number) for start, number in changes]
    return TurnTokens(
        [*ids, *rest.ids],
        [*(() if first is None else first.log_probs), *rest.log_probs],
        rest.finish_reason,
        version,
        (len(before), len(ids)) if inserted else None,
        _changes(version, versions),
    )


async def _ask_engine(setup: EpisodeSetup, request: GenerationRequest) -> GenerationResult:
    """Gives up an engine that does not keep to the request's timeout; checks what it returns."""
    silence = setup.waits.silence  # its clock stands still while an update pauses the engine
    limit = math.inf if request.timeout is None else request.timeout + _GRACE_SECONDS
    deadline = silence.clock() + limit
    # A task of its own: an engine that ignores its cancellation must not hold up the episode.
    sampling = asyncio.create_task(contained_call(setup.engine.sample(request), "the engine"))
    try:
        while not sampling.done() and (left := deadline - silence.clock()) > 0:
            timeout = None if left == math.inf else max(left, _PAUSE_SECONDS)
            await asyncio.wait({sampling}, timeout=timeout)
        is_late = not sampling.done()
    finally:
        if not sampling.done():
            sampling.add_done_callback(_look_at)
            sampling.cancel()
            await asyncio.wait({sampling}, timeout=_CANCEL_SECONDS)
    if is_late:
        silence.give_up()
        raise DeadlineExceeded(
            f"the engine took longer than {limit:g} s. Make it faster, raise "
            "limits.generation_timeout, or lower inference.max_tokens."
        )
    silence.end()
    if sampling.cancelled():
        raise EngineError("the engine cancelled the turn; was it closed?")
    result = sampling.result()
    if result.finish_reason is FinishReason.ABORTED:
        raise EngineError("the engine cancelled the turn; was it closed?")
    if not result.ids and result.finish_reason is FinishReason.DEADLINE:
        raise too_slow(request.timeout)
    if not result.ids:
        raise EngineError(f"the engine returned a turn without tokens ({result.finish_reason})")
    if not math.isfinite(sum(result.log_probs)):
        raise EngineError("the engine returned log-probs that are not finite")
    return result


def too_slow(limit: float | None) -> DeadlineExceeded:
    """Returns the error for a turn that the engine did not finish in time."""
    return DeadlineExceeded(
        f"the engine took longer than {limit:g} s for a turn. Lower inference.max_tokens, or raise "
        "limits.generation_timeout."
    )


def _look_at(late: asyncio.Future[GenerationResult]) -> None:
    """Asyncio logs the errors of tasks that nobody has looked at."""
    if not late.cancelled():
        late.exception()


def _cut_at_stop(
    setup: EpisodeSetup, request: GenerationRequest, ids: Sequence[int], rest: GenerationResult
) -> GenerationResult:
    """Drops what follows a stop string that begins in `ids`, where the engine did not look."""
    tokenizer = setup.chat.tokenizer
    length = length_to_stop(
        [*ids, *rest.ids],
        request.stop_strings,
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
    )
    if length is None:
        return rest
    num_kept = max(length - len(ids), 0)
    return GenerationResult(
        rest.ids[:num_kept],
        rest.log_probs[:num_kept],
        FinishReason.STOP,
        rest.weight_version,
        tuple(change for change in rest.later_versions if change[0] < num_kept),
    )


def _after(
    ids: Sequence[int], on_tokens: Callable[[Sequence[int]], None]
) -> Callable[[Sequence[int]], None]:
    return lambda new: on_tokens([*ids, *new])


def _changes(first: int, versions: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns the places at which the version differs from the one before."""
    before = [first, *(version for _, version in versions)]
    return tuple(change for change, old in zip(versions, before, strict=False) if change[1] != old)


def _tokens(result: GenerationResult) -> TurnTokens:
    return TurnTokens(
        result.ids,
        result.log_probs,
        result.finish_reason,
        result.weight_version,
        later_versions=result.later_versions,
    )
