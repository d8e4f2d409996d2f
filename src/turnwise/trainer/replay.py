"""`replay_run`: train again on the recorded episodes of a run, and compare with what it recorded.

The learner gets the same tokens, rewards and versions in the same order, so on the same machine it
comes to the same weights, bit for bit, also if the run was asynchronous. No episode is played but
those of a warm start.
"""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
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
from turnwise.runs.episode_store import EpisodeStore, refuse_older_format
from turnwise.runs.episode_table import StoredAgent, StoredEpisode
from turnwise.runs.metrics_log import missing_steps
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.trainer.assembly import samples_exactly
from turnwise.trainer.learning import PlayedStep, RunComponents, Stopwatch
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.state import has_same_weights
from turnwise.trainer.stopping import Interrupted, StopRequest
from turnwise.trainer.trainer import FitPlan, Trainer
from turnwise.types import Trajectory

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
    for settings, last_step in source.stretches(config):
        with Replay(source, outcome, last_step, settings, reporter, resume, given) as trainer:
            # The epochs and the steps of each, as the run planned them.
            num_steps, num_epochs = source.planned_steps, config.training.num_epochs
            num_epochs = 1 if num_steps % num_epochs else num_epochs
            trainer.fit(num_epochs, num_steps // num_epochs)
        outcome.folder, resume = trainer.run_folder, "always"
    return outcome


class RecordedRun:
    """The recorded episodes, metrics and checkpoints of a run, which are only read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self.store = EpisodeStore(self.folder.episodes, 0)
        self.metrics = {int(line["step"]): line for line in self.folder.read_metrics()}
        """By step, counted from 1."""
        self.num_steps = max(self.metrics, default=0)
        """The steps that were trained and recorded."""
        if not self.num_steps:
            raise ConfigError(f"{self.path} has no recorded steps: there is nothing to replay")
        self.planned_steps = max(int(self.folder.status.get("num_steps", 0)), self.num_steps)
        """The steps after which the run was to end."""
        refuse_older_format(self.folder.episodes)
        kept = [{"step": float(step)} for step in self.store.steps()]
        if missing := missing_steps(kept, self.num_steps):
            raise ConfigError(
                f"{self.path} has no episodes of {missing}, and trained {self.num_steps} steps: "
                "a replay needs the episodes of every step. A run keeps them up to a size of "
                "logging.episodes_gb."
            )

    def episodes(self, step: int, on_error: str) -> Collection:
        """Return the episodes of a step in the order in which it trained on them."""
        results = [_result(episode) for episode in self.store.read(step)]
        return without_failed(results) if on_error == "drop_group" else Collection(results)

    def stretches(self, config: ConfigStore) -> list[tuple[ConfigStore, int]]:
        """Return settings, each with the last step that had them; `config` are the last ones.

        A run that was resumed may have other settings from then on.
        """
        stretches = [(config, self.num_steps)]
        for entry in sorted(self.folder.changes, key=lambda entry: -int(entry["step"])):
            step, last_step = int(entry["step"]), stretches[0][1]
            if step == 0:  # no step had the settings before this change
                break
            data = dataclasses.asdict(config)
            for name, (before, _) in entry["settings"].items():
                section, _, key = name.rpartition(".")
                (data[section] if section else data)[key] = before
            config = ConfigStore.of(data)
            if step >= last_step:
                stretches[0] = config, last_step
            else:
                stretches.insert(0, (config, step))
        return stretches


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
        self._source = source
        self._outcome = outcome
        self._last_step = last_step
        self._recorded_settings = config
        # Without other processes; it neither evaluates nor sends metrics.
        config = copy.deepcopy(config)
        config.ray.use_ray = False
        if not engine_class(config.inference.backend).shares_model:
            config.inference.backend, config.inference.options = "local", {}
            config.inference.url, config.model.tensor_parallel_size = None, 1
        config.training.eval_episodes = 0
        config.logging.episodes_gb, config.logging.sinks, config.logging.wandb = 0.0, [], {}
        super().__init__(config, reporter=reporter, resume=resume, **given)

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
        turns = (turn for result in episodes for agent in result.agents for turn in agent.turns)
        versions = {version for turn in turns for version in turn.tokens_by_version}
        if versions:  # as when the run trained on them
            behind = int(self._source.metrics.get(step, {}).get("weights_behind", 0))
            self.components.engine.weight_version = min(versions) + behind
        return PlayedStep(episodes, {}, self._source.store.baselines(step))

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Mapping[str, torch.Tensor], str | None]:
        """Learn from recorded episodes; raise `TrainingStopped` if the metrics are others."""
        metrics, columns, why_stop = super()._learn(step, clock)
        number, outcome = self.step + 1, self._outcome
        recorded = self._source.metrics.get(number, {})
        both = {
            name: (recorded[name], value)
            for name, value in metrics.items()
            if name in recorded and math.isfinite(value) and not name.startswith(_TIMED)
        }
        others = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        outcome.num_steps += 1
        if others:
            worst = sorted(others, key=lambda name: _distance(*others[name]), reverse=True)
            shown = ", ".join(f"{n} {others[n][1]:.6g} (was {others[n][0]:.6g})" for n in worst[:4])
            if _distance(*others[worst[0]]) > 1:
                raise TrainingStopped(
                    f"the replay diverges from {self._source.path} in step {number}: {shown}. It "
                    "learns from the recorded episodes, so it has other code, other settings or "
                    "another machine; or its warm start does not play the same twice."
                )
            compared = f"{len(others)} of {len(both)} metrics differ by rounding: {shown}"
        else:
            outcome.num_equal += 1
            compared = f"{len(both)} metrics as recorded"
        self._reporter.say(f"replay of step {number}: {compared}")
        path = self._source.folder.checkpoints / f"step-{number:08d}"
        if path.is_dir():
            is_same = has_same_weights(open_checkpoint(path), self.components.learner)
            (outcome.equal_checkpoints if is_same else outcome.other_checkpoints).append(number)
        kept = {
            name: value
            for name, value in recorded.items()
            if not name.startswith(_NOT_REPLAYED) and name not in ("step", "epoch")
        }
        return {**kept, **metrics}, columns, why_stop


def _distance(recorded: float, now: float) -> float:
    """Return how far two values are apart; 1 is as far as rounding may bring them."""
    return abs(recorded - now) / (_RELATIVE * max(abs(recorded), abs(now)) + _ABSOLUTE)


def _result(episode: StoredEpisode) -> EpisodeResult:
    return EpisodeResult(
        seed=episode.seed,
        group=episode.group,
        member=episode.member,
        status=episode.status,
        error=episode.error,
        traceback=episode.traceback,
        attempt=episode.attempt,
        agents=[_agent(agent, episode) for agent in episode.agents],
        seconds=episode.seconds,
        part=episode.part,
    )


def _agent(agent: StoredAgent, episode: StoredEpisode) -> AgentRecord:
    stream = TokenStream.restored(
        agent.ids.tolist(),
        agent.mask.tolist(),
        agent.columns["sampler_log_probs"][agent.mask].tolist(),
        [turn.tokens for turn in agent.turns],
        agent.branches,
    )
    turns = [
        TurnRecord(
            tokens=turn.tokens,
            text=turn.text,
            finish_reason=FinishReason(turn.finish_reason),
            weight_version=turn.weight_version,
            kind=turn.kind,  # type: ignore[arg-type] # a `TurnKind` when it was written
            state=turn.state,
            observation=turn.observation,
            reward=turn.reward,
            done=turn.done,
            info=turn.info,
            later_versions=tuple(turn.later_versions),
        )
        for turn in agent.turns
    ]
    record = AgentRecord(agent.name, stream, turns=turns, reward=agent.reward)
    record.trajectory = Trajectory(
        states=[turn.state for turn in record.actions],
        actions=[turn.text for turn in record.actions],
        rewards=[turn.reward for turn in record.actions],
        dones=[turn.done for turn in record.actions],
        infos=[turn.info for turn in record.actions],
        observations=[turn.observation for turn in record.actions],
        status=episode.status,
        seed=episode.seed,
        error=episode.error,
        task=episode.task,
        result=agent.result,
    )
    return record
