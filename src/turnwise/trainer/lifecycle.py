"""The run around the training loop: its folder, resuming, saving, and its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch

from turnwise.assemblers import ASSEMBLERS
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, EngineStalled, MissingExtraError
from turnwise.runs.checkpoints import Checkpoint
from turnwise.runs.choose_folder import changed_code, choose_run_folder
from turnwise.runs.disk_errors import explained
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.trainer.assembly import RunComponents, assemble
from turnwise.trainer.async_rollout import AsyncRollout
from turnwise.trainer.checks import checked_callbacks, resume_mode
from turnwise.trainer.components import UserComponents
from turnwise.trainer.curriculum import Curriculum, check_curriculum, evaluation_tasks
from turnwise.trainer.recording import identity, record_run, recorded
from turnwise.trainer.records import Records, why_ended
from turnwise.trainer.reporter import Metrics, Reporter, RunInfo, choose_reporter
from turnwise.trainer.state import (
    checkpoint_settings,
    read_state,
    seed_generators,
    uses_gpu,
    write_state,
)
from turnwise.trainer.stopping import Interrupted, StopRequest, exit_now

DEFAULT_STEPS = 50
"""Steps between evaluations and checkpoints within a long epoch, where the settings say none."""
_ENDING_SECONDS = 30.0
_LOG = logging.getLogger("turnwise")


@dataclass(frozen=True)
class FitPlan:
    """When a call of `fit` ends, computed when it starts or resumes."""

    num_steps: int
    """The step after which it ends, counted over the whole run."""
    steps_per_epoch: int


@dataclass
class Epochs:
    """The finished epochs of a run, and the steps of the current one. Part of each checkpoint."""

    num_done: int = 0
    num_steps: int = 0
    """Finished steps of the current epoch."""
    starts: list[int] = field(default_factory=list)
    """The number of finished epochs when each call of `fit` began."""
    first_steps: list[int] = field(default_factory=list)
    """The number of finished steps when each call of `fit` began."""

    def plan(
        self,
        fit_number: int,
        num_epochs: int,
        steps_per_epoch: int,
        max_steps: int | None = None,
        *,
        step: int,
        is_waiting: bool,
    ) -> FitPlan:
        """Begin the call of `fit` with this number, or resume it if the run has begun it before.

        A new call begins a new epoch: an unfinished one counts as an epoch. `max_steps` replaces
        the number of epochs. `is_waiting` says that the evaluation of the last step is missing.
        """
        if fit_number >= len(self.starts):
            if self.num_steps:
                self.end_epoch()
            self.starts.append(self.num_done)
            self.first_steps.append(step)
        if fit_number + 1 < len(self.starts):  # a later call has begun: this one is over
            num_left = 0
        elif max_steps is not None:
            num_left = max(self.first_steps[fit_number] + max_steps - step, 0)
        else:
            num_left = max(self.starts[fit_number] + num_epochs - self.num_done, 0)
            num_left *= steps_per_epoch
            # An epoch that is already too long ends with its next step, or the missing evaluation.
            if num_left:
                num_left -= min(self.num_steps, steps_per_epoch - (not is_waiting))
        return FitPlan(step + num_left, steps_per_epoch)

    def end_epoch(self) -> None:
        """End the current epoch."""
        self.num_done += 1
        self.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        starts = list(map(int, state["starts"]))
        first_steps = list(map(int, state["first_steps"]))
        return cls(int(state["num_done"]), int(state["num_steps"]), starts, first_steps)


class OpenRun(NamedTuple):
    """What the training loop uses while its run folder is open."""

    records: Records
    stop: StopRequest
    plan: FitPlan


class RunLifecycle:
    """The state of a trainer between steps, and how a run folder keeps it."""

    def __init__(
        self,
        config: ConfigStore,
        given: UserComponents,
        callbacks: Sequence[Any],
        reporter: Reporter | Literal["auto"] | None,
        resume: Resume | bool,
    ) -> None:
        self.config = config
        self.metrics_history: list[Metrics] = []
        """The metrics of each step so far."""
        self.run_folder: Path | None = None
        """The folder of the run, once it has begun."""
        self.step = 0
        """Finished steps."""
        curriculum = given.curriculum
        check_curriculum(curriculum)
        has_rows = any(dataset.path is not None for _, dataset in config.datasets())
        if curriculum is not None and not has_rows and given.dataset is given.eval_dataset is None:
            # Without a task its environment may not even reset. Rows are recorded, for `eval`.
            given = dataclasses.replace(given, eval_dataset=evaluation_tasks(curriculum))
        self._given = given
        self._user = given.filled_from(config)
        self._name = self._user.environment_name if not given.mix else config.environment_name
        self._callbacks = checked_callbacks(callbacks)
        self._reporter, self._display = choose_reporter(reporter)
        self._resume = resume_mode(resume)
        self._components: RunComponents | None = None
        self._is_loaded = False
        """Whether the weights come from elsewhere: no run in the folder may replace them."""
        self._epochs = Epochs()
        self._num_fits = 0
        """Calls of `fit` so far, in this process."""
        self._num_broken_steps = 0
        """Consecutive steps that did not change the model, up to the last one."""
        self._num_imitated = 0
        """Finished steps of the warm start."""
        self._pending_metrics: Metrics | None = None
        """The metrics of a finished step whose evaluation is still missing."""
        self._success_reported: set[str] = set()
        """Environments of a mix ("" without one) whose episodes have reported success."""
        self._curriculum_lock = threading.Lock()
        """Held while a curriculum chooses tasks or observes results."""
        self._asynchronous: AsyncRollout | None = None
        self._restored_unplayed: Mapping[str, Any] | None = None
        """Groups of a checkpoint that had started and were not trained on."""
        self._stop_request: StopRequest | None = None
        """That of the run that is under way."""
        self._recorded: ConfigStore | None = None
        """The settings as the folder of the run has them."""

    @property
    def components(self) -> RunComponents:
        """The model, learner, engine and collector, built when they are first needed."""
        return self._assemble()

    def _assemble(self) -> RunComponents:
        if self._components is None:
            training = self.config.training
            num_steps = training.max_steps or training.num_epochs * self.steps_per_epoch
            assembler = ASSEMBLERS["ray"] if self.config.ray.use_ray else assemble
            self._components = assembler(self.config, self._user, num_steps)
        return self._components

    def cleanup(self) -> None:
        """Free the model and the engine. May be called twice."""
        if self._components is not None:
            self._components.close()
            self._components = None
            if uses_gpu():
                torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def stop(self) -> None:
        """End the run that is under way: it is saved, and `fit` returns. For callbacks.

        The run counts as finished. What is being played is discarded; an update is completed.
        """
        if self._stop_request is None:
            raise ConfigError("there is no run to stop: stop() is for callbacks, while fit() runs")
        self._stop_request.ends_run = True
        self._stop_request.request()

    def _call_back(self, event: str, value: Any) -> None:
        """Call the method of this name of all callbacks that have it."""
        for callback in self._callbacks:
            if (method := getattr(callback, event, None)) is not None:
                method(self, value)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, by the settings and the size of the dataset."""
        rows = self._user.train_rows
        return self.config.training.epoch_steps(None if rows is None else len(rows))

    def _is_evaluated(self, plan: FitPlan) -> bool:
        """Return whether an evaluation follows the step that was just counted."""
        every, num_steps = self.config.training.eval_steps, self._epochs.num_steps
        if self.step >= plan.num_steps:
            return True
        if every is not None:
            return self.step % every == 0
        return num_steps >= plan.steps_per_epoch or num_steps % DEFAULT_STEPS == 0

    def _is_saved(self, records: Records, plan: FitPlan) -> bool:
        """Return whether a checkpoint follows the step that was just counted.

        The clock decides when one is written, never what is in it. The last step is saved when the
        run ends.
        """
        settings, epochs = self.config.checkpoint, self._epochs
        if settings.save_steps is not None:
            return self.step % settings.save_steps == 0
        every = settings.save_interval
        if epochs.num_steps >= plan.steps_per_epoch:
            is_due = (epochs.num_done + 1) % (every or 1) == 0
        else:
            is_due = every is None and epochs.num_steps % DEFAULT_STEPS == 0
        is_overdue = every is None and records.is_save_overdue
        # Training metrics, which `best_metric` may name, would be best in many steps.
        is_best = self._is_evaluated(plan) and records.has_best_evaluation
        return is_due or is_overdue or is_best

    def _curricula(self) -> Iterator[tuple[str, Curriculum]]:
        """Yield each curriculum with the prefix of the metrics that it observes."""
        if self._user.curriculum is not None:
            yield "", self._user.curriculum
        for part in self._user.mix:
            if part.given.curriculum is not None:
                yield f"{part.name}/", part.given.curriculum

    @contextlib.contextmanager
    def _run(self, num_epochs: int | None, steps_per_epoch: int | None) -> Iterator[OpenRun]:
        """Open the run folder, resume the run in it, and record how it ends."""
        stop = self._stop_request = StopRequest(self._reporter.say)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_stop_request", None)
            stack.enter_context(self._display)
            self._assemble()  # before there is a folder: it raises for what cannot be used
            hashes = identity(self._user, self.config)
            record = record_run(self.config, self._given, self._user, hashes)
            with explained(Path(self.config.checkpoint.output_dir).expanduser() / "run"):
                folder, resumes = self._folder(record.config, hashes)
                is_new = not folder.exists
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.held())
                if is_new:  # after the lock: another process may just begin a run in it
                    stack.push(functools.partial(self._remove_if_unused, folder))
                stack.enter_context(folder.logged(self.config.logging.level))
            stall_timeout = self.config.inference.stall_timeout
            stack.enter_context(stop.listening(stall_timeout, folder.path.absolute()))
            is_old = resumes or self.run_folder is not None
            if resumes:  # under the name with which the run began
                self._name = folder.status.get("environment", self._name)
            self._recorded, facts = record.for_folder(folder, resumes=is_old)
            records = Records(
                folder,
                self._recorded,
                self._name,
                self._reporter,
                facts,
                record.files,
                sinks=self.config.logging.sinks,
                on_save=lambda path: self._call_back("on_save", path),
            )
            records.begin(resumes=is_old)
            if self.components.watch is not None:
                self.components.watch(functools.partial(self._end_process, records))
            if resumes:
                self._resume_run(records)
            elif self.run_folder is not None:
                records.rewind(self.step)
            elif not self._is_loaded:
                seed_generators(self.config.training.seed)
            self.run_folder = folder.path
            plan = self._epochs.plan(
                self._num_fits,
                num_epochs or self.config.training.num_epochs,
                steps_per_epoch or self.steps_per_epoch,
                None if num_epochs else self.config.training.max_steps,
                step=self.step,
                is_waiting=self._pending_metrics is not None,
            )
            self._num_fits += 1
            records.add_facts({"evaluation": self._user.evaluates_on})
            records.num_steps = plan.num_steps
            self._reporter.begin(
                RunInfo(
                    folder.path,
                    self._name,
                    self.config.model.local_path or self.config.model.model_name,
                    plan.num_steps,
                    self.step,
                    tuple(self.metrics_history),
                    self._user.evaluates_on,
                )
            )
            try:
                yield OpenRun(records, stop, plan)
            except Interrupted:
                pass
            except (KeyboardInterrupt, SystemExit):
                records.end("interrupted", self.step, None)
                raise
            except EngineStalled as error:  # between two steps: the learner is consistent
                records.end(f"stopped: {error}", self.step, self._write_state)
                raise
            except BaseException as error:
                records.end(f"stopped: {why_ended(error)}", self.step, None)
                raise
            is_finished = self._is_over(plan) or stop.ends_run
            outcome = "finished" if is_finished else "interrupted"
            records.end(outcome, self.step, self._write_state)
            stop.raise_signal()

    def _end_process(self, records: Records, reason: str) -> None:
        """End a run whose main thread may wait for ever, where no exception can reach it."""
        text = f"{reason}. The same command resumes the run from its newest checkpoint"
        _LOG.error("%s.", text)
        ending = threading.Thread(
            target=records.end, args=(f"stopped: {text}", self.step, None), daemon=True
        )
        ending.start()
        ending.join(_ENDING_SECONDS)  # a tracker may wait for its server
        exit_now(1)

    def _remove_if_unused(self, folder: RunFolder, kind: Any, *_: object) -> None:
        """Remove a new folder if a mistake of the user ended the run before its first step."""
        is_mistake = kind is not None and issubclass(kind, ConfigError | MissingExtraError)
        if is_mistake and self.step == 0 and not folder.has_checkpoints:
            shutil.rmtree(folder.path, ignore_errors=True)
            self.run_folder = None

    def _is_over(self, plan: FitPlan) -> bool:
        return self.step >= plan.num_steps and self._pending_metrics is None

    def _folder(self, config: ConfigStore, hashes: Mapping[str, str]) -> tuple[RunFolder, bool]:
        """Return the folder of the run, and whether a run in it is resumed."""
        if self.run_folder is not None:
            return RunFolder(self.run_folder), False
        # Weights that were loaded from elsewhere must not be replaced by those of another run.
        resume: Resume = "never" if self._is_loaded else self._resume
        folder, resumes = choose_run_folder(config, self._name, resume, identity=hashes)
        changed = changed_code(folder, hashes) if resumes else []
        if changed:
            self._reporter.say(
                f"{' and '.join(changed)} changed since this run began; the new code is used"
            )
        return folder, resumes

    def _resume_run(self, records: Records) -> None:
        """Resume the run in the folder from its newest checkpoint."""
        checkpoint = records.checkpoints.newest()
        if checkpoint is None:
            _, num_lost = records.rewind(0)
            if num_lost:
                self._reporter.say(
                    "beginning again at step 1, since the run saved no checkpoint; steps that are "
                    f"played again: {num_lost}"
                )
            records.note_changes(0, None)
            seed_generators(self.config.training.seed)
            return
        self._restore(checkpoint)
        changes = records.note_changes(self.step, checkpoint_settings(checkpoint))
        if any(change.name == "training.kl_coef" for change in changes):
            self.components.advantages.kl_controller.value = self.config.training.kl_coef
        self.metrics_history, num_lost = records.rewind(self.step)
        records.report_missing(
            self.metrics_history, self.step - (self._pending_metrics is not None)
        )
        records.mark_if_best(checkpoint)  # the run may have been killed before it did so
        lost = f"; steps that were not saved and are played again: {num_lost}" if num_lost else ""
        self._reporter.say(f"resuming from step {self.step} ({checkpoint.path}){lost}")

    def _write_state(self, folder: Path) -> None:
        progress: dict[str, Any] = {
            "step": self.step,
            "epochs": self._epochs.state_dict(),
            "weight_version": self.components.engine.weight_version,
            "kl_controller": self.components.advantages.kl_controller.state_dict(),
            "num_broken_steps": self._num_broken_steps,
            "num_imitated": self._num_imitated,
            "unwritten": self._pending_metrics,
            "success_reported": sorted(self._success_reported),
        }
        if (unplayed := self._unplayed_state()) is not None:
            progress["unplayed"] = unplayed
        for prefix, curriculum in self._curricula():
            progress[f"{prefix}curriculum"] = curriculum.state_dict()
        config = self._recorded or recorded(self.config, self._given)
        write_state(folder, self.components.learner, config, progress)

    def _unplayed_state(self) -> Mapping[str, Any] | None:
        """Return which groups an asynchronous run has still to play; None for a synchronous one."""
        if self._asynchronous is not None:
            return self._asynchronous.state_dict()
        return self._restored_unplayed

    def _restore(self, checkpoint: Checkpoint) -> None:
        components = self.components
        progress = read_state(checkpoint, components.learner)
        components.publish_weights()
        components.engine.weight_version = int(progress["weight_version"])
        self.step = int(progress["step"])
        components.advantages.kl_controller.load_state_dict(progress["kl_controller"])
        self._num_broken_steps = int(progress["num_broken_steps"])
        self._num_imitated = int(progress["num_imitated"])
        self._pending_metrics = progress["unwritten"]
        self._success_reported = set(progress.get("success_reported", ()))
        self._asynchronous, self._restored_unplayed = None, progress.get("unplayed")
        if checkpoint_settings(checkpoint).training.eval_fraction is None:
            before, self._user = self._user, self._user.without_held_out()
            if before.evaluates_on != self._user.evaluates_on:
                self._reporter.say(
                    "this run began with all rows of its dataset as training rows, and continues "
                    "so: its evaluations are on training rows."
                )
        self._epochs = Epochs.from_state_dict(progress["epochs"])
        for prefix, curriculum in self._curricula():
            if f"{prefix}curriculum" in progress:
                curriculum.load_state_dict(progress[f"{prefix}curriculum"])
