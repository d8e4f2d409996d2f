"""One step of reinforcement learning: play the episodes, then learn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from turnwise.config import ConfigStore
from turnwise.episode import Collection
from turnwise.errors import TrainingStopped
from turnwise.inference import SamplingParams
from turnwise.trainer.assembly import RunComponents
from turnwise.trainer.batches import make_batch, token_columns, trained_rows
from turnwise.trainer.episode_metrics import staleness
from turnwise.trainer.failures import MAX_FAILED_STEPS
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.stopwatch import Stopwatch

# In float32 on the same weights the gap stays under 1e-4; that of another model is far above this.
_MAX_GAP_IN_FLOAT32 = 0.01
# The mean gap of bfloat16 and of quantised engines is a few hundredths; of another model some nats.
_MAX_MEAN_GAP = 0.5


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
        limit = GapLimit.of(
            config.training.max_log_prob_gap, components.advantages.sampler_is_exact
        )
        if limit is not None:
            limit.check(metrics, components.collector.setup.sampling)
        all_episodes = [*episodes, *episodes.dropped]
        log_probs = components.learner.log_probs_before_update
        columns = token_columns(all_episodes, rows, batch, log_probs)
    return metrics, columns


@dataclass
class BrokenSteps:
    """Counts consecutive steps that did not change the model, after which a run should end."""

    num_in_a_row: int = 0

    def count(self, metrics: Metrics) -> str | None:
        """Count a step; return why the run should end, if it should."""
        self.num_in_a_row = 0 if metrics.get("num_steps") else self.num_in_a_row + 1
        if self.num_in_a_row < MAX_FAILED_STEPS:
            return None
        if metrics.get("num_skipped_steps"):
            why = (
                "the loss or its gradient was not a finite number. Lower training.learning_rate, "
                "or look for extreme rewards."
            )
        else:
            why = "no episode could be learned from. Look at the errors in log.txt."
        return f"{MAX_FAILED_STEPS} steps in a row changed nothing: {why}"


@dataclass(frozen=True)
class GapLimit:
    """How far the sampler's log-probs and the learner's may differ, in nats.

    A larger gap means that the episodes come from another model than the learner's.
    """

    metric: Literal["gap_max", "gap_mean"]
    limit: float

    @classmethod
    def of(cls, setting: float | Literal["auto"] | None, is_exact: bool) -> GapLimit | None:
        """Return the limit of `training.max_log_prob_gap`; None disables the check.

        `is_exact` says whether sampler and learner compute in float32 on the same weights.
        """
        if setting is None:
            return None
        if is_exact:
            return cls("gap_max", _MAX_GAP_IN_FLOAT32 if setting == "auto" else setting)
        return cls("gap_mean", _MAX_MEAN_GAP if setting == "auto" else setting)

    def check(self, metrics: Mapping[str, float], sampling: SamplingParams) -> None:
        """Raise if the metrics of an update exceed the limit.

        A gap is expected, and not checked, where older weights have played, or where the sampler
        filtered tokens, which makes the others likelier.
        """
        is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
        gap = metrics.get(self.metric, 0.0)
        if is_filtered or "weights_behind" in metrics or not gap > self.limit:
            return
        what = "differ by up to" if self.metric == "gap_max" else "differ on average by"
        raise TrainingStopped(
            f"the learner's log-probs {what} {gap:.3g} nats from the sampler's ({self.metric}), "
            f"expected at most {self.limit:g} (training.max_log_prob_gap): the episodes come from "
            "another model than the one that is trained. Likely causes: weights that did not reach "
            "the engine, an attention that engine and learner compute differently (sliding window, "
            "softcap, sinks), a quantised engine, a server with another model or temperature. To "
            "find out, train with inference.backend=transformers: if the gap is gone, it is the "
            "engine. A larger training.max_log_prob_gap allows more, null disables this check."
        )
