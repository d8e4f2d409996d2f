"""One step of reinforcement learning: what is learned from its episodes, and how long it took."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from turnwise.config import ConfigStore
from turnwise.episode import Collection
from turnwise.runs.episode_table import Phase
from turnwise.trainer.assembly import RunComponents
from turnwise.trainer.batches import make_batch, token_columns, trained_rows
from turnwise.trainer.episode_metrics import split_seconds, staleness
from turnwise.trainer.failures import check_gap
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.state import uses_gpu


@dataclass(frozen=True)
class PlayedStep:
    """The episodes of a step, before anything is learned from them."""

    episodes: Collection
    metrics: Metrics
    baselines: Mapping[str, float] | None = None
    """The rewards of the greedy episode of each group, for estimators that need them."""
    why_stop: str | None = None
    """Why the run must end after this step, if it must."""


def learn_from(
    step: PlayedStep, components: RunComponents, config: ConfigStore, clock: Stopwatch
) -> tuple[Metrics, Mapping[str, torch.Tensor]]:
    """Compute advantages, update the model and publish its weights.

    Returns the metrics, and what was computed for each token (`token_columns`).
    """
    episodes, metrics = step.episodes, dict(step.metrics)
    metrics |= staleness(episodes, components.engine.weight_version)
    rows = trained_rows(episodes, step.baselines)
    if step.baselines is not None:
        left_out = {row.group for row in trained_rows(episodes)} - step.baselines.keys()
        metrics["num_groups_without_baseline"] = len(left_out)
    columns: Mapping[str, torch.Tensor] = {}
    if rows:
        batch = make_batch(rows)
        if components.engine.in_flight is None:
            components.engine.sleep()  # until its weights are published below
        with clock.timing("log_probs"):
            metrics |= components.advantages.fill(batch, rows, step.baselines)
        with clock.timing("update"):
            metrics |= components.learner.update(batch)
            components.publish_weights()
        check_gap(
            config.training.max_log_prob_gap,
            metrics,
            components.collector.setup.sampling,
            is_exact=components.advantages.sampler_is_exact,
        )
        all_episodes = [*episodes, *episodes.dropped]
        log_probs = components.learner.log_probs_before_update
        columns = token_columns(all_episodes, rows, batch, log_probs)
    return metrics, columns


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
        # In bytes: of the GPU if one is used, else of the process.
        unit = 1 if sys.platform == "darwin" else 1024
        peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if uses_gpu():
            peak_memory = torch.cuda.max_memory_allocated()
        rest = {f"time/{name}": s for name, s in self._seconds.items() if name != "play"}
        return {
            "time/step": total,
            **split_seconds(played, self._seconds.get("play", 0.0)),
            **rest,
            "time/tokens_per_second": sampled / total if total else 0.0,
            "time/episodes_per_second": len(played) / total if total else 0.0,
            "time/memory_gib": peak_memory / 2**30,
            **self._used_gib,
        }
