"""Long lists of prompts: a window of them at work at once, whatever may fail."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference.base import BaseInferenceEngine, Prompts
from turnwise.inference.output import GenerationOutput
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult


class BatchError(TurnwiseError, RuntimeError):
    """Some prompts of a batch failed; the answers to the others are here.

    `output` has a place for every prompt, in order: empty and aborted where there is no answer.
    `failures` says what went wrong, by the prompt's place in the list.
    """

    def __init__(
        self, message: str, output: GenerationOutput, failures: Mapping[int, Exception]
    ) -> None:
        super().__init__(message, output, failures)
        self.output = output
        self.failures = dict(failures)

    def __str__(self) -> str:
        return str(self.args[0])


class BatchInferenceManager:
    """Generates for any number of prompts, `batch_size` of them at work at any time.

    When one answer ends, the next prompt takes its place; none waits for the slowest. On a
    terminal, a list longer than the window has a progress bar.
    """

    def __init__(self, engine: BaseInferenceEngine, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size got {batch_size}, expected 1 or more")
        self.engine = engine
        self.batch_size = batch_size

    def generate_batch(
        self, prompts: Prompts, max_tokens: int = 256, **sampling: Any
    ) -> GenerationOutput:
        """What `engine.generate` gives for these prompts, and takes.

        A prompt that fails does not stop the others: when all are through, a `BatchError` names
        it and brings the answers. Only when nothing but failures come any more, the rest is not
        tried.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        with _progress(len(prompts), self.batch_size) as tell:
            window = _Window(self.engine, self.batch_size, tell)
            # The engine's own defaults, where nothing is said.
            asked = inspect.signature(self.engine.generate).bind(prompts, max_tokens, **sampling)
            asked.apply_defaults()
            output = window.generate(**asked.arguments)
        if window.failures:
            raise BatchError(_explain(window, prompts), output, window.failures)
        return output


class _Window(BaseInferenceEngine):
    """An engine that hands at most so many requests at once to another, and never fails."""

    def __init__(
        self,
        engine: BaseInferenceEngine,
        size: int,
        tell: Callable[[GenerationResult], None],
    ) -> None:
        super().__init__(engine.tokenizer)
        self.failures: dict[int, Exception] = {}
        self.num_untried = 0
        self._engine = engine
        # So many in a row are the engine's end, and not about these prompts.
        self._most_failures = max(size, 8)
        self._places = asyncio.Semaphore(size)
        self._tell = tell
        self._num_seen = 0
        self._num_failed_in_a_row = 0

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        # `generate` asks in the order of the prompts, and nothing is awaited before this.
        index, self._num_seen = self._num_seen, self._num_seen + 1
        result = GenerationResult([], [], FinishReason.ABORTED, self._engine.weight_version)
        async with self._places:
            if self._num_failed_in_a_row >= self._most_failures:
                self.num_untried += 1
                return result
            try:
                result = await self._engine.sample(request)
                self._num_failed_in_a_row = 0
            except Exception as error:  # told at the end, when nothing is lost by it
                self.failures[index] = error
                self._num_failed_in_a_row += 1
        self._tell(result)
        return result

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        return await self._engine.score(ids, start)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        return self._engine.update_weights(weights)

    def close(self) -> None:
        """The engine belongs to whoever made it."""


def _explain(window: _Window, prompts: Sequence[str | Sequence[int]]) -> str:
    index, error = min(window.failures.items())
    prompt = prompts[index] if isinstance(prompts[index], str) else str(list(prompts[index]))
    prompt = prompt if len(prompt) <= 40 else f"{prompt[:37]}..."
    untried = f" The last {window.num_untried} were not tried, since no other came through."
    return (
        f"{len(window.failures)} of {len(prompts)} prompts failed, the first is prompts[{index}] "
        f"{prompt!r}: {type(error).__name__}: {error}"
        f"{untried if window.num_untried else ''} "
        "The answers to the others are in this error's .output, the causes in .failures."
    )


@contextlib.contextmanager
def _progress(num_prompts: int, window: int) -> Iterator[Callable[[GenerationResult], None]]:
    """A bar on a terminal, if the wait may be long."""
    if num_prompts <= window:
        yield lambda result: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda result: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[num_tokens]:,} tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=num_prompts, num_tokens=0)
        num_tokens = 0

        def tell(result: GenerationResult) -> None:
            nonlocal num_tokens
            num_tokens += len(result.ids)
            progress.update(task, advance=1, num_tokens=num_tokens)

        yield tell
