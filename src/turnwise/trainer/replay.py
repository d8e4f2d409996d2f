"""`replay_run`: train again on the recorded episodes of a run, and compare with what it recorded.

The learner gets the same tokens, rewards and versions in the same order, so on the same machine it
comes to the same weights, bit for bit, also if the run was asynchronous. No episode is played but
those of a warm start.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from turnwise.config import ConfigStore
from turnwise.episode import Collection
from turnwise.errors import TrainingStopped
from turnwise.inference import engine_class
from turnwise.progress.run_state import count
from turnwise.runs.run_folder import Resume
from turnwise.trainer.assembly import RunComponents, samples_exactly
from turnwise.trainer.epochs import FitPlan
from turnwise.trainer.recorded_steps import RecordedRun
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.state import has_same_weights
from turnwise.trainer.stopping import Interrupted, StopRequest
from turnwise.trainer.stopwatch import Stopwatch
from turnwise.trainer.trainer import Trainer
from turnwise.trainer.training_step import PlayedStep

_TIMED = ("time/", "memory/", "idle/")
_NOT_REPLAYED = (*_TIMED, "eval/")
# Rounding of another machine is far below these; other weights or episodes are soon above them.
_RELATIVE, _ABSOLUTE = 0.01, 1e-4


@dataclass
class ReplayOutcome:
    """What a replay found."""

    num_steps: int = 0
    """Steps that were replayed."""
    num_equal: int = 0
    """Those of them that gave exactly the recorded metrics."""
    equal_checkpoints: list[int] = field(default_factory=list)
    """Steps whose recorded checkpoint has exactly the weights of the replay."""
    other_checkpoints: list[int] = field(default_factory=list)
    """Steps whose recorded checkpoint has other weights."""
    folder: Path | None = None
    """The folder of the replay."""

    def __str__(self) -> str:
        text = f"replayed {count(self.num_steps, 'step')}: "
        if self.num_equal == self.num_steps:
            text += "all metrics are exactly those recorded"
        else:
            text += f"{self.num_equal} with exactly the recorded metrics, the others up to rounding"
        for steps, how in (
            (self.equal_checkpoints, "the weights are bit for bit those of"),
            (self.other_checkpoints, "the weights are not exactly those of"),
        ):
            if steps:
                names = ", ".join(f"step-{step:08d}" for step in steps)
                text += f"; {how} the checkpoint{'s' * (len(steps) > 1)} {names}"
        return text


def replay_run(
    run: Path, config: ConfigStore, reporter: Reporter | None = None, **given: Any
) -> ReplayOutcome:
    """Train again on the recorded episodes of a run; nothing in its folder is changed.

    `config` has the run's settings, and the name and place of the new run. `given` are objects that
    the run was given in Python, under the names of `Trainer`'s arguments.
    """
    source, outcome = RecordedRun(run), ReplayOutcome()
    resume: Resume = "never"
    for stretch in source.stretches(config):
        trainer = Replay(
            source, outcome, stretch.last_step, stretch.config, reporter, resume, given
        )
        with trainer:
            trainer.fit(*_plan(source, config))
        outcome.folder, resume = trainer.run_folder, "always"
    return outcome


def _plan(source: RecordedRun, config: ConfigStore) -> tuple[int, int]:
    """Return the epochs and the steps of each, as the run planned them."""
    epochs, rest = config.training.num_epochs, source.planned_steps % config.training.num_epochs
    return (1, source.planned_steps) if rest else (epochs, source.planned_steps // epochs)


class Replay(Trainer):
    """Trains on recorded episodes up to a step, and compares the metrics with the recorded ones."""

    def __init__(
        self,
        source: RecordedRun,
        outcome: ReplayOutcome,
        last_step: int,
        config: ConfigStore,
        reporter: Reporter | None,
        resume: Resume,
        given: Mapping[str, Any],
    ) -> None:
        super().__init__(_in_this_process(config), reporter=reporter, resume=resume, **given)
        self._source = source
        self._outcome = outcome
        self._last_step = last_step
        self._recorded_settings = config

    def _assemble(self) -> RunComponents:
        is_new = self._components is None
        components = super()._assemble()
        if is_new:
            before = self._recorded_settings
            is_exact = samples_exactly(before, components.learner)
            components.advantages.sampler_is_exact = is_exact
        return components

    @contextlib.contextmanager
    def _rollout(self, plan: FitPlan | None = None) -> Iterator[Rollout]:
        """Open what chooses the tasks of the warm start; nothing is played ahead."""
        with super()._rollout(None) as rollout:
            yield rollout

    def _play(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        """Return the recorded episodes of the next step."""
        if self.step >= self._last_step:
            raise Interrupted
        step = self.step + 1
        episodes = self._source.episodes(step, self.config.training.on_error)
        versions = _versions(episodes)
        if versions:  # as when the run trained on them
            behind = int(self._source.metrics(step).get("weights_behind", 0))
            self.components.engine.weight_version = min(versions) + behind
        return PlayedStep(episodes, {}, self._source.baselines(step))

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Mapping[str, torch.Tensor], str | None]:
        metrics, columns, why_stop = super()._learn(step, clock)
        number = self.step + 1
        recorded = self._source.metrics(number)
        self._compare_metrics(number, recorded, metrics)
        self._compare_weights(number)
        kept = {
            name: value
            for name, value in recorded.items()
            if not name.startswith(_NOT_REPLAYED) and name not in ("step", "epoch")
        }
        return {**kept, **metrics}, columns, why_stop

    def _compare_metrics(self, step: int, recorded: Metrics, metrics: Metrics) -> None:
        """Report how a step compares with its record; raise `TrainingStopped` if they diverge."""
        both = {
            name: (recorded[name], value)
            for name, value in metrics.items()
            if name in recorded and math.isfinite(value) and not name.startswith(_TIMED)
        }
        others = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        self._outcome.num_steps += 1
        if not others:
            self._outcome.num_equal += 1
            self._reporter.say(f"replay of step {step}: {len(both)} metrics as recorded")
            return
        worst = sorted(others, key=lambda name: _distance(*others[name]), reverse=True)
        shown = ", ".join(f"{n} {others[n][1]:.6g} (was {others[n][0]:.6g})" for n in worst[:4])
        if _distance(*others[worst[0]]) > 1:
            raise TrainingStopped(self._divergence(step, shown))
        number = f"{len(others)} of {len(both)}"
        self._reporter.say(f"replay of step {step}: {number} metrics differ by rounding: {shown}")

    def _compare_weights(self, step: int) -> None:
        checkpoint = self._source.checkpoint(step)
        if checkpoint is None:
            return
        if has_same_weights(checkpoint, self.components.learner):
            self._outcome.equal_checkpoints.append(step)
        else:
            self._outcome.other_checkpoints.append(step)

    def _divergence(self, step: int, shown: str) -> str:
        imitates = step == 1 and self.config.training.warm_start is not None
        again = ", or a warm start that does not play the same twice" if imitates else ""
        changed = self._source.what_differs_here()
        return (
            f"the replay diverges from {self._source.path} in step {step}: {shown}. It learns from "
            "the recorded episodes, so it has other code, other settings or another machine"
            f"{again}.{f' Since then: {changed}.' if changed else ''}"
        )


def _distance(recorded: float, now: float) -> float:
    """Return how far two values are apart; 1 is as far as rounding may bring them."""
    return abs(recorded - now) / (_RELATIVE * max(abs(recorded), abs(now)) + _ABSOLUTE)


def _versions(episodes: Collection) -> set[int]:
    """Return the versions of the weights that sampled a token of these episodes."""
    turns = (turn for result in episodes for agent in result.agents for turn in agent.turns)
    return {version for turn in turns for version in turn.tokens_by_version}


def _in_this_process(config: ConfigStore) -> ConfigStore:
    """Return settings that train without other processes, and neither evaluate nor send metrics."""
    config = copy.deepcopy(config)
    config.ray.use_ray = False
    if not engine_class(config.inference.backend).shares_model:
        config.inference.backend, config.inference.options = "local", {}
        config.inference.url, config.model.tensor_parallel_size = None, 1
    config.training.eval_episodes = 0
    config.logging.episodes_gb, config.logging.sinks = 0.0, []
    return config
