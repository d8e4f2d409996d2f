"""One step of reinforcement learning: the episodes, and what is learned from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from turnwise.config import ConfigStore
from turnwise.episode import Collection
from turnwise.trainer.assembly import RunComponents
from turnwise.trainer.batches import kept_columns, make_batch, trained_rows
from turnwise.trainer.episode_metrics import staleness, step_metrics
from turnwise.trainer.failures import MOST_FAILED_STEPS, FailureReport
from turnwise.trainer.gap import GapLimit
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.rollout import OnEpisode, Rollout
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.stopwatch import Stopwatch


@dataclass(frozen=True)
class PlayedStep:
    """The episodes of a step, before anything is learned from them."""

    played: Collection
    figures: Metrics
    baselines: Mapping[int, float] | None = None
    """The reward of the greedy episode of each group, for estimators that ask for it."""


def play_step(
    rollout: Rollout,
    step: int,
    stop: StopRequest,
    on_episode: OnEpisode,
    failures: FailureReport,
    *,
    nothing_learned: bool,
    needs_baselines: bool,
) -> tuple[PlayedStep, str | None]:
    """Play the episodes of a step, counted from 0; also why the run cannot continue, if it cannot.

    `nothing_learned` says that no step before this one has changed the model.
    """
    played = rollout.play(step, stop, on_episode)
    why_stop = failures.look(played, is_first_step=nothing_learned)
    baselines = rollout.baselines(stop) if needs_baselines and why_stop is None else None
    figures = step_metrics(played)
    if rollout.zero_variance:
        figures |= {
            f"{name}/zero_variance" if name else "zero_variance": share
            for name, share in rollout.zero_variance.items()
        }
        figures["num_resampled"] = rollout.num_resampled
    return PlayedStep(played, figures, baselines), why_stop


def learn_from(
    step: PlayedStep, components: RunComponents, config: ConfigStore, clock: Stopwatch
) -> tuple[Metrics, Mapping[str, torch.Tensor]]:
    """Score, update, publish; the metrics, and what was computed for each token."""
    played, figures = step.played, dict(step.figures)
    figures |= staleness(played, components.engine.weight_version)
    rows = trained_rows(played)
    columns: Mapping[str, torch.Tensor] = {}
    if rows:
        batch = make_batch(rows)
        with clock.timing("log_probs"):
            figures |= components.advantages.fill(batch, rows, step.baselines)
        with clock.timing("update"):
            figures |= components.learner.update(batch)
            _check_gap(figures, components, config)
            components.publish_weights()
        every = [*played, *played.dropped]
        columns = kept_columns(every, rows, batch, components.learner.log_probs_before_update)
    return figures, columns


def _check_gap(figures: Metrics, components: RunComponents, config: ConfigStore) -> None:
    """Episodes of another model than the learner's teach it nothing of its own."""
    limit = GapLimit.of(config.training.max_log_prob_gap, components.advantages.sampler_is_exact)
    if limit is not None:
        limit.check(figures, components.collector.setup.sampling)


@dataclass
class BrokenSteps:
    """Counts steps that changed nothing: a run of which nothing is learned any more should end."""

    num_in_a_row: int = 0

    def look(self, figures: Metrics) -> str | None:
        """Count the step if it changed nothing; why the run should end, if it should."""
        is_broken = not figures.get("num_steps")
        self.num_in_a_row = self.num_in_a_row + 1 if is_broken else 0
        if self.num_in_a_row < MOST_FAILED_STEPS:
            return None
        if figures.get("num_skipped_steps"):
            why = (
                "the loss or its gradient was not a finite number. Lower training.learning_rate, "
                "or look for extreme rewards."
            )
        else:
            why = "no episode could be learned from. Look at the errors in log.txt."
        return f"{MOST_FAILED_STEPS} steps in a row changed nothing: {why}"
