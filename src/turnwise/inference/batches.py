"""Generation for long lists of prompts: a bounded number at once, failures collected."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference.base import BaseInferenceEngine, GenerationOutput, Prompts
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult


class BatchError(TurnwiseError, RuntimeError):
    """Some prompts of a batch failed; the answers to the others are here.

    `output` has an entry for every prompt, in order; those of failed prompts are empty and aborted.
    `failures` maps the index of a prompt to its exception.
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
    """Generates for any number of prompts, `batch_size` of them at a time.

    When one answer is finished, the next prompt starts; none waits for the slowest. On a terminal,
    a list longer than `batch_size` has a progress bar.
    """

    def __init__(self, engine: BaseInferenceEngine, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size got {batch_size}, expected 1 or more")
        self.engine = engine
        self.batch_size = batch_size

    def generate_batch(
        self, prompts: Prompts, max_tokens: int = 256, **sampling: Any
    ) -> GenerationOutput:
        """Return what `engine.generate` returns for these prompts; it takes the same options.

        A prompt that fails does not stop the others: a `BatchError` at the end names it and holds
        the answers. If only failures come in a row, the remaining prompts are not tried.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        with _progress(len(prompts), self.batch_size) as report:
            window = _Window(self.engine, self.batch_size, report)
            # With the defaults of this engine.
            asked = inspect.signature(self.engine.generate).bind(prompts, max_tokens, **sampling)
            asked.apply_defaults()
            output = window.generate(*asked.args, **asked.kwargs)
        if window.failures:
            raise BatchError(_explain(window, prompts), output, window.failures)
        return output


class _Window(BaseInferenceEngine):
    """An engine that passes at most `size` requests at once to another, and collects failures."""

    def __init__(
        self,
        engine: BaseInferenceEngine,
        size: int,
        report: Callable[[GenerationResult], None],
    ) -> None:
        super().__init__(engine.tokenizer)
        self.failures: dict[int, Exception] = {}
        self.num_untried = 0
        self._engine = engine
        # So many in a row mean that the engine is broken, not the prompts.
        self._most_failures = max(size, 8)
        self._slots = asyncio.Semaphore(size)
        self._report = report
        self._num_seen = 0
        self._num_failed_in_a_row = 0

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        # `generate` calls in the order of the prompts, and nothing is awaited before this.
        index, self._num_seen = self._num_seen, self._num_seen + 1
        result = GenerationResult([], [], FinishReason.ABORTED, self._engine.weight_version)
        async with self._slots:
            if self._num_failed_in_a_row >= self._most_failures:
                self.num_untried += 1
                return result
            try:
                result = await self._engine.sample(request)
                self._num_failed_in_a_row = 0
            except Exception as error:  # reported at the end
                self.failures[index] = error
                self._num_failed_in_a_row += 1
        self._report(result)
        return result

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        return await self._engine.score(ids, start)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        return self._engine.update_weights(weights)

    def close(self) -> None:
        """Leaves the engine open: it belongs to the caller."""


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
    """Show a progress bar on a terminal, if the list is long."""
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

        def report(result: GenerationResult) -> None:
            nonlocal num_tokens
            num_tokens += len(result.ids)
            progress.update(task, advance=1, num_tokens=num_tokens)

        yield report
