"""Generation for batches of prompts: long lists, and the interface of VERL's rollouts."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    GenerationResult,
    Prompts,
)
from turnwise.inference.create import create_inference_engine
from turnwise.reward.batches import Columns, RewardBatch, is_data_proto


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
        the answers.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        console, slots = Console(stderr=True), asyncio.Semaphore(self.batch_size)
        failures: dict[int, Exception] = {}
        num_seen = num_tokens = 0

        async def sample(request: GenerationRequest) -> GenerationResult:
            nonlocal num_seen, num_tokens
            # `generate` calls in the order of the prompts, and nothing is awaited before this.
            index, num_seen = num_seen, num_seen + 1
            async with slots:
                try:
                    result = await self.engine.sample(request)
                except Exception as error:  # reported at the end
                    failures[index] = error
                    version = self.engine.weight_version
                    result = GenerationResult([], [], FinishReason.ABORTED, version)
            num_tokens += len(result.ids)
            progress.update(bar, advance=1, num_tokens=num_tokens)
            return result

        # With the defaults of this engine.
        asked = inspect.signature(self.engine.generate).bind(prompts, max_tokens, **sampling)
        asked.apply_defaults()
        with Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[num_tokens]:,} tokens"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=len(prompts) <= self.batch_size or not console.is_terminal,
        ) as progress:
            bar = progress.add_task("", total=len(prompts), num_tokens=0)
            output = _Window(self.engine.tokenizer, sample).generate(*asked.args, **asked.kwargs)
        if failures:
            index, error = min(failures.items())
            prompt = str(prompts[index])
            raise BatchError(
                f"{len(failures)} of {len(prompts)} prompts failed, the first is "
                f"prompts[{index}] {prompt if len(prompt) <= 40 else prompt[:37] + '...'!r}: "
                f"{type(error).__name__}: {error} The answers to the others are in this error's "
                ".output, the causes in .failures.",
                output,
                failures,
            )
        return output


class _Window(BaseInferenceEngine):
    """An engine whose `generate` samples with a function."""

    context_length = 2**31  # the engine itself checks each request

    def __init__(
        self, tokenizer: Any, sample: Callable[[GenerationRequest], Awaitable[GenerationResult]]
    ) -> None:
        super().__init__(tokenizer)
        self._sample = sample

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        return await self._sample(request)


class VLLMRolloutSPMD:
    """Samples responses for batches of prompts, on vLLM or any other engine.

    `model_path` is a model's name, its folder, a server's URL, or an engine, which the caller
    closes. `config` and `tokenizer` are those of `create_inference_engine`. The other options are
    the defaults of `engine.generate` (`max_tokens`, `temperature`, `top_p`, ...).
    """

    def __init__(
        self,
        model_path: Any,
        config: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        *,
        backend: str = "vllm",
        batch_size: int = 256,
        **sampling: Any,
    ) -> None:
        known = inspect.signature(BaseInferenceEngine.generate).parameters
        if wrong := [name for name in sampling if name not in known]:
            raise ConfigError(f"there is no option {wrong[0]!r}. {did_you_mean(wrong[0], known)}")
        self._owns_engine = not isinstance(model_path, BaseInferenceEngine)
        self.engine: BaseInferenceEngine = model_path
        if self._owns_engine:
            self.engine = create_inference_engine(model_path, backend, config, tokenizer=tokenizer)
        self.sampling = sampling
        self._manager = BatchInferenceManager(self.engine, batch_size)

    def generate_sequences(self, prompts: Any, **kwargs: Any) -> Any:
        """Return responses to a batch of prompts; the result has the type of the batch.

        A batch is a `DataProto` of VERL's, a `RewardBatch`, or a dict such as `collate_fn` makes;
        it has `input_ids` [B, P], and `attention_mask` where they are padded. The result has
        `prompts`, `responses` [B, T] (padded at the end), `input_ids`, `attention_mask`,
        `position_ids`, `response_mask` and `rollout_log_probs`, and the batch's other columns.
        Texts give a `GenerationOutput`.
        """
        columns = prompts if isinstance(prompts, Mapping) else getattr(prompts, "batch", None)
        if columns is None:
            return self.inference(prompts, **kwargs)
        if not getattr(prompts, "meta_info", {}).get("do_sample", True):
            kwargs.setdefault("temperature", 0.0)
        output = self.inference(prompts, **kwargs)
        prompt_ids = torch.as_tensor(columns["input_ids"])
        seen = torch.ones_like(prompt_ids)
        if "attention_mask" in columns.keys():  # noqa: SIM118 - a TensorDict's too
            seen = torch.as_tensor(columns["attention_mask"]).long()
        responses = torch.from_numpy(output.tokens)
        lengths = torch.tensor([[len(ids)] for ids in output.token_ids])
        mask = (torch.arange(responses.shape[1]) < lengths).long()
        log_probs = torch.zeros(responses.shape)
        log_probs[mask.bool()] = torch.tensor([x for row in output.logprobs for x in row])
        attention = torch.cat([seen, mask], 1)
        answered = {
            **{name: column for name, column in columns.items() if name != "input_ids"},
            "prompts": prompt_ids,
            "responses": responses,
            "input_ids": torch.cat([prompt_ids, responses], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask,
            "rollout_log_probs": log_probs,
        }
        if isinstance(prompts, Mapping):
            return answered
        data = RewardBatch(
            Columns(answered), dict(prompts.non_tensor_batch), dict(prompts.meta_info)
        )
        return data.as_data_proto(type(prompts)) if is_data_proto(type(prompts)) else data

    def inference(self, inputs: Any, **kwargs: Any) -> GenerationOutput:
        """Run the model on these inputs, all at once: texts, rows of token ids, or a batch."""
        return self.engine.generate(_prompts(inputs), **{**self.sampling, **kwargs})

    def batch_generation(self, batch: Any, **kwargs: Any) -> GenerationOutput:
        """Generate for any number of inputs, `batch_size` of them at a time.

        An input that fails does not stop the others; see `BatchInferenceManager`.
        """
        return self._manager.generate_batch(_prompts(batch), **{**self.sampling, **kwargs})

    def close(self) -> None:
        """Close the engine that was made here. May be called twice."""
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prompts(inputs: Any) -> Prompts:
    """Return texts, or rows of token ids without padding."""

    def as_list(row: Any) -> Any:
        return row.tolist() if hasattr(row, "tolist") else row

    columns = inputs if isinstance(inputs, Mapping) else getattr(inputs, "batch", None)
    if columns is None:
        return inputs if isinstance(inputs, str) else [as_list(row) for row in inputs]
    names = columns.keys()
    if "input_ids" not in names:
        raise ConfigError(f"a batch of prompts needs input_ids, got {', '.join(map(str, names))}")
    rows = [as_list(row) for row in columns["input_ids"]]
    if "attention_mask" not in names:
        return rows
    masks = [as_list(row) for row in columns["attention_mask"]]
    return [
        [one for one, seen in zip(ids, mask, strict=True) if seen]
        for ids, mask in zip(rows, masks, strict=True)
    ]
