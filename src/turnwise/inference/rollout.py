"""`VLLMRolloutSPMD`: generation with the interface of VERL's rollouts, batches of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

import torch

from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference.base import BaseInferenceEngine, GenerationOutput, Prompts
from turnwise.inference.batches import BatchInferenceManager
from turnwise.inference.create import create_inference_engine
from turnwise.reward.batches import Columns, RewardBatch, is_data_proto

_NOT_SAMPLING = ("self", "prompts")


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
        _check_sampling(sampling)
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
        return _like(prompts, _make_columns(columns, self.inference(prompts, **kwargs)))

    def inference(self, inputs: Any, **kwargs: Any) -> GenerationOutput:
        """Run the model on these inputs, all at once: texts, rows of token ids, or a batch."""
        return self.engine.generate(_prompts(inputs), **self._with(kwargs))

    def batch_generation(self, batch: Any, **kwargs: Any) -> GenerationOutput:
        """Generate for any number of inputs, `batch_size` of them at a time.

        An input that fails does not stop the others; see `BatchInferenceManager`.
        """
        return self._manager.generate_batch(_prompts(batch), **self._with(kwargs))

    def close(self) -> None:
        """Close the engine that was made here. May be called twice."""
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        _check_sampling(kwargs)
        return {**self.sampling, **kwargs}


def _check_sampling(options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(BaseInferenceEngine.generate).parameters
    known = [name for name in parameters if name not in _NOT_SAMPLING]
    for name in options:
        if name not in known:
            raise ConfigError(f"there is no option {name!r}. {did_you_mean(name, known)}")


def _prompts(inputs: Any) -> Prompts:
    """Return texts, or rows of token ids without padding."""
    columns = inputs if isinstance(inputs, Mapping) else getattr(inputs, "batch", None)
    if columns is None:
        return inputs if isinstance(inputs, str) else [_row(one) for one in inputs]
    names = columns.keys()
    if "input_ids" not in names:
        raise ConfigError(f"a batch of prompts needs input_ids, got {', '.join(map(str, names))}")
    rows = [_row(row) for row in columns["input_ids"]]
    if "attention_mask" not in names:
        return rows
    masks = [_row(row) for row in columns["attention_mask"]]
    return [
        [one for one, seen in zip(ids, mask, strict=True) if seen]
        for ids, mask in zip(rows, masks, strict=True)
    ]


def _row(row: Any) -> Any:
    return row.tolist() if hasattr(row, "tolist") else row


def _make_columns(columns: Any, output: GenerationOutput) -> dict[str, Any]:
    prompts = torch.as_tensor(columns["input_ids"])
    seen = torch.ones_like(prompts)
    if "attention_mask" in columns.keys():  # noqa: SIM118 - a TensorDict's too
        seen = torch.as_tensor(columns["attention_mask"]).long()
    responses = torch.from_numpy(output.tokens)
    lengths = torch.tensor([[len(ids)] for ids in output.token_ids])
    mask = (torch.arange(responses.shape[1]) < lengths).long()
    log_probs = torch.zeros(responses.shape)
    log_probs[mask.bool()] = torch.tensor([x for row in output.logprobs for x in row])
    attention = torch.cat([seen, mask], 1)
    kept = {name: column for name, column in columns.items() if name != "input_ids"}
    return {
        **kept,
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": mask,
        "rollout_log_probs": log_probs,
    }


def _like(prompts: Any, found: dict[str, Any]) -> Any:
    if isinstance(prompts, Mapping):
        return found
    others, about = dict(prompts.non_tensor_batch), dict(prompts.meta_info)
    data = RewardBatch(Columns(found), others, about)
    return data.as_data_proto(type(prompts)) if is_data_proto(type(prompts)) else data
