"""Writes the files of a run: metrics, episodes, checkpoints; and reports what the doctor finds."""

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from turnwise import __version__
from turnwise.config import ConfigStore
from turnwise.episode import EpisodeResult
from turnwise.errors import CheckpointError, TurnwiseError, describe_error
from turnwise.models.empty import model_device, state_values
from turnwise.runs.checkpoints import Checkpoint, CheckpointStore
from turnwise.runs.choose_folder import Change, changes_between
from turnwise.runs.doctor import NUM_GONE, Doctor, shared_rows
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.headline import interval
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.learning import RunComponents, Stopwatch
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.whole_files import discard, explained, remove_abandoned, write_whole

_LOG = logging.getLogger("turnwise")
SECONDS_BETWEEN_SAVES = 600.0
"""Where `checkpoint.save_steps` sets no number of steps."""
_MAX_HASHED_WHOLE = 50_000_000
"""Parameters of a model that is hashed whole, which takes a fraction of a second."""
_NUM_HASHED_VALUES = 4096


class Records:
    """Writes the files of a run. Each step is written before the next one begins."""

    def __init__(
        self,
        folder: RunFolder,
        config: ConfigStore,
        environment: str,
        reporter: Reporter,
        facts: Mapping[str, Any],
        sinks: Sequence[str] = (),
        on_save: Callable[[Path], None] = lambda path: None,
    ) -> None:
        self.checkpoints = CheckpointStore(folder.checkpoints, config.checkpoint.keep_last_n)
        self._folder = folder
        self._config = config
        self._environment = environment
        self._reporter = reporter
        self._facts = dict(facts)
        self._metrics = MetricsLog(folder.metrics_file)
        self._episodes = EpisodeStore(folder.episodes, config.logging.episodes_gb * 2**30)
        self._doctor = Doctor(config)
        self._said_at: dict[str, int] = {}
        """The step in which each finding of the doctor was reported last."""
        self.num_steps = 0
        """Planned steps of the whole run."""
        self._on_save = on_save
        self._saved_step = -1
        self._saved_at = time.monotonic()
        self._seconds: Metrics = {}
        self._last: Metrics = {}
        """The metrics of the last step."""
        self._sinks: Any = None
        if sinks:  # not those of `config`, which has the recorded names of files
            from turnwise.runs.sinks import make_sinks

            settings = dataclasses.asdict(config)
            self._sinks = make_sinks(sinks, folder.path, folder.path.name, settings)

    def begin(self, files: Mapping[str, bytes]) -> None:
        """Write settings, facts and rows of the run."""
        remove_abandoned(self._folder.path)
        # The status first: a folder with it is a run, however soon it was killed.
        self._write_status("running", 0)
        for name, content in files.items():
            self._folder.write(self._folder.path / name, content)
        if (shared := shared_rows(self._facts)) is not None:
            self._reporter.say(f"warning: {shared}")
        for name, facts in self._facts.get("datasets", {}).items():
            if facts.get("kept") is False:
                self._reporter.say(
                    f"the rows of {name} are not kept in {self._folder.path}: "
                    f"{facts['why_not_kept']}. Commands that take this run need --dataset."
                )
        with explained(self._folder.config_file):
            self._config.save(self._folder.config_file)

    def begin_fit(self, num_steps: int, tokenizer: Any, facts: Mapping[str, Any]) -> None:
        """Record the last step, and what is known once the model is loaded.

        The tokenizer is for commands that show tokens; the run continues if it cannot be saved.
        """
        self.num_steps = num_steps
        self._facts = {**facts, **self._facts}
        self._write_status("running", int(self._last.get("step", 0)))
        core = getattr(tokenizer, "backend_tokenizer", None)
        if core is None or self._folder.tokenizer_file.exists():
            return
        try:
            write_whole(self._folder.tokenizer_file, core.to_str().encode())
        except (OSError, ValueError) as error:
            _LOG.warning("the tokenizer could not be saved in the run's folder: %s", error)

    def note_changes(self, step: int, before: ConfigStore | None) -> list[Change]:
        """Record and return the settings that differ from `before`, from this step on."""
        changes = [] if before is None else changes_between(before, self._config)
        changes = [change for change in changes if change.makes_another_run]
        self._folder.write_changes(step, changes)
        for change in changes:
            self._reporter.say(f"from step {step + 1} on: {change}")
        return changes

    def rewind(self, step: int) -> tuple[list[Metrics], int]:
        """Remove all files of later steps.

        Returns the metrics up to this step, and how many steps the run had made after it.
        """
        last = max((int(line.get("step", 0)) for line in self._metrics.read()), default=0)
        self._metrics.rewind(step)
        self._episodes.rewind(step)
        for checkpoint in self.checkpoints.list():
            if checkpoint.step > step:
                discard(checkpoint.path)
        history = self._folder.read_metrics()
        for metrics in history:
            self._doctor.look(metrics)
            self._last = metrics
        return history, max(last - step, 0)

    def keep_episodes(
        self,
        step: int,
        results: Sequence[EpisodeResult],
        clock: Stopwatch,
        columns: Mapping[str, torch.Tensor] | None = None,
        *,
        kind: str = "train",
        baselines: Mapping[str, float] | None = None,
    ) -> None:
        """Write the episodes of a step or of its evaluation, with the columns of their tokens."""
        started = time.perf_counter()
        self._episodes.write(
            step,
            results,
            columns or {},
            kind=kind,
            began=clock.began,
            phases=clock.phases,
            baselines=baselines,
        )
        if kind == "train":
            self._seconds["time/log"] = time.perf_counter() - started

    def keep(self, metrics: Metrics) -> None:
        """Write the metrics of a step, to which the time of writing its episodes is added."""
        started = time.perf_counter()
        metrics |= self._seconds
        step = int(metrics["step"])
        self._metrics.append(metrics)
        if self._sinks is not None:
            self._sinks.log(step, metrics)
        self._last = metrics
        self._write_status("running", step)
        self._reporter.step(metrics)
        for finding in self._doctor.look(metrics):
            self._said_at[finding.code] = step
            self._reporter.say(f"doctor: {finding}")
        self._seconds = {"time/log": time.perf_counter() - started}

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Save a checkpoint, and mark it if it is the best so far."""
        started = time.perf_counter()
        saved = self.checkpoints.save(step, write)
        self._saved_step, self._saved_at = step, time.monotonic()
        self.mark_if_best(saved)
        self._seconds["time/checkpoint"] = time.perf_counter() - started
        self._on_save(saved.path)

    @property
    def is_save_overdue(self) -> bool:
        """Whether the run has worked for ten minutes since its last checkpoint."""
        return time.monotonic() - self._saved_at >= SECONDS_BETWEEN_SAVES

    @property
    def has_best_evaluation(self) -> bool:
        """Whether the last step was evaluated, and none before was better."""
        name = self._config.checkpoint.best_metric
        value, best = self._last.get(name), self.checkpoints.best
        if value is None:
            return False
        # The latest of equals.
        return best is None or best.metric != name or value >= best.value

    def mark_if_best(self, saved: Checkpoint) -> None:
        """Mark a checkpoint as the best by the last metrics, if they are of the same step."""
        if not self.has_best_evaluation or self._last["step"] != saved.step:
            return
        name, last = self._config.checkpoint.best_metric, self._last
        number = last.get(f"{name.rpartition('/')[0]}/num_episodes")
        num_episodes = None if number is None else int(number)
        self.checkpoints.mark_best(saved, name, last[name], interval(last, name), num_episodes)

    def end(self, outcome: str, step: int, write: Callable[[Path], None] | None) -> None:
        """End the run with this outcome; save a last checkpoint if `write` is given."""
        try:
            if write is not None and self._saved_step != step:
                self.save(step, write)
        except (KeyboardInterrupt, SystemExit):
            outcome = "interrupted"  # by a second signal; the previous checkpoint is intact
            raise
        except BaseException as error:
            outcome = f"stopped: {why_ended(error)}"
            raise
        finally:
            try:
                self._write_status(outcome, step)
            except CheckpointError as error:  # perhaps of the disk error that ended the run
                _LOG.warning("%s", error)
            if self._sinks is not None:
                self._sinks.close()
            self._reporter.end(outcome)
            for finding in self._doctor.present():
                said_at = self._said_at.get(finding.code)
                if said_at is None or step - said_at >= NUM_GONE:  # else it is on the screen
                    self._reporter.say(f"doctor: {finding}")

    def _write_status(self, status: str, step: int) -> None:
        self._folder.write_status(
            status=status,
            step=step,
            num_steps=self.num_steps,
            environment=self._environment,
            turnwise=__version__,
            **self._facts,
        )


def why_ended(error: BaseException) -> str:
    """Return an error for the status of a run: our messages as they are, others with their type."""
    return str(error) if isinstance(error, TurnwiseError) else describe_error(error)


def model_facts(
    components: RunComponents, config: ConfigStore, *, is_start: bool
) -> dict[str, Any]:
    """Return model, tokenizer and engine for `run.json`; `is_start` adds a hash of the weights."""
    policy, tokenizer = components.learner.model.policy, components.tokenizer
    model: dict[str, Any] = {
        "name": config.model.local_path or config.model.model_name,
        "class": type(policy).__name__,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "dtype": str(policy.dtype).removeprefix("torch."),
        "device": str(model_device(policy)),
    }
    if is_start:
        model |= _weights_hash(policy)
    core = getattr(tokenizer, "backend_tokenizer", None)  # tokenizers in Python have none
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if core is None else core.to_str()
    template = getattr(tokenizer, "chat_template", None)
    if template and not isinstance(template, str):  # several, by name
        template = json.dumps(template, sort_keys=True)
    template_hash = hashlib.sha256(template.encode()).hexdigest() if template else None
    return {
        "model": model,
        "tokenizer": {
            "class": type(tokenizer).__name__,
            "size": len(tokenizer),
            "hash": hashlib.sha256(text.encode()).hexdigest(),
            "chat_template_hash": template_hash,
        },
        "engine": {
            "class": type(components.engine).__name__,
            "shares_weights": components.engine.shares_model,
            "backend": config.inference.backend,
            "temperature": config.inference.temperature,
            "top_p": config.inference.top_p,
            "stall_timeout": config.inference.stall_timeout,
            **components.engine.options,
        },
    }


def _weights_hash(model: torch.nn.Module) -> dict[str, str]:
    """Return a hash of the weights, and what it covers: all, or a sample of a large model."""
    is_whole = sum(x.numel() for x in model.state_dict().values()) <= _MAX_HASHED_WHOLE
    digest = hashlib.sha256()
    for name, tensor in state_values(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        values = tensor.reshape(-1)
        if not is_whole:
            values = values[:: max(1, len(values) // _NUM_HASHED_VALUES)][:_NUM_HASHED_VALUES]
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    sample = f"names, shapes and {_NUM_HASHED_VALUES} evenly spaced values of each tensor"
    return {"hash": digest.hexdigest(), "hash_covers": "all weights" if is_whole else sample}
