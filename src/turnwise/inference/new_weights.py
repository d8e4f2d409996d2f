"""Checks new weights for a vLLM or SGLang and writes them into a folder that it can read.

Both go on without missing weights, and a wrong name or shape breaks them, so all are checked first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch

from turnwise.errors import ConfigError, did_you_mean
from turnwise.models.load import without_progress_bars
from turnwise.whole_files import honour_umask

NewWeights: TypeAlias = Mapping[str, torch.Tensor] | str | os.PathLike[str] | None
"""Tensors by their Hugging Face names, or a folder with safetensors files."""

Shapes: TypeAlias = Mapping[str, Sequence[int]]


class Skeleton:
    """The names and shapes of a model's weights, in memory and in files, without their values.

    The two differ where transformers merges weights on loading, such as those of experts.
    """

    def __init__(self, model_path: str, trust_remote_code: bool, **options: Any) -> None:
        from transformers import AutoConfig

        self._trust_remote_code = trust_remote_code
        self._config: Any = AutoConfig.from_pretrained(
            model_path, trust_remote_code=trust_remote_code, **options
        )
        self.vocabulary_size = int(self._config.get_text_config().vocab_size)

    @classmethod
    def find(cls, paths: Iterable[str], trust_remote_code: bool) -> Skeleton | None:
        """Return that of the first model that is on a local disk; None if there is none."""
        for path in paths:
            try:
                return cls(path, trust_remote_code, local_files_only=True)
            except (OSError, ValueError):
                continue
        return None

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise for weights that `model.load_state_dict` would refuse."""
        expected = _shapes(self._model.state_dict())
        for name in weights:
            if name not in expected:
                hint = did_you_mean(name, expected)
                raise ConfigError(f"the model has no weight {name!r}. {hint}")
        self._compare(_shapes(weights), expected)

    def check_folder(self, folder: Path) -> None:
        """Raise for a folder that lacks weights, or has them in other shapes."""
        from safetensors import safe_open

        found: dict[str, Sequence[int]] = {}
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                names = tensors.keys()
                found |= {name: tensors.get_slice(name).get_shape() for name in names}
        self._compare(found, _shapes(self.as_files_have_them(self._model.state_dict())))

    def as_files_have_them(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights under the names of saved files, which vLLM expects."""
        from transformers.core_model_loading import revert_weight_conversion

        apart: dict[str, torch.Tensor] = revert_weight_conversion(self._model, dict(weights))
        return apart

    @contextmanager
    def written(
        self, weights: Mapping[str, torch.Tensor], parent: str | os.PathLike[str] | None = None
    ) -> Iterator[Path]:
        """Write checked weights into a temporary folder, which exists inside the block."""
        with tempfile.TemporaryDirectory(prefix="turnwise-weights-", dir=parent) as folder:
            os.chmod(folder, 0o755)  # the server may run as another user
            with without_progress_bars():
                self._model.save_pretrained(folder, state_dict=dict(weights))
            honour_umask(Path(folder))
            yield Path(folder)

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoModelForCausalLM

        kind: Any = AutoModelForCausalLM
        with torch.device("meta"):
            return kind.from_config(self._config, trust_remote_code=self._trust_remote_code)

    def _compare(self, found: Shapes, expected: Shapes) -> None:
        # A tied weight may be left out under its second name.
        missing = sorted(expected.keys() - found.keys() - self._model.all_tied_weights_keys.keys())
        if missing:
            raise ConfigError(
                f"{len(missing)} weights of the model are missing, the first is {missing[0]!r}. "
                "Give all of them, as model.state_dict() or model.save_pretrained() does."
            )
        for name in found.keys() & expected.keys():
            if tuple(found[name]) != tuple(expected[name]):
                raise ConfigError(
                    f"weight {name!r} got the shape {tuple(found[name])}, expected "
                    f"{tuple(expected[name])}: the model that is trained is another one"
                )


def memory_folder(weights: Mapping[str, torch.Tensor]) -> str | None:
    """Return a folder in shared memory with room for these weights; None if there is none."""
    needed = sum(tensor.nbytes for tensor in weights.values())
    folder = "/dev/shm"
    has_room = os.path.isdir(folder) and shutil.disk_usage(folder).free > 1.1 * needed
    return folder if has_room else None


def existing_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path).resolve()
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"new weights got the folder {str(folder)!r}, which has no safetensors files"
        )
    return folder


def _shapes(weights: Mapping[str, torch.Tensor]) -> Shapes:
    return {name: tensor.shape for name, tensor in weights.items()}
