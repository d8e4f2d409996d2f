"""What an engine is: token ids in, sampled ids and their log-probs out; on top of it strings."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, overload

import numpy as np
import torch

from turnwise.chat.encoding import end_ids
from turnwise.config.sections import StaleCache
from turnwise.deadlines import result_within, run_sync
from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference.sampling import SamplingParams

Overflow: TypeAlias = Literal["truncate", "error"]
"""What to do with a request that needs more tokens than the context has."""
Prompts: TypeAlias = str | Sequence[str | Sequence[int]]
"""Prompts of `generate`: one text, or a list of texts or of rows of token ids."""


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    """A stop token or a stop string."""
    LENGTH = "length"
    """The token limit of the request."""
    CONTEXT = "context"
    """The model's context is full."""
    DEADLINE = "deadline"
    """The timeout; the result holds what was sampled until then."""
    ABORTED = "aborted"
    """Cancelled; the result holds what was sampled until then."""


@dataclass(slots=True)
class GenerationRequest:
    """A request to continue these tokens.

    >>> GenerationRequest([5, 6, 7], max_tokens=16, seed=3).sampling.temperature
    1.0
    """

    prompt_ids: Sequence[int]
    """The whole context, from the first token on."""
    max_tokens: int
    """Maximum number of tokens to sample."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the turn; the sampled one is part of the result."""
    stop_strings: tuple[str, ...] = ()
    """Text that ends the turn; the tokens that completed it are part of the result."""
    seed: int = 0
    """Seed of the request's own random stream, which does not depend on other requests."""
    timeout: float | None = None
    """Seconds after which the turn ends with the tokens sampled so far."""
    session: Hashable | None = None
    """Key of a conversation, whose KV cache may be kept for its next turn."""
    branch_of: tuple[Hashable, int] | None = None
    """A session, and how many of its first tokens this prompt starts with. An engine may copy their
    KV cache when it sees the new session for the first time."""
    on_tokens: Callable[[Sequence[int]], None] | None = None
    """Called in the event loop with all tokens so far while the turn is sampled. `local`,
    `transformers`, and `vllm` in this process do so; other engines may not call it."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("the prompt has no tokens, and a model must continue something")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens got {self.max_tokens}, expected 1 or more")


@dataclass(slots=True)
class GenerationResult:
    """The sampled tokens of one request.

    >>> GenerationResult([8, 2], [-0.3, -0.1], FinishReason.STOP, weight_version=0).ids
    [8, 2]
    """

    ids: Sequence[int]
    """The sampled tokens, the stop token included."""
    log_probs: Sequence[float]
    """The log-prob of each, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    weight_version: int
    """Version of the weights that sampled its first token: the number of the engine's updates."""
    later_versions: tuple[tuple[int, int], ...] = ()
    """Weight updates during the turn: the first token that the new weights sampled, and their
    version."""


@dataclass(frozen=True)
class GenerationOutput(Sequence[str]):
    """One answer for each prompt; it is itself the sequence of its strings.

    >>> output = GenerationOutput(["hi"], [[7, 2]], [[-0.1, -0.2]], [FinishReason.STOP], pad_id=0)
    >>> output[0], output.tokens.shape
    ('hi', (1, 2))
    """

    sequences: list[str]
    """The answers as text, without special tokens."""
    token_ids: list[list[int]]
    """The sampled tokens of each answer, stop token included."""
    logprobs: list[list[float]]
    """Their log-probs under the distribution that they were drawn from."""
    finish_reasons: list[FinishReason]
    """Why each answer ended."""
    pad_id: int
    """Pads the shorter rows of `tokens`."""

    @cached_property
    def tokens(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The sampled tokens as one array [batch, longest answer], padded on the right."""
        longest = max((len(ids) for ids in self.token_ids), default=0)
        table = np.full((len(self.token_ids), longest), self.pad_id, dtype=np.int64)
        for row, ids in zip(table, self.token_ids, strict=True):
            row[: len(ids)] = ids
        return table

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.sequences[index]

    def __len__(self) -> int:
        return len(self.sequences)


class BaseInferenceEngine(ABC):
    """An engine: `sample` and `score` on tokens for episodes, `generate` on strings for people.

    Requests run concurrently, and none waits for another. An engine of one's own needs `sample` and
    `context_length`, and `update_weights` to be trained with. It is made with the path of a model,
    `tokenizer=` and its options.
    """

    shares_model = False
    """Whether it samples from a model that the caller has loaded, the learner's for instance."""
    server: type[BaseInferenceEngine] | None = None
    """The engine for a running server at a URL, where there is one."""

    update_timeout = 1800.0
    """Seconds for running turns to finish and new weights to load, also from a slow disk."""

    merges_adapters = True
    """Whether turns are sampled from weights with the adapters merged in."""

    _vocab_size = 2**31  # for engines that do not know it

    def __init__(self, tokenizer: Any = None, overflow: Overflow = "truncate") -> None:
        self.tokenizer = tokenizer
        self.weight_version = 0
        self._coming_version: int | None = None
        self.in_flight: StaleCache | None = None
        """Set to load new weights while turns are sampled, where the engine can: what happens to
        the KV cache of their tokens. None: an update waits until the running turns have ended."""
        self.is_paused = False
        """Whether no turn is sampled, since shared weights are being changed (`pause`)."""
        self._paused_since = 0.0
        self._paused_before = 0.0
        self._overflow = overflow

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its turn together."""

    @property
    def options(self) -> dict[str, Any]:
        """The engine's options, for the records of a run."""
        return {"context_length": self.context_length, "overflow": self._overflow}

    @abstractmethod
    async def sample(self, request: GenerationRequest) -> GenerationResult:
        """Sample one turn. Cancelling the call aborts the request."""

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        """Return the log-probs of `ids[start:]`, given all earlier tokens, at temperature 1."""
        raise ConfigError(f"{type(self).__name__} does not score texts")

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Load new weights; None means that shared ones have changed. Return the new version.

        No turn is sampled with two versions, and no KV cache of the old weights is used again,
        unless the engine was made to update in flight.
        """
        raise ConfigError(f"{type(self).__name__} takes no new weights")

    def load_version(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Load weights whose version the caller counts."""
        self._coming_version = version
        try:
            self.update_weights(weights)
        finally:
            self._coming_version = None

    @property
    def _next_version(self) -> int:
        """The version of the weights that are being loaded."""
        version = self._coming_version
        return self.weight_version + 1 if version is None else version

    def pause(self) -> None:
        """Hold the engine between two steps until `update_weights`, if it shares the weights.

        An optimizer changes them in place. By default an engine has weights of its own.
        """

    @property
    def paused_seconds(self) -> float:
        """How long the engine was paused since it was made: no deadline counts this time."""
        now = time.monotonic() - self._paused_since if self.is_paused else 0.0
        return self._paused_before + now

    def _updated(self, version: Future[int]) -> int:
        """Wait for the new version; raise `DeadlineExceeded` if it takes too long."""
        return result_within(
            version,
            self.update_timeout,
            "taking new weights",
            "The engine hangs, or a turn under way does not end. The run resumes from its last "
            "checkpoint when it is started again.",
        )

    def sleep(self) -> None:
        """Free the engine's memory on the GPU until its next weights, if it was asked to."""

    def end_session(self, session: Hashable) -> None:
        """Free what is kept for a conversation that has ended; by default nothing is."""

    def close(self) -> None:
        """Free the engine; may be called twice. Running requests end as aborted."""

    def generate(
        self,
        prompts: Prompts,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        *,
        top_k: int = 0,
        min_p: float = 0.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        timeout: float | None = None,
        max_new_tokens: int | None = None,
    ) -> GenerationOutput:
        """Continue each prompt, all at once; the output is the sequence of the answers.

        Prompts are plain text, encoded as the tokenizer does, or token ids. Each gets a random
        stream of its own, so the same seed gives the same answers. `max_new_tokens` is another
        name for `max_tokens`.
        """
        requests = [
            GenerationRequest(
                self._encode(text) if isinstance(text, str) else list(text),
                max_new_tokens if max_new_tokens is not None else max_tokens,
                SamplingParams(temperature, top_k, top_p, min_p),
                stop_ids=self._end_ids,
                stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
                seed=seed + i,
                timeout=timeout,
            )
            for i, text in enumerate([prompts] if isinstance(prompts, str) else prompts)
        ]

        async def sample_all() -> list[GenerationResult]:
            return await asyncio.gather(*(self.sample(request) for request in requests))

        results = run_sync(sample_all())
        answers = []
        for result in results:
            ids = list(result.ids)
            if result.finish_reason is FinishReason.STOP and ids and ids[-1] in self._end_ids:
                ids.pop()  # it may not be a special token, which the decoder leaves out
            answers.append(str(self.tokenizer.decode(ids, skip_special_tokens=True)))
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return GenerationOutput(
            answers,
            [list(result.ids) for result in results],
            [list(result.log_probs) for result in results],
            [result.finish_reason for result in results],
            pad_id=int(next((i for i in (pad, end) if i is not None), 0)),
        )

    def compute_log_probs(self, prompts: Sequence[str], responses: Sequence[str]) -> torch.Tensor:
        """Return the log-prob of each response given its prompt, summed over its tokens [B].

        Prompt and response are encoded separately, so that the prompt's tokens do not depend on
        the response.
        """
        if len(prompts) != len(responses):
            raise ConfigError(f"got {len(prompts)} prompts and {len(responses)} responses")

        async def score(prompt: str, response: str) -> float:
            before = self._encode(prompt)
            after = self.tokenizer.encode(response, add_special_tokens=False)
            return sum(await self.score([*before, *after], len(before))) if after else 0.0

        async def score_all() -> list[float]:
            return await asyncio.gather(*map(score, prompts, responses))

        return torch.tensor(run_sync(score_all()))

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise ConfigError("this engine has no tokenizer for strings. Pass tokenizer=.")
        return list(self.tokenizer.encode(text))

    @cached_property
    def _end_ids(self) -> frozenset[int]:
        return end_ids(self.tokenizer)

    def context_left(self, request: GenerationRequest) -> int:
        """Return the tokens that fit into the context after the prompt.

        With overflow="error", raise if they are fewer than the request asks for; otherwise the
        turn ends with `FinishReason.CONTEXT`.
        """
        length = len(request.prompt_ids)
        left = self.context_length - length
        if self._overflow == "error" and left < request.max_tokens:
            raise ConfigError(
                f"a prompt of {length} tokens with max_tokens={request.max_tokens} needs more than "
                f"the context, which holds {self.context_length}. overflow='truncate' cuts the turn"
            )
        return max(left, 0)

    def _check_ids(self, ids: Sequence[int]) -> None:
        """Raise for ids without an embedding, which may break the whole engine."""
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            token = next(token for token in ids if not 0 <= token < self._vocab_size)
            raise ConfigError(
                f"the prompt got the token {token}, expected one of the model's vocabulary, 0 to "
                f"{self._vocab_size - 1}. Is this the model's own tokenizer?"
            )

    def _check_scored(self, ids: Sequence[int], start: int) -> None:
        """Raise if the first token would be scored, or the tokens exceed the context."""
        if not 1 <= start <= len(ids):
            raise ConfigError(f"score got start={start}, expected 1 to {len(ids)}, its tokens")
        if len(ids) > self.context_length:
            raise ConfigError(
                f"score got {len(ids)} tokens, and the context holds {self.context_length}"
            )
        self._check_ids(ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_options(engine: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise for an option that an engine does not have."""
    for name in options:
        if name not in known:
            raise ConfigError(f"{engine} has no option {name!r}. {did_you_mean(name, known)}")
