"""Samples a turn with a budget for its thoughts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.episode.seeds import derive_seed
from turnwise.episode.setup import EpisodeSetup
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult
from turnwise.tools.thoughts import close_of

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
    """The span of `ids` that the policy did not sample: the end of a thought."""
    later_versions: tuple[tuple[int, int], ...] = ()
    """As in `GenerationResult`."""

    @property
    def sampled_ids(self) -> Sequence[int]:
        if self.inserted is None:
            return self.ids
        return [*self.ids[: self.inserted[0]], *self.ids[self.inserted[1] :]]


async def sample_turn(
    setup: EpisodeSetup, request: GenerationRequest, sample: Sample
) -> TurnTokens:
    """Samples a turn; a thought that uses up `max_thinking_tokens` is closed, and the turn goes on.

    The tokens that close it were not sampled: they have no log-probs and are not trained on.
    """
    budget = setup.limits.max_thinking_tokens
    if budget is None or budget >= request.max_tokens:
        return _tokens(await sample(request))
    started = time.monotonic()
    first = await sample(dataclasses.replace(request, max_tokens=budget))
    if first.finish_reason is not FinishReason.LENGTH:
        return _tokens(first)
    text = setup.chat.decode(first.ids, setup.thought_marks)
    close = close_of(text, in_thought=setup.begins_in_thought(request.prompt_ids))
    inserted = [] if close is None else setup.chat.written_ids(close)
    num_left = request.max_tokens - len(first.ids) - len(inserted)
    if num_left < 1:  # an answer does not fit
        return _tokens(first)
    ids = [*first.ids, *inserted]
    timeout = request.timeout
    if timeout is not None:
        timeout = max(timeout - (time.monotonic() - started), _LEAST_SECONDS)
    rest = await sample(
        dataclasses.replace(
            request,
            prompt_ids=[*request.prompt_ids, *ids],
            max_tokens=num_left,
            seed=derive_seed(request.seed, "after the thought"),
            timeout=timeout,
            branch_of=None,
            on_tokens=request.on_tokens and _after(ids, request.on_tokens),
        )
    )
    changes = [(0, rest.weight_version), *rest.later_versions]
    versions = [*first.later_versions, *((len(ids) + start, version) for start, version in changes)]
    return TurnTokens(
        [*ids, *rest.ids],
        [*first.log_probs, *rest.log_probs],
        rest.finish_reason,
        first.weight_version,
        (len(first.ids), len(ids)) if inserted else None,
        _changes(first.weight_version, versions),
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
