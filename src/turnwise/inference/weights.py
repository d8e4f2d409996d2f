"""How new weights reach a vLLM or SGLang in other processes: checked, then sent or written.

- By CUDA IPC, other processes read tensors where they are in a GPU's memory. A handle is text,
  without pickled objects, since it may go to a server; it is valid while the tensor exists and is
  not moved.
- By a broadcast in a process group of their own, whose rank 0 is the learner: over NCCL between
  GPUs and over gloo otherwise. The keys in the store are nested as in torch's process groups, so
  that SGLang's workers can join.
- As files in a folder that it can read.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import torch

from turnwise.errors import ConfigError, did_you_mean
from turnwise.models.load import without_progress_bars
from turnwise.whole_files import honour_umask

_distributed = cast(Any, torch.distributed)
_reductions = cast(Any, torch.multiprocessing).reductions
_TIMEOUT = timedelta(seconds=120)

NewWeights: TypeAlias = Mapping[str, torch.Tensor] | str | os.PathLike[str] | None
"""Tensors by their Hugging Face names, or a folder with safetensors files."""
Transfer: TypeAlias = Literal["auto", "ipc", "broadcast", "disk"]
"""How weights reach a server; auto takes the first of the others that is possible."""


class Skeleton:
    """The names and shapes of a model's weights, in memory and in files, without their values.

    Both engines go on without missing weights, and a wrong name or shape breaks them, so all are
    checked first. Names in files differ where transformers merges weights, such as experts'.
    """

    def __init__(self, model_path: str, trust_remote_code: bool, *, is_local: bool = False) -> None:
        from transformers import AutoConfig

        self._trust_remote_code = trust_remote_code
        self._config: Any = AutoConfig.from_pretrained(
            model_path, trust_remote_code=trust_remote_code, local_files_only=is_local
        )
        self.vocabulary_size = int(self._config.get_text_config().vocab_size)

    def check(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise for weights that `model.load_state_dict` would refuse."""
        expected = self._model.state_dict()
        if unknown := [name for name in weights if name not in expected]:
            hint = did_you_mean(unknown[0], expected)
            raise ConfigError(f"the model has no weight {unknown[0]!r}. {hint}")
        self._compare({name: tensor.shape for name, tensor in weights.items()}, expected)

    def check_folder(self, folder: Path) -> None:
        """Raise for a folder that lacks weights, or has them in other shapes."""
        from safetensors import safe_open

        shapes: dict[str, torch.Size] = {}
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    shapes[name] = torch.Size(tensors.get_slice(name).get_shape())
        self._compare(shapes, self.as_files_have_them(self._model.state_dict()))

    def _compare(
        self, shapes: Mapping[str, torch.Size], expected: Mapping[str, torch.Tensor]
    ) -> None:
        # A tied weight may be left out under its second name.
        missing = sorted(expected.keys() - shapes.keys() - self._model.all_tied_weights_keys.keys())
        if missing:
            raise ConfigError(
                f"{len(missing)} weights of the model are missing, the first is {missing[0]!r}. "
                "Give all of them, as model.state_dict() or model.save_pretrained() does."
            )
        for name in shapes.keys() & expected.keys():
            if shapes[name] != expected[name].shape:
                got, wanted = tuple(shapes[name]), tuple(expected[name].shape)
                raise ConfigError(f"weight {name!r} got the shape {got}, expected {wanted}")

    def as_files_have_them(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights under the names of saved files, which vLLM expects."""
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(self._model, dict(weights)))

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


def checked_weights(
    weights: NewWeights, skeleton: Skeleton | None, engine: str, *, is_server: bool
) -> Mapping[str, torch.Tensor] | str:
    """Return tensors or the path of a folder that fit a model; raise for others.

    Without its skeleton only a folder is possible. A folder that is not here a server may see.
    """
    if weights is None:
        raise ConfigError(
            f"{engine} has a copy of the weights of its own, so it must be given the new ones: "
            "update_weights(model.state_dict()), or the path of a folder that it sees"
        )
    if isinstance(weights, Mapping):
        if skeleton is None:
            raise ConfigError(
                "tensors are checked against the model's config.json, and it is not here. Pass "
                "model_path= to the engine, or give update_weights a folder."
            )
        skeleton.check(weights)
        if any(tensor.is_cuda for tensor in weights.values()):
            torch.cuda.synchronize()  # the kernels that compute them must finish first
        return weights
    folder = Path(weights)
    if is_server and not folder.exists():
        return os.fspath(weights)  # of another machine: it is none of this one's paths
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"new weights got {folder.resolve()}, which has no safetensors files")
    if skeleton is not None:
        skeleton.check_folder(folder)
    return str(folder.resolve())


def gpu_ids() -> list[str]:
    """Return the hardware ids of the GPUs that this process sees, in the order of their indices."""
    numbers = range(torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(number).uuid) for number in numbers]


def machine_id() -> str:
    """Return an id of the machine; it changes when the machine is started again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def export_tensors(weights: Mapping[str, torch.Tensor]) -> str:
    """Return handles of tensors on GPUs."""
    gpus = gpu_ids()
    handles = []
    for name, tensor in weights.items():
        _, arguments = _reductions.reduce_tensor(tensor.detach())
        _, size, stride, offset, _, dtype, device, *storage = arguments
        gpu = gpus[torch.device(device).index]
        dtype_name = str(dtype).removeprefix("torch.")
        handles.append((name, list(size), list(stride), offset, dtype_name, gpu, storage))
    return json.dumps(handles, default=lambda x: {"bytes": base64.b64encode(x).decode()})


def open_tensors(handles: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of another process; they share its memory."""
    gpus = gpu_ids()
    decoded = json.loads(handles, object_hook=lambda value: base64.b64decode(value["bytes"]))
    for name, size, stride, offset, dtype_name, gpu, storage in decoded:
        tensor = _reductions.rebuild_cuda_tensor(
            torch.Tensor,
            torch.Size(size),
            tuple(stride),
            offset,
            torch.TypedStorage,
            getattr(torch, dtype_name),
            gpus.index(gpu),
            *storage,
        )
        yield name, tensor


@dataclass(frozen=True)
class GroupAddress:
    """Where a group meets."""

    host: str
    port: int
    world_size: int
    """The learner and all workers."""
    name: str
    backend: str
    """nccl or gloo."""


class WeightSender:
    """The learner's end of a group."""

    def __init__(self, url: str, num_workers: int, backend: str) -> None:
        parts = urlsplit(url)
        size = 1 + num_workers
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "localhost", port), timeout=10.0) as link:
            host = str(link.getsockname()[0])  # the address of this machine that the server reaches
        self._store = _distributed.TCPStore(
            host, 0, size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
        )
        name = f"turnwise-{uuid.uuid4().hex}"
        self.address = GroupAddress(host, self._store.port, size, name, backend)
        self._group: Any = None

    def connect(self) -> None:
        """Wait until all workers have joined; NCCL only connects at the first broadcast."""
        self._group = join_group(self.address, 0, self._store)

    def send(self, tensors: Iterable[torch.Tensor]) -> None:
        """Broadcast these tensors, in this order; returns when they may be changed again."""
        is_nccl = self.address.backend == "nccl"
        for tensor in tensors:
            sent = tensor.detach() if is_nccl else tensor.detach().cpu()
            self._group.broadcast([sent.contiguous()]).wait()
        if is_nccl:
            torch.cuda.synchronize()


async def run_both(request: Coroutine[Any, Any, Any], this_end: Callable[[], None]) -> None:
    """Run this end of a group in a thread while a request makes the other end take part.

    The first error is raised at once: the other side would wait until its time is up.
    """
    tasks = [asyncio.create_task(request), asyncio.create_task(asyncio.to_thread(this_end))]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()


def buckets(weights: Mapping[str, torch.Tensor], num_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Split weights, in their order, into parts of about so many bytes."""
    parts: list[dict[str, torch.Tensor]] = []
    size = num_bytes
    for name, tensor in weights.items():
        if size >= num_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def tensor_specs(weights: Mapping[str, torch.Tensor]) -> list[tuple[str, str, list[int]]]:
    """Return the name, dtype and shape of each tensor."""
    return [
        (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in weights.items()
    ]


def join_group(address: GroupAddress, rank: int, store: Any = None) -> Any:
    """Return a group that torch's registry does not know: the process may have another one."""
    size = address.world_size
    store = store or _distributed.TCPStore(address.host, address.port, size, timeout=_TIMEOUT)
    is_nccl = address.backend == "nccl"
    device = "cuda" if is_nccl else "cpu"
    for prefix in (address.name, f"{address.name}/", f"{device}/"):
        store = _distributed.PrefixStore(prefix, store)
    kind = _distributed.ProcessGroupNCCL if is_nccl else _distributed.ProcessGroupGloo
    return kind(store, rank, size, _TIMEOUT)
