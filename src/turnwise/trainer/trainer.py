"""`RayPPOTrainer`: episodes, advantages, update, again; and everything that a run leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode import Collection, EpisodeLimits
from turnwise.episode.actions import ParserChoice
from turnwise.errors import ConfigError, EngineStalled, TrainingStopped, error_message
from turnwise.reward import RewardFn
from turnwise.runs.checkpoints import Checkpoint, open_checkpoint, save_checkpoint_to
from turnwise.runs.disk_errors import explained
from turnwise.runs.run_folder import Resume, RunFolder, changed_code, choose_run_folder
from turnwise.runs.sinks import check_sinks
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.assembly import Machinery, UserParts, assemble
from turnwise.trainer.batches import kept_columns, make_batch, trained_rows
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.evaluation import GREEDY, evaluate, held_out_tasks
from turnwise.trainer.failures import FailureReport
from turnwise.trainer.figures import episode_figures, staleness
from turnwise.trainer.gap import GapLimit
from turnwise.trainer.recording import identity, recorded
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import LogReporter, Metrics, Reporter, RunInfo
from turnwise.trainer.rollout import Rollout, Rows
from turnwise.trainer.state import (
    checkpoint_settings,
    read_state,
    seed_generators,
    undone_if_interrupted,
    write_state,
)
from turnwise.trainer.stopping import Interrupted, StopRequest
from turnwise.trainer.stopwatch import Stopwatch, uses_gpu
from turnwise.trainer.warm_start import imitation_batches
from turnwise.user_code import refuse_during_import

_MOST_BROKEN_STEPS = 5


@dataclass(frozen=True)
class PlayedStep:
    """The episodes of a step, before anything is learned from them."""

    played: Collection
    figures: Metrics
    baselines: Mapping[int, float] | None = None
    """The reward of the greedy episode of each group, for estimators that ask for it."""


class RayPPOTrainer:
    """Trains a language model in an environment.

    `environment` is a class, a factory, an instance or a name; `reward_fn` scores whole episodes
    (none: the sum of the step rewards); `dataset` gives each episode a task. `tools` are what the
    agent can call. In one process by default.

    A run that was interrupted goes on when it is started again with the same settings.
    """

    def __init__(
        self,
        config: ConfigStore | None = None,
        environment: EnvironmentSource | None = None,
        reward_fn: RewardFn | None = None,
        dataset: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tools: ToolRegistry | Iterable[Tool | Callable[..., Any]] | None = None,
        parser: ParserChoice | None = None,
        system_prompt: str | None = None,
        tokenizer: Any = None,
        model: Any = None,
        limits: EpisodeLimits | None = None,
        curriculum: Curriculum | None = None,
        reporter: Reporter | None = None,
        resume: Resume | bool = "auto",
    ) -> None:
        self.config = (config or ConfigStore()).validate()
        check_sinks(self.config.logging.sinks)
        self.metrics_history: list[Metrics] = []
        """The metrics of each step so far."""
        self.run_folder: Path | None = None
        """Where the run is kept, once it has begun."""
        self.step = 0
        """Steps that are done."""
        self._given = UserParts(
            environment,
            reward_fn,
            dataset if dataset is not None else train_dataset,
            eval_dataset,
            tools if tools is None or isinstance(tools, ToolRegistry) else ToolRegistry(tools),
            parser,
            system_prompt,
            tokenizer,
            model,
            limits,
        )
        self._parts = self._given.filled_from(self.config)
        self._name = self._parts.environment_name
        self._rows: Rows | None = self._parts.dataset
        self._curriculum = curriculum
        self._reporter = reporter or LogReporter()
        if isinstance(resume, bool):
            resume = "always" if resume else "never"
        self._resume: Resume = resume
        self._failures = FailureReport(self._reporter.say)
        self._machinery: Machinery | None = None
        self._eval_rows: Rows | None = self._parts.eval_dataset or self._rows
        self._is_loaded = False
        self._num_broken_steps = 0
        self._why_stop: str | None = None
        """Why the run ends as soon as this step is written down."""
        self._num_imitated = 0
        """Steps of the warm start that are done."""
        self._unwritten: Metrics | None = None
        """The metrics of a step that waits for its evaluation."""
        self._by_hand: PlayedStep | None = None
        """What `rollout` played last."""

    @property
    def machinery(self) -> Machinery:
        """Model, learner, engine and episodes; built when they are first needed."""
        if self._machinery is None:
            self._machinery = assemble(self.config, self._parts, self._planned_steps())
        return self._machinery

    @functools.cached_property
    def _recorded(self) -> ConfigStore:
        """The settings with everything in them that Python gave, as the run folder keeps them.

        Made anew by each `fit`, since settings may change between two of them.
        """
        return recorded(self.config, self._given)

    @functools.cached_property
    def _identity(self) -> dict[str, str]:
        """What environment, reward, tools and dataset do, as hashes."""
        return identity(self._parts, self.config)

    def _steps_per_epoch(self) -> int:
        training = self.config.training
        if self._rows is None:
            return training.steps_per_epoch
        return max(1, -(-len(self._rows) // training.batch_size))

    def _planned_steps(self) -> int:
        return self.config.training.num_epochs * self._steps_per_epoch()

    # ---- the loop ----

    def fit(
        self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None
    ) -> list[Metrics]:
        """Train; the metrics of every step. Called again, it trains for as long once more.

        Without numbers they are those of the settings; an epoch is one pass over the dataset, or
        `training.steps_per_epoch` steps where there is none.
        """
        refuse_during_import("starts training")
        per_epoch = num_iters_per_epoch or self._steps_per_epoch()
        num_steps = self.step + (num_epochs or self.config.training.num_epochs) * per_epoch
        with (
            self._run(num_steps) as (records, stop),
            self._rollout(num_steps, per_epoch) as rollout,
        ):
            stop.can_save = True
            learner = self.machinery.learner
            records.keep_tokenizer(self.machinery.tokenizer)
            learner.options = dataclasses.replace(learner.options, total_steps=num_steps)
            self._warm_start(rollout, records, stop)
            while not stop.is_wanted and (self.step < num_steps or self._unwritten):
                if self._unwritten is None:
                    clock = Stopwatch()
                    metrics, played, columns = self._train_step(rollout, stop, clock)
                    self.step += 1
                    records.keep_episodes(self.step, played, columns, clock)
                    self._unwritten = {
                        "step": self.step,
                        "epoch": -(-self.step // per_epoch),
                        **_finite(metrics),
                    }
                ends_epoch = self.step % per_epoch == 0
                if (ends_epoch or self.step == num_steps) and self._why_stop is None:
                    self._unwritten |= self._evaluate_epoch(records, stop)
                metrics, self._unwritten = self._unwritten, None
                self.metrics_history.append(metrics)
                records.keep(metrics)
                self._stop_if_hopeless()
                epoch = self.step // per_epoch
                if ends_epoch and epoch % self.config.checkpoint.save_interval == 0:
                    records.save(self.step, self._write_state)
        return self.metrics_history

    def _rollout(self, num_steps: int, per_epoch: int | None = None) -> Rollout:
        parts = self.machinery
        save_interval = self.config.checkpoint.save_interval
        return parts.rollout(
            parts.collector,
            self.config,
            self._rows,
            self._curriculum,
            num_steps=num_steps,
            save_every=None if per_epoch is None else per_epoch * save_interval,
        )

    def _train_step(
        self, rollout: Rollout, stop: StopRequest, clock: Stopwatch
    ) -> tuple[Metrics, Collection, Mapping[str, torch.Tensor]]:
        """Play, score, update, publish: one step of reinforcement learning."""
        with clock.timing("play"), undone_if_interrupted():
            step = self._play_step(rollout, stop)
        return self._learn(step, clock)

    def _play_step(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        played = rollout.play(self.step, stop, self._episode_progress)
        nothing_learned = self.step == self._num_broken_steps
        self._why_stop = self._failures.look(played, is_first_step=nothing_learned)
        needs_baselines = self.machinery.advantages.needs_baselines and self._why_stop is None
        baselines = rollout.baselines(stop) if needs_baselines else None
        figures = episode_figures(played)
        if rollout.zero_variance is not None:
            figures["zero_variance"] = rollout.zero_variance
            figures["num_resampled"] = rollout.num_resampled
        return PlayedStep(played, figures, baselines)

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Collection, Mapping[str, torch.Tensor]]:
        parts, played, figures = self.machinery, step.played, dict(step.figures)
        learner = parts.learner
        figures |= staleness(played, parts.engine.weight_version)
        rows = trained_rows(played)
        columns: Mapping[str, torch.Tensor] = {}
        if rows:
            batch = make_batch(rows)
            with clock.timing("log_probs"):
                figures |= parts.advantages.fill(batch, rows, step.baselines)
            with clock.timing("update"):
                figures |= learner.update(batch)
                self._check_gap(figures)
                parts.publish_weights()
            every = [*played, *played.dropped]
            columns = kept_columns(every, rows, batch, learner.seen_log_probs)
        self._watch_for_broken_steps(figures)
        if self._curriculum is not None and "success" in figures:
            self._curriculum.observe(figures["success"], figures["reward"])
        return {**figures, **clock.figures(played)}, played, columns

    def _check_gap(self, figures: Metrics) -> None:
        """Episodes of another model than the learner's teach it nothing of its own."""
        parts, setting = self.machinery, self.config.training.max_log_prob_gap
        limit = GapLimit.of(setting, parts.advantages.sampler_is_exact)
        if limit is not None:
            limit.check(figures, parts.collector.setup.sampling)

    def _watch_for_broken_steps(self, figures: Metrics) -> None:
        """A run of which nothing is learned any more should end, and say why."""
        is_broken = not figures.get("num_steps")
        self._num_broken_steps = self._num_broken_steps + 1 if is_broken else 0
        if self._num_broken_steps < _MOST_BROKEN_STEPS or self._why_stop is not None:
            return
        if figures.get("num_skipped_steps"):
            why = (
                "the loss or its gradient was not a finite number. Lower training.learning_rate, "
                "or look for extreme rewards."
            )
        else:
            why = "no episode could be learned from. Look at the errors in log.txt."
        self._why_stop = f"{_MOST_BROKEN_STEPS} steps in a row changed nothing: {why}"

    def _stop_if_hopeless(self) -> None:
        """End the run; its last episodes and metrics are kept, for whoever looks for the cause."""
        why, self._why_stop = self._why_stop, None
        if why is not None:
            raise TrainingStopped(why)

    # ---- a step by hand ----

    def rollout(self) -> Collection:
        """Play the episodes of the next step; they are scored, and not yet learned from."""
        if self._machinery is None and not self._is_loaded:
            seed_generators(self.config.training.seed)
        with self._rollout(self.step + 1) as rollout:
            self._by_hand = self._play_step(rollout, StopRequest(self._reporter.say))
        self._stop_if_hopeless()
        return self._by_hand.played

    def train_step(self, episodes: Collection | None = None) -> Metrics:
        """Learn once from what `rollout` gave, or from episodes that it plays itself; metrics.

        `fit` is a loop of such steps with a run folder around it. By hand nothing is written:
        `save_checkpoint(path)` saves.
        """
        clock = Stopwatch()
        with clock.timing("play"):
            if episodes is None:
                episodes = self.rollout()
        step = self._by_hand
        if step is None or step.played is not episodes:
            if self.machinery.advantages.needs_baselines:
                raise ConfigError(
                    f"{self.config.training.adv_estimator} needs the greedy episodes that "
                    "rollout() plays beside the others. Pass what the last rollout() gave."
                )
            step = PlayedStep(episodes, episode_figures(episodes))
        figures, _, _ = self._learn(step, clock)
        self._stop_if_hopeless()
        # What was learned here is not to be replaced by a run that lies in the folder.
        self._by_hand, self._is_loaded = None, True
        self.step += 1
        epoch = -(-self.step // self._steps_per_epoch())
        metrics = {"step": self.step, "epoch": epoch, **_finite(figures)}
        self.metrics_history.append(metrics)
        return metrics

    # ---- before and between the steps ----

    def _warm_start(self, rollout: Rollout, records: Records, stop: StopRequest) -> None:
        """Learn to play as the expert, or chance, or a file does."""
        training, parts = self.config.training, self.machinery
        num_steps = training.warm_start_steps
        if training.warm_start is None or self.step or self._num_imitated >= num_steps:
            return
        batches = imitation_batches(
            training.warm_start,
            setup=parts.collector.setup,
            factory=parts.factory,
            tasks=rollout.imitation_tasks,
            steps=range(self._num_imitated, num_steps),
            batch_size=training.batch_size,
            seed=training.seed,
            stop=stop,
        )
        for batch in batches:
            figures = parts.learner.imitate(batch, training.warm_start_learning_rate)
            self._num_imitated += 1
            self._reporter.progress("warm start", self._num_imitated, num_steps)
            if stop.is_wanted and self._num_imitated < num_steps:
                raise Interrupted
        if "policy_loss" not in figures:
            raise TrainingStopped(
                "the loss of the warm start is not a finite number. Lower "
                "training.warm_start_learning_rate."
            )
        parts.learner.restart()
        parts.publish_weights()
        self._reporter.say(
            f"warm start on {training.warm_start}: {num_steps} steps, "
            f"loss {figures['policy_loss']:.3f}"
        )
        records.save(0, self._write_state)

    def _evaluate_epoch(self, records: Records, stop: StopRequest) -> Metrics:
        number = self.config.training.eval_episodes
        if not number:
            return {}
        started = time.perf_counter()
        figures: Metrics = {}
        with undone_if_interrupted():
            for name, is_greedy in (("greedy", True), ("sampled", False)):
                clock = Stopwatch()
                with clock.timing("play"):
                    found, played = self._evaluate(number, is_greedy, stop)
                figures |= {f"eval/{name}/{key}": value for key, value in found.items()}
                records.keep_evaluation(self.step, played, name, clock)
        figures["time/evaluate"] = time.perf_counter() - started
        return figures

    def _evaluate(
        self, num_episodes: int, is_greedy: bool, stop: StopRequest
    ) -> tuple[Metrics, Collection]:
        collector = self.machinery.collector
        sampling = GREEDY if is_greedy else collector.setup.sampling
        tasks = held_out_tasks(num_episodes, self.config.training.seed, self._eval_rows)
        return evaluate(
            collector,
            tasks,
            sampling,
            stop,
            lambda done, total: self._reporter.progress("evaluation", done, total),
        )

    def evaluate(self, num_episodes: int | None = None, greedy: bool = True) -> Metrics:
        """Play on held-out seeds with the model as it is now: reward, success and so on."""
        number = num_episodes or self.config.training.eval_episodes or 32
        return self._evaluate(number, greedy, StopRequest(self._reporter.say))[0]

    def _episode_progress(self, done: int, total: int) -> None:
        self._reporter.progress("episodes", done, total)

    # ---- the run around the loop ----

    @contextlib.contextmanager
    def _run(self, num_steps: int) -> Iterator[tuple[Records, StopRequest]]:
        """Open the run folder, resume what is in it, and leave it in order whatever happens."""
        self.__dict__.pop("_recorded", None)
        stop = StopRequest(self._reporter.say)
        with contextlib.ExitStack() as stack:
            with explained(Path(self.config.checkpoint.output_dir).expanduser() / "run"):
                folder, resumes = self._folder()
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.held())
                stack.enter_context(folder.logged(self.config.logging.level))
            stack.enter_context(stop.listening())
            records = Records(folder, self._recorded, self._name, self._reporter, self._identity)
            records.begin(num_steps)
            if resumes:
                self._take_up(records)
            elif self.run_folder is not None:
                records.rewind(self.step)
            elif not self._is_loaded:
                seed_generators(self.config.training.seed)
            self.run_folder = folder.path
            self._reporter.begin(
                RunInfo(
                    folder.path,
                    self._name,
                    self.config.model.local_path or self.config.model.model_name,
                    num_steps,
                    self.step,
                    tuple(self.metrics_history),
                )
            )
            try:
                yield records, stop
            except Interrupted:
                pass
            except (KeyboardInterrupt, SystemExit):
                records.end("interrupted", self.step, None)
                raise
            except EngineStalled as error:  # between two steps: the learner is whole
                records.end(f"stopped: {error}", self.step, self._write_state)
                raise
            except BaseException as error:
                records.end(f"stopped: {error_message(error)}", self.step, None)
                raise
            is_over = self.step >= num_steps and self._unwritten is None
            outcome = "finished" if is_over else "interrupted"
            records.end(outcome, self.step, self._write_state)
            stop.leave()

    def _folder(self) -> tuple[RunFolder, bool]:
        if self.run_folder is not None:
            return RunFolder(self.run_folder), False
        # Weights that were loaded from elsewhere are not to be replaced by those of another run.
        resume: Resume = "never" if self._is_loaded else self._resume
        folder, resumes = choose_run_folder(
            self._recorded, self._name, resume, identity=self._identity
        )
        changed = changed_code(folder, self._identity) if resumes else []
        if changed:
            self._reporter.say(
                f"{' and '.join(changed)} changed since this run began; it continues all the same"
            )
        return folder, resumes

    def _take_up(self, records: Records) -> None:
        """Go on where the run in the folder stopped."""
        checkpoint = records.checkpoints.newest()
        if checkpoint is None:
            records.rewind(0)
            records.note_changes(0, None)
            seed_generators(self.config.training.seed)
            return
        self._take(checkpoint)
        changes = records.note_changes(self.step, checkpoint_settings(checkpoint))
        if any(change.name == "training.kl_coef" for change in changes):
            self.machinery.advantages.kl_controller.value = self.config.training.kl_coef
        self.metrics_history = records.rewind(self.step)
        records.report_missing(self.metrics_history, self.step - (self._unwritten is not None))
        records.mark_if_best(checkpoint)  # it may have been killed just before
        self._reporter.say(f"resuming from step {self.step} ({checkpoint.path})")

    # ---- checkpoints ----

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Save everything that resuming needs; to the run's own folder if no path is said."""
        if path is None:
            if self.run_folder is None:
                raise ConfigError("there is no run yet: say where to save, save_checkpoint(path)")
            path = RunFolder(self.run_folder).checkpoints / f"step-{self.step:08d}"
        meta = {"environment": self._name}
        return save_checkpoint_to(Path(path), self._write_state, meta, self.step).path

    def load_checkpoint(self, path: str | Path) -> None:
        """Take the weights, the optimiser and all the rest from a checkpoint.

        Training goes on from its step; what this run has of later ones is forgotten.
        """
        self._take(open_checkpoint(Path(path)))
        self._is_loaded = True
        self.metrics_history = [m for m in self.metrics_history if m["step"] <= self.step]

    def _write_state(self, folder: Path) -> None:
        progress: dict[str, Any] = {
            "step": self.step,
            "weight_version": self.machinery.engine.weight_version,
            "kl_controller": self.machinery.advantages.kl_controller.state_dict(),
            "num_broken_steps": self._num_broken_steps,
            "num_imitated": self._num_imitated,
            "unwritten": self._unwritten,
        }
        if self._curriculum is not None:
            progress["curriculum"] = self._curriculum.state_dict()
        write_state(folder, self.machinery.learner, self._recorded, progress)

    def _take(self, checkpoint: Checkpoint) -> None:
        parts = self.machinery
        progress = read_state(checkpoint, parts.learner)
        parts.publish_weights()
        parts.engine.weight_version = int(progress["weight_version"])
        self.step = int(progress["step"])
        parts.advantages.kl_controller.load_state_dict(progress["kl_controller"])
        self._num_broken_steps = int(progress["num_broken_steps"])
        self._num_imitated = int(progress["num_imitated"])
        self._unwritten = progress["unwritten"]
        if self._curriculum is not None and "curriculum" in progress:
            self._curriculum.load_state_dict(progress["curriculum"])

    def cleanup(self) -> None:
        """Free the model and the engine. May be called twice."""
        if self._machinery is not None:
            self._machinery.close()
            self._machinery = None
            if uses_gpu():
                torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
