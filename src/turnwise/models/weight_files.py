"""The weights of a model in safetensors files, of which each process reads its slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.models.rounding import HALF


class NotLoadableInParts(TurnwiseError):
    """A model whose weights only transformers can find in its files."""


@dataclass(frozen=True)
class WeightFiles:
    """Tensors by name, each in one of several files; opened for every read, so that no more than
    one slice is mapped into memory."""

    paths: Mapping[str, Path]
    """The file of each tensor."""

    @classmethod
    def find(cls, source: str) -> WeightFiles:
        """Find the files of a folder or of a Hugging Face id, which are downloaded if need be."""
        from transformers.utils.hub import cached_file, get_checkpoint_shard_files

        options: Any = {"_raise_exceptions_for_missing_entries": False}
        single = cached_file(source, "model.safetensors", **options)
        if single is not None:
            with _opened(Path(single)) as file:
                return cls(dict.fromkeys(file.keys(), Path(single)))
        index = cached_file(source, "model.safetensors.index.json", **options)
        if index is None:
            raise NotLoadableInParts(f"{source} has no safetensors files")
        files, facts = get_checkpoint_shard_files(source, index)  # type: ignore[no-untyped-call]
        shards = {Path(file).name: Path(file) for file in files}
        for path in shards.values():
            _opened(path)  # one that is missing or cut off is named at once
        return cls({name: shards[file] for name, file in facts["weight_map"].items()})

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` of a tensor, in the precision of the file."""
        with _opened(self.paths[name]) as file:
            rows: torch.Tensor = file.get_slice(name)[start:stop]
            return rows.clone()  # not the file's own memory


def stored_names(model: Any) -> dict[str, str]:
    """Return the name in the files of each parameter that is there; adapters are not."""
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name.replace(".base_layer.", "."))
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        stored = [alias for alias in aliases[id(parameter)] if alias in model.weight_files.paths]
        if len(stored) != 1:
            what = "several weights for" if stored else "no weight"
            raise NotLoadableInParts(f"its files have {what} {name}")
        names[name] = stored[0]
    return names


def read_wide(model: Any) -> dict[str, Callable[[int, int], torch.Tensor]]:
    """Return functions that read rows of the weights that the model has in half precision and its
    files, if it knows them, in float32."""
    files: WeightFiles | None = getattr(model, "weight_files", None)
    if files is None:
        return {}
    try:
        stored = stored_names(model)
    except NotLoadableInParts:  # transformers converts them on loading
        return {}
    wide: set[str] = set()
    for path in set(files.paths.values()):
        with _opened(path) as file:
            names = [name for name in file.keys() if files.paths.get(name) == path]  # noqa: SIM118
            wide |= {name for name in names if file.get_slice(name).get_dtype() == "F32"}
    return {
        name: partial(files.read, stored[name])
        for name, parameter in model.named_parameters()
        if parameter.dtype in HALF and parameter.dim() and stored.get(name) in wide
    }


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}. Is the file complete? Download the model again."
        ) from error
