"""The time that each phase of a step takes."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator

import torch

from turnwise.episode import Collection
from turnwise.runs.episode_table import Phase
from turnwise.trainer.episode_metrics import split_seconds
from turnwise.trainer.reporter import Metrics


class Stopwatch:
    """Measures the seconds of each phase of a step."""

    def __init__(self) -> None:
        self.began = time.time()
        """Unix time, as in the records of episodes."""
        self.phases: list[Phase] = []
        """Each phase with its start and end, in seconds since the step began."""
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._used_gib: dict[str, float] = {}

    @contextlib.contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            if uses_gpu():
                free, total = torch.cuda.mem_get_info()
                self._used_gib[f"memory/{phase}_gib"] = (total - free) / 2**30
            self._seconds[phase] = self._seconds.get(phase, 0.0) + ended - started
            self.phases.append((phase, started - self._started, ended - self._started))

    def metrics(self, played: Collection) -> Metrics:
        """Return the `time/` metrics; playing is split by what episodes waited for.

        On a GPU also `memory/`: what all processes use there at the end of each phase.
        """
        total = time.perf_counter() - self._started
        sampled = sum(agent.num_sampled_tokens for r in played for agent in r.agents)
        rest = {f"time/{name}": s for name, s in self._seconds.items() if name != "play"}
        return {
            "time/step": total,
            **split_seconds(played, self._seconds.get("play", 0.0)),
            **rest,
            "time/tokens_per_second": sampled / total if total else 0.0,
            "time/episodes_per_second": len(played) / total if total else 0.0,
            "time/memory_gib": peak_memory() / 2**30,
            **self._used_gib,
        }


def peak_memory() -> int:
    """Return the peak memory in bytes: of the GPU if one is used, else of the process."""
    if uses_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def uses_gpu() -> bool:
    """Whether this process has begun to use a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
