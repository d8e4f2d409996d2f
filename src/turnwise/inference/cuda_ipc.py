"""CUDA IPC: other processes read tensors where they are in a GPU's memory.

A handle is text, without pickled objects, since it may go to a server. It is valid while the tensor
exists and is not moved.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

_reductions = cast(Any, torch.multiprocessing).reductions


def gpu_ids() -> list[str]:
    """Return the hardware ids of the GPUs that this process sees, in the order of their indices."""
    if not torch.cuda.is_available():
        return []
    number = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(number)]


def machine_id() -> str:
    """Return an id of the machine; it changes when the machine is started again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def export_tensors(weights: Mapping[str, torch.Tensor]) -> str:
    """Return handles of tensors on GPUs."""
    gpus = gpu_ids()
    return json.dumps([_export(name, tensor, gpus) for name, tensor in weights.items()])


def open_tensors(handles: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of another process; they share its memory."""
    gpus = gpu_ids()
    for handle in json.loads(handles):
        storage = [_decoded(value) for value in handle["storage"]]
        yield (
            handle["name"],
            _reductions.rebuild_cuda_tensor(
                torch.Tensor,
                torch.Size(handle["size"]),
                tuple(handle["stride"]),
                handle["offset"],
                torch.TypedStorage,
                getattr(torch, handle["dtype"]),
                gpus.index(handle["gpu"]),
                *storage,
            ),
        )


def _export(name: str, tensor: torch.Tensor, gpus: list[str]) -> dict[str, Any]:
    _, arguments = _reductions.reduce_tensor(tensor.detach())
    _, size, stride, offset, _, dtype, device, *storage = arguments
    return {
        "name": name,
        "size": list(size),
        "stride": list(stride),
        "offset": offset,
        "dtype": str(dtype).removeprefix("torch."),
        "gpu": gpus[torch.device(device).index],
        "storage": [_encoded(value) for value in storage],
    }


def _encoded(value: Any) -> Any:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _decoded(value: Any) -> Any:
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value
