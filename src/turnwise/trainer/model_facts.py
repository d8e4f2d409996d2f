"""The model, tokenizer and engine of a run, as `run.json` names them, with hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from turnwise.config import ConfigStore
from turnwise.trainer.assembly import RunComponents

_MOST_HASHED_WHOLE = 50_000_000
"""Parameters of a model that is hashed whole, which takes a fraction of a second."""
_SAMPLED = 4096


def model_facts(
    components: RunComponents, config: ConfigStore, *, is_start: bool
) -> dict[str, Any]:
    """Return the facts; the hash of the weights only where they are those of the start."""
    policy = components.learner.model.policy
    model: dict[str, Any] = {
        "name": config.model.local_path or config.model.model_name,
        "class": type(policy).__name__,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "dtype": str(policy.dtype).removeprefix("torch."),
        "device": str(policy.device),
    }
    if is_start:
        model |= weights_hash(policy)
    engine = {
        "backend": config.inference.backend,
        "class": type(components.engine).__name__,
        "shares_weights": components.shares_weights,
        "temperature": config.inference.temperature,
        "top_p": config.inference.top_p,
        "stall_timeout": config.inference.stall_timeout,
        **components.engine.options,
    }
    return {"model": model, "tokenizer": tokenizer_facts(components.tokenizer), "engine": engine}


def weights_hash(model: torch.nn.Module) -> dict[str, str]:
    """Return a hash of the weights, and what it covers: all, or a sample of a large model."""
    tensors = sorted(model.state_dict().items())
    is_whole = sum(tensor.numel() for _, tensor in tensors) <= _MOST_HASHED_WHOLE
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        values = tensor.detach().reshape(-1)
        if not is_whole:
            values = values[:: max(1, len(values) // _SAMPLED)][:_SAMPLED]
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    sample = f"names, shapes and {_SAMPLED} evenly spaced values of each tensor"
    return {"hash": digest.hexdigest(), "hash_covers": "all weights" if is_whole else sample}


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """Return the class of a tokenizer, its size, and hashes of it and of its chat template."""
    core = getattr(tokenizer, "backend_tokenizer", None)  # tokenizers in Python have none
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if core is None else core.to_str()
    template = getattr(tokenizer, "chat_template", None)
    return {
        "class": type(tokenizer).__name__,
        "size": len(tokenizer),
        "hash": hashlib.sha256(text.encode()).hexdigest(),
        "chat_template_hash": None if not template else _text_hash(template),
    }


def _text_hash(template: Any) -> str:
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
