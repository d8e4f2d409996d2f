"""`RecordedRun`: the steps that a run has recorded, and its settings in each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.chat import TokenStream
from turnwise.config import ConfigStore
from turnwise.episode import AgentRecord, Collection, EpisodeResult, TurnRecord
from turnwise.episode.collector import without_failed
from turnwise.errors import ConfigError
from turnwise.inference import FinishReason
from turnwise.runs.checkpoints import Checkpoint, open_checkpoint
from turnwise.runs.episode_store import EpisodeStore, refuse_older_format
from turnwise.runs.episode_table import StoredAgent, StoredEpisode, StoredTurn
from turnwise.runs.metrics_log import missing_steps
from turnwise.runs.provenance import provenance
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.reporter import Metrics
from turnwise.types import Trajectory


class Stretch(NamedTuple):
    """Successive steps of a run with the same settings."""

    config: ConfigStore
    last_step: int


class RecordedRun:
    """The recorded episodes, metrics and checkpoints of a run, which are only read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = RunFolder(path)
        self._episodes = EpisodeStore(self._folder.episodes, 0)
        self._metrics = {int(line["step"]): line for line in self._folder.read_metrics()}
        self.num_steps = max(self._metrics, default=0)
        """The steps that were trained and recorded."""
        self._check()

    def _check(self) -> None:
        if not self.num_steps:
            raise ConfigError(f"{self.path} has no recorded steps: there is nothing to replay")
        refuse_older_format(self._folder.episodes)
        kept = [{"step": float(step)} for step in self._episodes.steps()]
        if missing := missing_steps(kept, self.num_steps):
            raise ConfigError(
                f"{self.path} has no episodes of {missing}, and trained {self.num_steps} steps: "
                "a replay needs the episodes of every step. A run keeps them up to a size of "
                "logging.episodes_gb."
            )

    @property
    def planned_steps(self) -> int:
        """The steps after which the run was to end."""
        return max(int(self._folder.status.get("num_steps", 0)), self.num_steps)

    def metrics(self, step: int) -> Metrics:
        """Return the metrics of a step, counted from 1; empty if they are missing."""
        return self._metrics.get(step, {})

    def episodes(self, step: int, on_error: str) -> Collection:
        """Return the episodes of a step in the order in which it trained on them."""
        results = [_result(episode) for episode in self._episodes.read(step)]
        return without_failed(results) if on_error == "drop_group" else Collection(results)

    def baselines(self, step: int) -> dict[str, float] | None:
        """Return the rewards of a step's greedy episodes by group, if it played some."""
        return self._episodes.baselines(step)

    def checkpoint(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of a step, if it was kept."""
        path = self._folder.checkpoints / f"step-{step:08d}"
        return open_checkpoint(path) if path.is_dir() else None

    def stretches(self, config: ConfigStore) -> list[Stretch]:
        """Return the settings of all steps; `config` are those of the last ones.

        A run that was resumed may have other settings from then on.
        """
        stretches = [Stretch(config, self.num_steps)]
        for entry in sorted(self._folder.changes, key=lambda entry: -int(entry["step"])):
            step, last_step = int(entry["step"]), stretches[0].last_step
            if step == 0:  # no step had the settings before this change
                break
            before = {name: values[0] for name, values in entry["settings"].items()}
            config = _with_values(config, before)
            if step >= last_step:
                stretches[0] = Stretch(config, last_step)
            else:
                stretches.insert(0, Stretch(config, step))
        return stretches

    def what_differs_here(self) -> str:
        """Return which versions and machine the run had that are others here; empty if none."""
        recorded = self._folder.facts.get("provenance")
        before, now = _facts(recorded if isinstance(recorded, dict) else {}), _facts(provenance())
        names = [name for name in before if name in now and before[name] != now[name]]
        return ", ".join(f"{name} was {before[name]} and is {now[name]}" for name in names)


def _facts(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions and the machine, on which rounding depends."""
    machine, packages = origin.get("machine") or {}, origin.get("packages") or {}
    named = {name: packages.get(name) for name in ("turnwise", "torch", "transformers")}
    return {name: value for name, value in (named | machine).items() if value not in (None, [])}


def _with_values(config: ConfigStore, values: Mapping[str, Any]) -> ConfigStore:
    """Return settings with other values, by their dotted names."""
    data = dataclasses.asdict(config)
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (data[section] if section else data)[key] = value
    return ConfigStore.of(data)


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
    turns = [_turn(turn) for turn in agent.turns]
    record = AgentRecord(agent.name, _stream(agent), turns=turns, reward=agent.reward)
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


def _turn(turn: StoredTurn) -> TurnRecord:
    return TurnRecord(
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


def _stream(agent: StoredAgent) -> TokenStream:
    return TokenStream.restored(
        agent.ids.tolist(),
        agent.mask.tolist(),
        agent.columns["sampler_log_probs"][agent.mask].tolist(),
        [turn.tokens for turn in agent.turns],
        agent.branches,
    )
