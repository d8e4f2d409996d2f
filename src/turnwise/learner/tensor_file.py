"""A safetensors file that is written and read in shards, so that no process needs all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of dtypes in the file, in the order in which safetensors writes their tensors."""


def rows_of_shard(num_rows: int, rank: int, num_shards: int) -> tuple[int, int]:
    """Return where a shard begins and ends, as `torch.chunk` splits a tensor.

    >>> [rows_of_shard(5, rank, 4) for rank in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    size = -(-num_rows // num_shards)
    return min(rank * size, num_rows), min((rank + 1) * size, num_rows)


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, of which each is read when it is asked for, and not kept.

    >>> tensors = LazyTensors(["a", "b"], lambda name: torch.tensor(ord(name)))
    >>> tensors["b"], len(tensors), list(tensors)
    (tensor(98), 2, ['a', 'b'])
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], torch.Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class TensorFileWriter:
    """Writes tensors of which the shards come one after the other, in any order of the names.

    The file has the bytes that `safetensors.torch.save_file` would write. `layout` has the dtypes
    and shapes of the whole tensors, which may be on the meta device.
    """

    def __init__(self, path: Path, layout: Mapping[str, torch.Tensor]) -> None:
        order = list(_DTYPES)
        header: dict[str, Any] = {}
        self._next: dict[str, int] = {}
        """The position of each tensor's next byte, from the first tensor's beginning."""
        self._ends: dict[str, int] = {}
        position = 0
        for name in sorted(layout, key=lambda name: (order.index(layout[name].dtype), name)):
            tensor = layout[name]
            self._next[name] = position
            position = self._ends[name] = position + tensor.numel() * tensor.element_size()
            header[name] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [self._next[name], position],
            }
        self._dtypes = {name: tensor.dtype for name, tensor in layout.items()}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def append(self, name: str, rows: torch.Tensor) -> None:
        """Write the next rows of a tensor; a scalar, which all shards have, is written once."""
        if not rows.dim() and self._next[name] == self._ends[name]:
            return
        dtype = self._dtypes[name]
        assert rows.dtype == dtype, f"{name} is {rows.dtype}, expected {dtype}"
        flat = rows.detach().cpu().contiguous().reshape(-1)
        if len(flat):
            self._file.seek(self._start + self._next[name])
            self._file.write(flat.view(torch.uint8).numpy().data)
            self._next[name] += len(flat) * dtype.itemsize

    def __enter__(self) -> TensorFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            assert self._next == self._ends, "a tensor was not written to its end"


class TensorFile:
    """A safetensors file, of which each shard can be read alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with safe_open(path, framework="pt") as file:
            self.shapes = {k: tuple(file.get_slice(k).get_shape()) for k in file.keys()}  # noqa: SIM118
        """The shape of each tensor, by name."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return some rows of a tensor; a scalar as it is."""
        # Opened for every read: what is mapped counts as memory of the process.
        with safe_open(self.path, framework="pt") as file:
            is_scalar = not self.shapes[name]
            rows = file.get_tensor(name) if is_scalar else file.get_slice(name)[start:stop]
            copied: torch.Tensor = rows.clone()
            return copied

    def shard(self, rank: int = 0, num_shards: int = 1) -> LazyTensors:
        """Return one of several shards of all tensors."""

        def read(name: str) -> torch.Tensor:
            num_rows = self.shapes[name][0] if self.shapes[name] else 0
            return self.read(name, *rows_of_shard(num_rows, rank, num_shards))

        return LazyTensors(self.shapes, read)
