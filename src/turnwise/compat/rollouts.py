"""Generation by hand: an engine that loads its model, long lists, the calls of VERL's rollouts."""

import asyncio
import copy
import os
from collections.abc import Mapping
from typing import Any, Self

import torch

from turnwise.errors import ConfigError
from turnwise.inference.base import (
    BaseInferenceEngine,
    GenerationOutput,
    GenerationRequest,
    GenerationResult,
    Prompts,
)
from turnwise.inference.create import create_inference_engine
from turnwise.inference.transformers import TransformersEngine
from turnwise.models import load_model
from turnwise.reward.batches import Columns, RewardBatch, is_data_proto


class InferenceEngine(TransformersEngine):
    """The transformers engine on a model that it loads itself: a name, a folder, or a hub id."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        device: str | torch.device = "auto",
        *,
        dtype: str | torch.dtype = "auto",
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        loaded = load_model(
            model_path, dtype=dtype, device=device, trust_remote_code=trust_remote_code
        )
        super().__init__(loaded.model, loaded.tokenizer, **options)
        self.device: torch.device = loaded.model.device

    def generate(
        self,
        prompts: Prompts,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        **options: Any,
    ) -> GenerationOutput:
        """Continue each prompt as every engine does, with other defaults for sampling."""
        return super().generate(prompts, max_tokens, temperature, top_p, **options)


class BatchInferenceManager:
    """Generates for any number of prompts, `batch_size` of them at a time.

    When one answer is finished, the next prompt starts; none waits for the slowest.
    """

    def __init__(self, engine: BaseInferenceEngine, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size got {batch_size}, expected 1 or more")
        self.engine = engine
        self.batch_size = batch_size

    def generate_batch(
        self, prompts: Prompts, max_tokens: int = 256, **sampling: Any
    ) -> GenerationOutput:
        """Return what `engine.generate` returns for these prompts; it takes the same options."""
        engine, slots = self.engine, asyncio.Semaphore(self.batch_size)

        async def sample(request: GenerationRequest) -> GenerationResult:
            async with slots:
                return await engine.sample(request)

        # Its `generate` on another `sample`: options, their defaults and the output stay its own.
        window = copy.copy(engine)
        window.sample = sample  # type: ignore[method-assign]
        return window.generate(prompts, max_tokens, **sampling)


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
        columns = _columns(prompts)
        if columns is None:
            return self.inference(prompts, **kwargs)
        if not getattr(prompts, "meta_info", {}).get("do_sample", True):
            kwargs.setdefault("temperature", 0.0)
        output = self.inference(prompts, **kwargs)
        prompt_ids, seen = _ids_and_mask(columns)
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
        """Generate for any number of inputs, `batch_size` of them at a time."""
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
    columns = _columns(inputs)
    if columns is not None:
        rows = zip(*_ids_and_mask(columns), strict=True)
        return [ids[mask.bool()].tolist() for ids, mask in rows]
    if isinstance(inputs, str):
        return inputs
    return [row.tolist() if hasattr(row, "tolist") else row for row in inputs]


def _columns(inputs: Any) -> Any:
    return inputs if isinstance(inputs, Mapping) else getattr(inputs, "batch", None)


def _ids_and_mask(columns: Any) -> tuple[torch.Tensor, torch.Tensor]:
    names = columns.keys()  # a TensorDict has no `in`
    if "input_ids" not in names:
        raise ConfigError(f"a batch of prompts needs input_ids, got {', '.join(map(str, names))}")
    ids = torch.as_tensor(columns["input_ids"])
    if "attention_mask" not in names:
        return ids, torch.ones_like(ids)
    return ids, torch.as_tensor(columns["attention_mask"]).long()
