"""Writes the files of a run: metrics, episodes, checkpoints; and reports what the doctor finds."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from turnwise import __version__
from turnwise.config import ConfigStore
from turnwise.episode import Collection
from turnwise.errors import CheckpointError, ConfigError, describe_error, error_message
from turnwise.runs.checkpoints import Checkpoint, CheckpointStore
from turnwise.runs.disk_errors import explained
from turnwise.runs.doctor import Doctor, Finding
from turnwise.runs.doctor.evidence import AFTER_SHARED_ROWS, rows_trained_on
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.headline import interval
from turnwise.runs.metrics_log import MetricsLog, missing_steps, numbers_of
from turnwise.runs.provenance import provenance
from turnwise.runs.resume_settings import Change, changes_between
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.stopwatch import Stopwatch
from turnwise.whole_files import remove_abandoned, write_whole

_LOG = logging.getLogger("turnwise")
_MAX_STARTS = 20
SECONDS_BETWEEN_SAVES = 600.0
"""Where `checkpoint.save_steps` sets no number of steps."""


class Records:
    """Writes the files of a run. Each step is written before the next one begins."""

    def __init__(
        self,
        folder: RunFolder,
        config: ConfigStore,
        environment: str,
        reporter: Reporter,
        facts: Mapping[str, Any],
        files: dict[str, bytes],
        on_save: Callable[[Path], None] = lambda path: None,
    ) -> None:
        self.checkpoints = CheckpointStore(folder.checkpoints, config.checkpoint.keep_last_n)
        self._folder = folder
        self._config = config
        self._environment = environment
        self._reporter = reporter
        self._files = files
        """Rows of datasets that are written when the run begins, by file name."""
        self._facts: dict[str, Any] = {**facts, "provenance": provenance()}
        """The contents of `run.json` besides the status."""
        self._metrics = MetricsLog(folder.metrics_file)
        self._episodes = EpisodeStore(folder.episodes, config.logging.episodes_gb * 2**30)
        self._doctor = Doctor()
        self._new_findings: list[Finding] = []
        """The doctor's findings after the last step."""
        self.num_steps = 0
        """Planned steps of the whole run."""
        self._on_save = on_save
        self._saved_step = -1
        self._saved_at = time.monotonic()
        self._seconds: Metrics = {}
        self._last: Metrics = {}
        """The metrics of the last step that was written."""
        self._sinks: Any = None
        if config.logging.sinks:
            from turnwise.runs.sinks import make_sinks

            self._sinks = make_sinks(
                config.logging.sinks, folder.path, folder.path.name, dataclasses.asdict(config)
            )

    def begin(self, *, resumes: bool = False) -> None:
        """Write the settings and facts of the run; a resumed one keeps those of its start."""
        remove_abandoned(self._folder.path)
        if resumes:
            self._facts |= _kept_facts(self._folder.status)
        # The status first: a folder with it is a run, however soon it was killed.
        self._write_status("running", 0)
        self._keep_rows()
        with explained(self._folder.config_file):
            self._config.save(self._folder.config_file)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add facts that are known once the model is loaded."""
        self._facts = {**facts, **self._facts}
        self._write_status("running", int(self._last.get("step", 0)))

    def _keep_rows(self) -> None:
        """Write rows that are in no file, and report those that cannot be kept."""
        for name, content in self._files.items():
            with explained(self._folder.path / name):
                write_whole(self._folder.path / name, content)
        self._files.clear()  # they are on the disk now
        if (shared := rows_trained_on(self._facts)) is not None:
            self._reporter.say(f"warning: {shared} {AFTER_SHARED_ROWS}")
        for name, facts in self._facts.get("datasets", {}).items():
            if facts.get("kept") is False:
                self._reporter.say(
                    f"the rows of {name} are not kept in {self._folder.path}: "
                    f"{facts['why_not_kept']}. Commands that take this run need --dataset."
                )

    def note_changes(self, step: int, before: ConfigStore | None) -> list[Change]:
        """Record and return the settings that differ from `before`, from this step on."""
        changes = [] if before is None else changes_between(before, self._config)
        changes = [change for change in changes if change.makes_another_run]
        self._folder.write_changes(step, changes, self._config)
        for change in changes:
            self._reporter.say(f"from step {step + 1} on: {change}")
        return changes

    def num_steps_after(self, step: int) -> int:
        """Return how many steps the run has made after this one."""
        last = max((int(line.get("step", 0)) for line in self._metrics.read()), default=0)
        return max(last - step, 0)

    def rewind(self, step: int) -> list[Metrics]:
        """Remove all files of later steps; return the metrics up to this step."""
        self._metrics.rewind(step)
        self._episodes.rewind(step)
        for checkpoint in self.checkpoints.list():
            if checkpoint.step > step:
                self.checkpoints.remove(checkpoint)
        history = [numbers_of(line) for line in self._metrics.read()]
        for metrics in history:
            self._doctor.look(metrics)
            self._last = metrics
        return history

    def report_missing(self, history: Sequence[Metrics], num_steps: int) -> None:
        """Report steps that were trained and have no metrics in the file."""
        missing = missing_steps(history, num_steps)
        if missing:
            self._reporter.say(
                f"{self._folder.metrics_file} has no line for {missing}, though {num_steps} steps "
                "were trained. The run resumes without them: curves and the doctor have a gap."
            )

    def keep_tokenizer(self, tokenizer: Any) -> None:
        """Save the tokenizer, for commands that show tokens; the run continues if this fails."""
        core = getattr(tokenizer, "backend_tokenizer", None)
        if core is None or self._folder.tokenizer_file.exists():
            return
        try:
            write_whole(self._folder.tokenizer_file, core.to_str().encode())
        except (OSError, ValueError) as error:
            _LOG.warning("the tokenizer could not be saved in the run's folder: %s", error)

    def keep_episodes(
        self,
        step: int,
        played: Collection,
        columns: Mapping[str, torch.Tensor],
        clock: Stopwatch,
        baselines: Mapping[str, float] | None = None,
    ) -> None:
        """Write the episodes of a step, dropped ones too, with the columns of their tokens."""
        self._folder.check_lock()
        started = time.perf_counter()
        episodes = [*played, *played.dropped]
        when: dict[str, Any] = {"began": clock.began, "phases": clock.phases}
        self._episodes.write(step, episodes, columns, **when, baselines=baselines)
        self._seconds["time/log"] = time.perf_counter() - started

    def keep(self, metrics: Metrics) -> None:
        """Write the metrics of a step, to which the time of writing its episodes is added."""
        self._folder.check_lock()
        started = time.perf_counter()
        metrics |= self._seconds
        step = int(metrics["step"])
        self._metrics.append(metrics)
        if self._sinks is not None:
            self._sinks.log(step, metrics)
        self._last = metrics
        self._write_status("running", step)
        self._reporter.step(metrics)
        self._new_findings = self._doctor.look(metrics)
        for finding in self._new_findings:
            self._reporter.say(f"doctor: {finding}")
        self._seconds = {"time/log": time.perf_counter() - started}

    def keep_evaluation(self, step: int, played: Collection, kind: str, clock: Stopwatch) -> None:
        """Write the episodes of an evaluation, `greedy` or `sampled`."""
        self._folder.check_lock()
        self._episodes.write(
            step, list(played), kind=f"eval-{kind}", began=clock.began, phases=clock.phases
        )

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Save a checkpoint, and mark it if it is the best so far."""
        self._folder.check_lock()
        started = time.perf_counter()
        saved = self.checkpoints.save(step, write, {"environment": self._environment})
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
        return best is None or best.mark.metric != name or value >= best.mark.value

    def mark_if_best(self, saved: Checkpoint) -> None:
        """Mark a checkpoint as the best by the last metrics, if they are of the same step."""
        if not self.has_best_evaluation or self._last["step"] != saved.step:
            return
        name = self._config.checkpoint.best_metric
        number = self._last.get(f"{name.rpartition('/')[0]}/num_episodes")
        num_episodes = None if number is None else int(number)
        bounds = interval(self._last, name)
        self.checkpoints.mark_best(saved, name, self._last[name], bounds, num_episodes)

    def end(self, outcome: str, step: int, write: Callable[[Path], None] | None) -> None:
        """End the run with this outcome; save a last checkpoint if `write` is given."""
        try:
            if write is not None and self._saved_step != step:
                self.save(step, write)
        except (KeyboardInterrupt, SystemExit):
            outcome = "interrupted"  # by a second signal; the previous checkpoint is intact
            raise
        except BaseException as error:
            outcome = f"stopped: {error_message(error) or describe_error(error)}"
            raise
        finally:
            self._write_last_status(outcome, step)
            if self._sinks is not None:
                self._sinks.close()
            self._reporter.end(outcome)
            for finding in self._doctor.present():
                if finding not in self._new_findings:  # reported a moment ago
                    self._reporter.say(f"doctor: {finding}")

    def _write_last_status(self, outcome: str, step: int) -> None:
        try:
            self._folder.check_lock()
        except (CheckpointError, ConfigError):
            return  # the status is another process's by now
        try:
            self._write_status(outcome, step)
        except CheckpointError as error:  # perhaps of the disk error that ended the run
            _LOG.warning("%s", error)
            self._folder.overwrite_status(outcome)

    def _write_status(self, status: str, step: int) -> None:
        self._folder.write_status(
            status=status,
            step=step,
            num_steps=self.num_steps,
            environment=self._environment,
            turnwise=__version__,
            **self._facts,
        )


def _kept_facts(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a resumed run keeps of its `run.json`: its initial weights, its starts."""
    kept = {name: before[name] for name in ("model", "tokenizer") if name in before}
    starts = [*before.get("earlier_starts", []), *filter(None, [before.get("provenance")])]
    return {**kept, "earlier_starts": starts[-_MAX_STARTS:]}
