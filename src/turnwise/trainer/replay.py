"""`replay_run`: train again on the recorded episodes of a run, and compare with what it recorded.

The learner gets the same tokens, rewards and versions in the same order, so on the same machine it
comes to the same weights, bit for bit, also if the run was asynchronous. No episode is played but
those of a warm start.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from turnwise.chat import TokenStream
from turnwise.config import ConfigStore
from turnwise.episode import AgentRecord, Collection, EpisodeResult, TurnRecord
from turnwise.episode.collector import without_failed
from turnwise.errors import ConfigError, TrainingStopped
from turnwise.inference import FinishReason, engine_class
from turnwise.progress.lines import count
from turnwise.runs.checkpoints import open_checkpoint
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.episode_table import StoredAgent, StoredEpisode
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.trainer.assembly import samples_exactly
from turnwise.trainer.learning import PlayedStep, Stopwatch
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.state import has_same_weights
from turnwise.trainer.stopping import Interrupted, StopRequest
from turnwise.trainer.trainer import Trainer

_TIMED = ("time/", "memory/", "idle/")
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
        if self.num_equal == self.num_steps:
            text = "all metrics are exactly those recorded"
        else:
            text = f"{self.num_equal} with exactly the recorded metrics, the others up to rounding"
        by_relation = {"bit for bit": self.equal_checkpoints, "not exactly": self.other_checkpoints}
        for relation, steps in by_relation.items():
            if steps:
                names = ", ".join(f"step-{step:08d}" for step in steps)
                text += f"; the weights are {relation} those of the checkpoints {names}"
        return f"replayed {count(self.num_steps, 'step')}: {text}"


def replay_run(
    run: Path, config: ConfigStore, reporter: Reporter | None = None, **given: Any
) -> ReplayOutcome:
    """Train again on the recorded episodes of a run; nothing in its folder is changed.

    `config` has the run's settings, and the name and place of the new run. `given` are objects that
    the run was given in Python, under the names of `Trainer`'s arguments.
    """
    outcome = ReplayOutcome()
    resume: Resume = "never"
    for settings, last_step in _settings_by_step(RunFolder(run), config):
        if outcome.folder is not None:
            settings.checkpoint.run_name = outcome.folder.name
        model = copy.deepcopy(given.get("model"))  # each of them begins with the same weights
        objects = {**given, "model": model, "reporter": reporter, "resume": resume}
        with Replay(run, outcome, last_step, settings, **objects) as trainer:
            # The epochs and the steps of each, as the run planned them.
            num_steps, num_epochs = trainer.planned_steps, config.training.num_epochs
            num_epochs = 1 if num_steps % num_epochs else num_epochs
            trainer.fit(num_epochs, num_steps // num_epochs)
        outcome.folder, resume = trainer.run_folder, "always"
        if last_step is not None and trainer.step < last_step:  # it was stopped
            break
    return outcome


def _settings_by_step(run: RunFolder, config: ConfigStore) -> list[tuple[ConfigStore, int | None]]:
    """Return the settings of a run, each with the last step that had them; None: to the end."""
    settings: list[tuple[ConfigStore, int | None]] = [(config, None)]
    for entry in reversed(run.changes):
        if not entry["step"]:  # no step had the settings before this change
            break
        data = dataclasses.asdict(settings[0][0])
        for name, (before, _) in entry["settings"].items():
            section, _, key = name.rpartition(".")
            (data[section] if section else data)[key] = before
        if entry["step"] == settings[0][1]:  # resumed twice, without a step in between
            del settings[0]
        settings.insert(0, (ConfigStore.of(data), entry["step"]))
    return settings


def _replay_settings(config: ConfigStore) -> ConfigStore:
    """Return settings that learn the same in this process alone, and neither evaluate nor log."""
    config = copy.deepcopy(config)
    config.ray.use_ray = False
    if not engine_class(config.inference.backend).shares_model:
        config.inference.backend, config.inference.options = "local", {}
        config.inference.url, config.model.tensor_parallel_size = None, 1
    config.training.eval_episodes = config.training.max_staleness = 0
    config.logging.episodes_gb, config.logging.sinks, config.logging.wandb = 0.0, [], {}
    return config


class Replay(Trainer):
    """Trains on recorded episodes up to a step, and compares the metrics with the recorded ones."""

    def __init__(
        self,
        run: Path,
        outcome: ReplayOutcome,
        last_step: int | None,
        config: ConfigStore,
        **given: Any,
    ) -> None:
        self._source = folder = RunFolder(run)
        self._outcome = outcome
        self._store = EpisodeStore(folder.episodes, 0)
        self._recorded_metrics = {int(line["step"]): line for line in folder.read_metrics()}
        """By step, counted from 1."""
        num_steps = max(self._recorded_metrics, default=0)
        self._last_step = num_steps if last_step is None else last_step
        self.planned_steps = max(int(folder.status.get("num_steps", 0)), num_steps)
        """The steps after which the run was to end."""
        if not num_steps:
            raise ConfigError(f"{run} has no recorded steps: there is nothing to replay")
        if missing := {*range(1, num_steps + 1)} - {*self._store.steps()}:
            raise ConfigError(
                f"{run} has no episodes of {len(missing)} of {num_steps} steps, such as step "
                f"{min(missing)}. A replay needs all; a run keeps up to logging.episodes_gb."
            )
        super().__init__(_replay_settings(config), **given)
        learner, advantages = self.components.learner, self.components.advantages
        advantages.sampler_is_exact = samples_exactly(config, learner)

    def _play(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        if self.step >= self._last_step:  # the run was not finished, or its settings changed
            raise Interrupted
        step = self.step + 1
        results = [_result(episode) for episode in self._store.read(step)]
        drops = self.config.training.on_error == "drop_group"
        episodes = without_failed(results) if drops else Collection(results)
        turns = (turn for result in episodes for agent in result.agents for turn in agent.turns)
        versions = {version for turn in turns for version in turn.tokens_by_version}
        if versions:  # as when the run trained on them
            behind = int(self._recorded_metrics.get(step, {}).get("weights_behind", 0))
            self.components.engine.weight_version = min(versions) + behind
        return PlayedStep(episodes, {}, self._store.baselines(step))

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Mapping[str, torch.Tensor]]:
        """Learn from recorded episodes; raise `TrainingStopped` if the metrics are others."""
        metrics, columns = super()._learn(step, clock)
        number, outcome = self.step + 1, self._outcome
        recorded = self._recorded_metrics.get(number, {})
        distances = {}  # 1 is as far as rounding may bring two values apart
        for name, now in metrics.items():
            if name in recorded and math.isfinite(now) and not name.startswith(_TIMED):
                largest = max(abs(recorded[name]), abs(now))
                distances[name] = abs(recorded[name] - now) / (_RELATIVE * largest + _ABSOLUTE)
        worst = sorted(filter(distances.get, distances), key=distances.__getitem__, reverse=True)
        shown = ", ".join(f"{n} {metrics[n]:.6g} (was {recorded[n]:.6g})" for n in worst[:4])
        if worst and distances[worst[0]] > 1:
            raise TrainingStopped(
                f"the replay diverges from {self._source.path} in step {number}: {shown}. It has "
                "other code, settings or machine; or its warm start does not play the same twice."
            )
        outcome.num_steps += 1
        outcome.num_equal += not worst
        what = f"{len(distances)} metrics as recorded"
        if worst:
            what = f"{len(worst)} of {len(distances)} metrics differ by rounding: {shown}"
        self._reporter.say(f"replay of step {number}: {what}")
        path = self._source.checkpoints / f"step-{number:08d}"
        if path.is_dir():
            is_same = has_same_weights(open_checkpoint(path), self.components.learner)
            (outcome.equal_checkpoints if is_same else outcome.other_checkpoints).append(number)
        kept = {k: x for k, x in recorded.items() if not k.startswith((*_TIMED, "eval/"))}
        return {**kept, **metrics}, columns


def _result(episode: StoredEpisode) -> EpisodeResult:
    same = ("seed", "group", "member", "status", "error", "traceback", "attempt", "seconds", "part")
    values: dict[str, Any] = {name: getattr(episode, name) for name in same}
    return EpisodeResult(**values, agents=[_agent(agent) for agent in episode.agents])


def _agent(agent: StoredAgent) -> AgentRecord:
    stream = TokenStream.restored(
        agent.ids.tolist(),
        agent.mask.tolist(),
        agent.columns["sampler_log_probs"][agent.mask].tolist(),
        [turn.tokens for turn in agent.turns],
        agent.branches,
    )
    record = AgentRecord(agent.name, stream, reward=agent.reward)
    same = ("tokens", "text", "weight_version", "kind", "state", "observation", "reward", "done")
    for turn in agent.turns:
        values: dict[str, Any] = {name: getattr(turn, name) for name in (*same, "info")}
        values["finish_reason"] = FinishReason(turn.finish_reason)
        record.turns.append(TurnRecord(**values, later_versions=tuple(turn.later_versions)))
    record.fill_trajectory()
    return record
