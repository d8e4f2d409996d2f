"""`CodeLimits`: the resources of one run of model-written code."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from turnwise.errors import ConfigError

_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class CodeLimits:
    """The resources of one run.

    >>> CodeLimits(seconds=2.0).memory_mb
    512
    """

    seconds: float = 10.0
    """Wall-clock time of the program."""
    memory_mb: int = 512
    """Address space of the process."""
    disk_mb: int = 32
    """All its files together. They are kept in memory, on top of `memory_mb`."""
    num_files: int = 1000
    """Files and folders that it may make."""
    num_threads: int = 32
    """Itself included."""
    open_files: int = 64
    """At once."""
    output_characters: int = 8000
    """Of what it prints; the middle of a longer output is left out."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(f"{field.name} must be a number above 0, got {value!r}")
        if self.open_files < 16:
            raise ConfigError(
                f"open_files must be at least 16, got {self.open_files}: Python needs some itself"
            )

    def to_request(self) -> dict[str, Any]:
        """Returns the limits for the sandboxed process."""
        return {
            **asdict(self),
            "memory_bytes": self.memory_mb * _MEGABYTE,
            "disk_bytes": self.disk_mb * _MEGABYTE,
            # The parent process limits the wall-clock time; this is for when the parent has died.
            "cpu_seconds": math.ceil(self.seconds) * self.num_threads + 1,
        }
