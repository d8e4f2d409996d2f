"""Where a step's time goes."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator

import torch

from turnwise.episode import Collection
from turnwise.runs.episode_store import Phase
from turnwise.trainer.episode_metrics import split_seconds
from turnwise.trainer.reporter import Metrics


class Stopwatch:
    """Seconds by part of a step."""

    def __init__(self) -> None:
        self.began = time.time()
        """In seconds since 1970, as episodes say when they began."""
        self.phases: list[Phase] = []
        """The parts, one after the other."""
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timing(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self._seconds[part] = self._seconds.get(part, 0.0) + ended - started
            self.phases.append((part, started - self._started, ended - self._started))

    def figures(self, played: Collection) -> Metrics:
        """All of them; playing is split into what episodes waited for."""
        total = time.perf_counter() - self._started
        sampled = sum(agent.num_sampled_tokens for r in played for agent in r.agents)
        rest = {f"time/{name}": s for name, s in self._seconds.items() if name != "play"}
        return {
            "time/step": total,
            **split_seconds(played, self._seconds.get("play", 0.0)),
            **rest,
            "time/tokens_per_second": sampled / total if total else 0.0,
            "time/memory_gib": most_memory() / 2**30,
        }


def most_memory() -> int:
    """Bytes: the most that was held at once, on the GPU if one is used, else by the process."""
    if uses_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def uses_gpu() -> bool:
    """Whether this process has begun to use a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
