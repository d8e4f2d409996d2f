"""`Resources`: the model folder, the GPUs and the run folder that VERL runs with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.models import model_folder
from turnwise.user_code import require_model_code, require_use

_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Resources:
    """What VERL runs with, and the settings alone do not tell."""

    model_path: str
    """A folder or a Hugging Face id."""
    context_length: int
    num_gpus: int
    """On this machine; 0: VERL runs on its CPU."""
    run_folder: Path
    num_nodes: int = 1

    @property
    def on_cpu(self) -> bool:
        return self.num_gpus == 0


def find_resources(config: ConfigStore, run_folder: Path) -> Resources:
    """Return the resources of this machine, for the model that the settings name."""
    import torch
    from transformers import AutoConfig

    model, num_gpus = config.model, torch.cuda.device_count()
    if model.device.startswith("cuda") and not num_gpus:
        raise ConfigError(
            f"model.device got {model.device!r}, and torch sees no GPU. Take 'auto' or 'cpu'."
        )
    if config.ray.address is not None:
        require_use(f"the Ray cluster {config.ray.address}")
    if model.trust_remote_code:
        require_model_code(model.local_path or model.model_name)
    path = model_folder(model.local_path or model.model_name)
    found = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    length = getattr(found.get_text_config(), "max_position_embeddings", _DEFAULT_CONTEXT)
    number = 0 if model.device == "cpu" else num_gpus
    return Resources(path, int(length), number, run_folder.absolute())
