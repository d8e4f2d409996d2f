"""Broadcasts weights from the learner to the workers of an engine in other processes.

The learner is rank 0 of a process group of its own, over NCCL between GPUs and over gloo otherwise.
The keys in the store are nested as in torch's process groups, so that SGLang's workers can join.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import torch

_distributed = cast(Any, torch.distributed)
_TIMEOUT = timedelta(seconds=120)

Transfer: TypeAlias = Literal["auto", "ipc", "broadcast", "disk"]
"""How weights reach a server; auto takes the first of the others that is possible."""
TensorSpec: TypeAlias = tuple[str, str, list[int]]
"""The name, dtype and shape of a tensor."""


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
        host, size = _address_towards(url), 1 + num_workers
        self._store = _distributed.TCPStore(
            host, 0, size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT
        )
        self.address = GroupAddress(
            host, self._store.port, size, f"turnwise-{uuid.uuid4().hex}", backend
        )
        self._group: Any = None

    def connect(self) -> None:
        """Wait until all workers have joined; NCCL only connects at the first broadcast."""
        self._group = _make_group(self._store, 0, self.address)

    def send(self, tensors: Iterable[torch.Tensor]) -> None:
        """Broadcast these tensors, in this order; returns when they may be changed again."""
        is_nccl = self.address.backend == "nccl"
        for tensor in tensors:
            sent = tensor.detach() if is_nccl else tensor.detach().cpu()
            self._group.broadcast([sent.contiguous()]).wait()
        if is_nccl:
            torch.cuda.synchronize()


class WeightReceiverGroup:
    """A worker's end of a group."""

    def __init__(self, address: Mapping[str, Any], rank: int) -> None:
        self._address = GroupAddress(**address)
        store = _distributed.TCPStore(
            self._address.host, self._address.port, self._address.world_size, timeout=_TIMEOUT
        )
        self._group = _make_group(store, rank, self._address)

    def receive(self, specs: Iterable[TensorSpec]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor as it arrives; only one is held at a time."""
        device = "cuda" if self._address.backend == "nccl" else "cpu"
        for name, dtype, shape in specs:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            self._group.broadcast([tensor]).wait()
            yield name, tensor


async def run_both(request: Coroutine[Any, Any, Any], own_end: Callable[[], None]) -> None:
    """Run this end of a group in a thread while a request makes the other end take part.

    The first error is raised at once: the other side would wait until its time is up.
    """
    tasks = [asyncio.create_task(request), asyncio.create_task(asyncio.to_thread(own_end))]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()


def buckets(weights: Mapping[str, torch.Tensor], num_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Split weights, in their order, into parts of about so many bytes."""
    found: list[dict[str, torch.Tensor]] = []
    size = num_bytes
    for name, tensor in weights.items():
        if size >= num_bytes:
            found.append({})
            size = 0
        found[-1][name] = tensor
        size += tensor.nbytes
    return found


def tensor_specs(weights: Mapping[str, torch.Tensor]) -> list[TensorSpec]:
    return [
        (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in weights.items()
    ]


def as_arguments(address: GroupAddress) -> dict[str, Any]:
    return asdict(address)


def _make_group(store: Any, rank: int, address: GroupAddress) -> Any:
    """Return a group that torch's registry does not know: the process may have another one."""
    is_nccl = address.backend == "nccl"
    device = "cuda" if is_nccl else "cpu"
    for prefix in (address.name, f"{address.name}/", f"{device}/"):
        store = _distributed.PrefixStore(prefix, store)
    kind = _distributed.ProcessGroupNCCL if is_nccl else _distributed.ProcessGroupGloo
    return kind(store, rank, address.world_size, _TIMEOUT)


def _address_towards(url: str) -> str:
    """Return the address of this machine that the server at `url` can reach."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "localhost", port), timeout=10.0) as link:
        return str(link.getsockname()[0])
