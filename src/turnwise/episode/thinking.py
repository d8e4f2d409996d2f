"""Samples a turn with a budget for its thoughts, and with a given beginning of its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.episode.seeds import derive_seed
from turnwise.episode.setup import EpisodeSetup
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.worker import length_to_stop
from turnwise.tools.thoughts import THOUGHT_ENDS, close_of

Sample: TypeAlias = Callable[[GenerationRequest], Awaitable[GenerationResult]]
_LEAST_SECONDS = 0.001


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
    setup: EpisodeSetup, request: GenerationRequest, sample: Sample, opening: Sequence[int] = ()
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
        return await _continued(setup, request, sample, None, opening, started)
    budget = setup.limits.max_thinking_tokens
    most = request.max_tokens if budget is None else min(budget, request.max_tokens)
    if most == request.max_tokens and not opening:
        return _tokens(await sample(request))
    stops = (*request.stop_strings, *(THOUGHT_ENDS if opening else ()))
    first = await sample(dataclasses.replace(request, max_tokens=most, stop_strings=stops))
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
    return await _continued(setup, request, sample, first, inserted, started)


async def _continued(
    setup: EpisodeSetup,
    request: GenerationRequest,
    sample: Sample,
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
    rest = await sample(
        dataclasses.replace(
            request,
            prompt_ids=[*request.prompt_ids, *ids],
            max_tokens=request.max_tokens - len(ids),
            seed=derive_seed(request.seed, "after the thought"),
            timeout=timeout,
            branch_of=request.branch_of if first is None else None,
            on_tokens=request.on_tokens and _after(ids, request.on_tokens),
        )
    )
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
