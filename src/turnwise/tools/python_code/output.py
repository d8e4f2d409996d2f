"""Keep the beginning and the end of an output of any length."""

from __future__ import annotations


class OutputKeeper:
    """Takes bytes; keeps so many from the start and so many from the end.

    >>> keeper = OutputKeeper(6)
    >>> keeper.add(b"abcdefghij")
    >>> keeper.text
    'abc\\n[... 4 bytes left out ...]\\nhij'
    """

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._head = b""
        self._tail = b""
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        free = self._head_size - len(self._head)
        self._head += data[:free]
        self._tail = (self._tail + data[free:])[-self._tail_size :]

    @property
    def text(self) -> str:
        left_out = self.num_bytes - len(self._head) - len(self._tail)
        if left_out <= 0:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = self._head.decode("utf-8", "ignore"), self._tail.decode("utf-8", "ignore")
        return f"{head}\n[... {left_out} bytes left out ...]\n{tail}"
