"""Checks new weights against a server's model and writes them as a checkpoint.

A server that meets a wrong shape while loading cannot go back: it reads the same folder again and
exits. So names and shapes are checked before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import ConfigError, did_you_mean
from turnwise.models.load import without_progress_bars
from turnwise.whole_files import honour_umask


def find_config(paths: Iterable[str], *, trust_remote_code: bool) -> Any | None:
    """Return the first configuration that is on a local disk; None if there is none."""
    from transformers import AutoConfig

    for path in paths:
        try:
            return AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError):
            continue
    return None


def write_checkpoint(
    config: Any, weights: Mapping[str, torch.Tensor], folder: Path, *, trust_remote_code: bool
) -> None:
    """Write `weights`, named as in `state_dict()`, into a folder as Hugging Face files."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=trust_remote_code
        )
    known = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    # Tied weights have two names; one is enough.
    needed = {name for name, _ in model.named_parameters()}
    for name, tensor in weights.items():
        if name not in known:
            raise ConfigError(
                f"the model has no weight {name!r}. {did_you_mean(name, known)} "
                "Expected the names of its state_dict()."
            )
        if tuple(tensor.shape) != known[name]:
            raise ConfigError(
                f"the weight {name!r} got the shape {tuple(tensor.shape)}, expected {known[name]}: "
                "the server has another model than the one that is trained"
            )
    if missing := sorted(needed - weights.keys()):
        raise ConfigError(
            f"new weights lack {len(missing)} of the model's {len(needed)}, such as "
            f"{missing[0]!r}. Pass all of them, as state_dict() gives them."
        )
    with without_progress_bars():
        model.save_pretrained(folder, state_dict=dict(weights))
    honour_umask(folder)
