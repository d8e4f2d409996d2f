"""`Trainer`: the training loop, steps by hand, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from turnwise.algo.choose import EstimatorChoice, LossChoice
from turnwise.assemblers import ASSEMBLERS
from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode import Collection, EpisodeLimits
from turnwise.episode.options import ParserChoice
from turnwise.errors import ConfigError, EngineStalled, MissingExtraError, TrainingStopped
from turnwise.learner.base import BaseLearner
from turnwise.reward import RewardFn
from turnwise.runs.checkpoints import Checkpoint, open_checkpoint, save_checkpoint_to
from turnwise.runs.choose_folder import choose_run_folder
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.runs.sinks import check_sinks
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.assembly import assemble
from turnwise.trainer.async_rollout import AsyncRollout, Pacer
from turnwise.trainer.checks import check_players, checked_callbacks, resume_mode
from turnwise.trainer.components import (
    GivenEnvironment,
    UserComponents,
    as_registry,
    either,
    with_mix,
)
from turnwise.trainer.episode_metrics import (
    FailureReport,
    describe_failure,
    environments_with_success,
    evaluation_metrics,
    step_metrics,
    why_nothing_changes,
)
from turnwise.trainer.learning import PlayedStep, RunComponents, Stopwatch, learn_from
from turnwise.trainer.recording import record_run, recorded
from turnwise.trainer.records import Records, model_facts, why_ended
from turnwise.trainer.reporter import Metrics, Reporter, RunInfo, choose_reporter
from turnwise.trainer.rollout import GREEDY, Curriculum, Rollout, held_out_tasks, run_tasks
from turnwise.trainer.schedule import Progress
from turnwise.trainer.state import (
    checkpoint_settings,
    read_state,
    restore_generators_if_interrupted,
    seed_generators,
    uses_gpu,
    write_state,
)
from turnwise.trainer.stopping import Interrupted, StopRequest
from turnwise.trainer.warm_start import imitate
from turnwise.user_code import refuse_during_import
from turnwise.whole_files import explained

if TYPE_CHECKING:
    from turnwise.agents.expert import Expert
    from turnwise.agents.runner import AgentSource


class Trainer:
    """Trains a language model in an environment.

    `environment` is a class, a factory, an instance or a name; `environments` is a mix of them,
    each with a weight: `[(Maze, 2.0), ("guess-number", 1.0)]`. `reward_fn` scores whole episodes
    (by default their reward is the sum of the step rewards); `dataset` gives each episode a task.
    `tools` are the tools that the model can call.

    `agent` replaces the environment: an async or plain function of (task, llm) that owns its loop
    and calls the model over HTTP, or a command. Its reward is what it returns, or what `reward_fn`
    says of `trajectory.result`. `expert`, a function of (messages, tools), returns what the model
    should reply; `training.warm_start: expert` imitates it.

    `adv_estimator` and `policy_loss` replace those of the settings: a name, a function, or a record
    that declares what the function needs (`AdvantageEstimator`, `PolicyLoss`).

    A run that was interrupted resumes when it is started again with the same settings.

    `fit` shows its progress: live in a terminal, elsewhere as a line per step. `reporter=None`
    shows nothing; an object with the methods of `Reporter` replaces it.

    `callbacks` are objects with any of the methods of `turnwise.trainer.Callback`; they may `stop`
    the run.
    """

    def __init__(
        self,
        config: ConfigStore | Mapping[str, Any] | str | Path | None = None,
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
        adv_estimator: EstimatorChoice | None = None,
        policy_loss: LossChoice | None = None,
        environments: Iterable[GivenEnvironment] | None = None,
        agent: AgentSource | None = None,
        expert: Expert | str | None = None,
        curriculum: Curriculum | None = None,
        callbacks: Sequence[Any] = (),
        reporter: Reporter | Literal["auto"] | None = "auto",
        resume: Resume | bool = "auto",
    ) -> None:
        config = ConfigStore.of(config)
        check_sinks(config.logging.sinks, config.logging.wandb)
        given = UserComponents(
            environment=environment,
            reward_fn=reward_fn,
            dataset=either(dataset=dataset, train_dataset=train_dataset),
            eval_dataset=eval_dataset,
            tools=as_registry(tools),
            parser=parser,
            system_prompt=system_prompt,
            tokenizer=tokenizer,
            model=model,
            limits=limits,
            adv_estimator=adv_estimator,
            policy_loss=policy_loss,
            agent=agent,
            expert=expert,
            curriculum=curriculum,
        )
        config, given = with_mix(config, given, environments)
        self.config = config
        self.metrics_history: list[Metrics] = []
        """The metrics of each step so far."""
        self.run_folder: Path | None = None
        """The folder of the run, once it has begun."""
        self._given = given
        self._user = given.filled_from(config)
        self._name = self._user.environment_name if not given.mix else config.environment_name
        self._callbacks = checked_callbacks(callbacks)
        self._reporter = choose_reporter(reporter)
        self._resume = resume_mode(resume)
        self._failures = FailureReport(self._reporter.say)
        self._components: RunComponents | None = None
        self._by_hand: PlayedStep | None = None
        self._is_loaded = False
        """Whether the weights come from elsewhere: no run in the folder may replace them."""
        self._progress = Progress()
        self._num_fits = 0
        self._curriculum_lock = threading.Lock()
        """Held while a curriculum chooses tasks or observes results."""
        self._asynchronous: AsyncRollout | None = None
        self._restored_unplayed: Mapping[str, Any] | None = None
        """Groups of a checkpoint that had started and were not trained on."""
        self._stop_request: StopRequest | None = None
        self._recorded: ConfigStore | None = None
        """The settings as the folder of the run has them."""

    @property
    def step(self) -> int:
        """Finished steps."""
        return self._progress.step

    # ---- the loop ----

    def fit(
        self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None
    ) -> list[Metrics]:
        """Train; return the metrics of every step. A second call trains for as long once more.

        The numbers default to those of the settings; `num_epochs` given here counts instead of
        `training.max_steps`. Each call begins a new epoch. In a script that is started again, calls
        that had finished return at once, and the one that was interrupted is resumed.
        """
        refuse_during_import("starts training")
        self._refuse_in_fit("fit")
        per_epoch = num_iters_per_epoch or self.steps_per_epoch
        with (
            self._run(num_epochs, per_epoch) as (records, stop),
            self._rollout(records.num_steps) as rollout,
        ):
            if imitate(self.components, self.config, rollout, self._progress, self._reporter, stop):
                records.save(0, self._write_state)
            progress = self._progress
            if progress.pending_metrics is not None:  # the run was stopped in its evaluation
                self._complete_step(records, stop, per_epoch, is_evaluated=True)
            while not (stop.is_requested or self._is_over(records)):
                clock = Stopwatch()
                with clock.timing("play"), restore_generators_if_interrupted():
                    played = self._play(rollout, stop)
                metrics, columns = self._learn(played, clock)
                rollout.step_done()
                why_unchanged = why_nothing_changes(progress.num_broken_steps, metrics)
                progress.pending_metrics = progress.count_step(metrics)
                results = [*played.episodes, *played.episodes.dropped]
                records.keep_episodes(
                    self.step, results, clock, columns, baselines=played.baselines
                )
                is_evaluated = progress.is_evaluated(
                    self.config.training, last_step=records.num_steps, steps_per_epoch=per_epoch
                )
                self._complete_step(
                    records,
                    stop,
                    per_epoch,
                    is_evaluated=is_evaluated,
                    why_stop=played.why_stop or why_unchanged,
                )
        return self.metrics_history

    def _complete_step(
        self,
        records: Records,
        stop: StopRequest,
        per_epoch: int,
        *,
        is_evaluated: bool,
        why_stop: str | None = None,
    ) -> None:
        """Evaluate, record and save the step that the learner has just made."""
        progress = self._progress
        evaluated: Metrics = {}
        if is_evaluated and why_stop is None:
            evaluated = self._evaluate_step(records, stop)
        assert progress.pending_metrics is not None
        metrics = progress.pending_metrics | evaluated
        progress.pending_metrics = None
        self.metrics_history.append(metrics)
        records.keep(metrics)
        if why_stop is not None:  # the episodes and metrics that show the cause are kept
            raise TrainingStopped(why_stop)
        self._call_back("on_step", metrics)
        if evaluated:
            self._call_back("on_evaluation", evaluated)
        is_saved = progress.is_saved(
            self.config.checkpoint,
            steps_per_epoch=per_epoch,
            # Training metrics, which `best_metric` may name, would be best in many steps.
            is_best=is_evaluated and records.has_best_evaluation,
            is_overdue=records.is_save_overdue,
        )
        if progress.epoch_steps >= per_epoch:
            progress.end_epoch()
        if is_saved:
            records.save(self.step, self._write_state)

    @contextlib.contextmanager
    def _rollout(self, last_step: int | None = None) -> Iterator[Rollout]:
        """Open what chooses and plays the episodes of steps; by hand, without a last step."""
        training, collector = self.config.training, self.components.collector
        parts = self._user.parts(self.config)
        estimator = self.components.advantages.estimator
        unplayed = self._unplayed_state()
        if last_step is None or not (training.max_staleness or unplayed):
            yield Rollout(collector, self.config, parts, estimator)
            return
        pacer = Pacer(
            training.batch_size, training.max_staleness, version=self.step, num_updates=last_step
        )
        if unplayed is not None:
            pacer.load_state_dict(unplayed)
        rollout = AsyncRollout(
            collector, self.config, parts, estimator, pacer, self._curriculum_lock
        )
        self._asynchronous = rollout
        in_flight = self.components.updates_in_flight(self.config.inference.stale_kv)
        with in_flight, contextlib.closing(rollout):
            yield rollout

    def _play(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        on_episode = functools.partial(self._reporter.progress, "episodes")
        episodes = rollout.play(self.step, stop, on_episode)
        check_players(self.config, episodes)
        has_learned = self.step > self._progress.num_broken_steps
        why_stop = self._failures.check(episodes, is_first_step=not has_learned)
        baselines = rollout.baselines(stop) if why_stop is None else None
        metrics = step_metrics(episodes, self._success_reported(episodes)) | rollout.metrics()
        return PlayedStep(episodes, metrics, baselines, why_stop)

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Mapping[str, torch.Tensor]]:
        metrics, columns = learn_from(step, self.components, self.config, clock)
        is_broken = not metrics.get("num_steps")
        self._progress.num_broken_steps = self._progress.num_broken_steps + 1 if is_broken else 0
        for prefix, curriculum in self._user.curricula(self.config).items():
            if f"{prefix}reward" in metrics:
                with self._curriculum_lock:
                    success = metrics.get(f"{prefix}success", 0.0)
                    curriculum.observe(success, metrics[f"{prefix}reward"])
        return {**metrics, **clock.metrics(step.episodes)}, columns

    def _is_over(self, records: Records) -> bool:
        return self.step >= records.num_steps and self._progress.pending_metrics is None

    def _call_back(self, event: str, value: Any) -> None:
        for callback in self._callbacks:
            if (method := getattr(callback, event, None)) is not None:
                method(self, value)

    def _refuse_in_fit(self, method: str) -> None:
        if self._stop_request is not None:
            raise ConfigError(f"{method}() was called while fit() runs, expected before or after")

    def stop(self) -> None:
        """End the run that is under way: it is saved, and `fit` returns. For callbacks.

        The run counts as finished. What is being played is discarded; an update is completed.
        """
        if self._stop_request is None:
            raise ConfigError("there is no run to stop: stop() is for callbacks, while fit() runs")
        self._stop_request.ends_run = True
        self._stop_request.request()

    # ---- a step by hand ----

    def rollout(self) -> Collection:
        """Play the episodes of the next step and score them, without learning from them."""
        if self._components is None and not self._is_loaded:
            seed_generators(self.config.training.seed)
        with self._rollout() as rollout:
            self._by_hand = self._play(rollout, StopRequest(self._reporter.say))
        if self._by_hand.why_stop is not None:
            raise TrainingStopped(self._by_hand.why_stop)
        return self._by_hand.episodes

    def train_step(self, episodes: Collection | None = None) -> Metrics:
        """Learn once from the result of `rollout`, or from new episodes; return metrics.

        `fit` is a loop of such steps with a run folder. This writes nothing:
        `save_checkpoint(path)` saves.
        """
        clock = Stopwatch()
        with clock.timing("play"):
            episodes = self.rollout() if episodes is None else episodes
        step = self._by_hand
        if step is None or step.episodes is not episodes:
            step = PlayedStep(episodes, step_metrics(episodes, self._success_reported(episodes)))
        metrics, _ = self._learn(step, clock)
        if why_stop := why_nothing_changes(self._progress.num_broken_steps, metrics):
            raise TrainingStopped(why_stop)
        # A run in the folder must not replace what was learned here.
        self._by_hand, self._is_loaded = None, True
        metrics = self._progress.count_step(metrics)
        if self._progress.epoch_steps >= self.steps_per_epoch:
            self._progress.end_epoch()
        self.metrics_history.append(metrics)
        return metrics

    # ---- evaluation ----

    def evaluate(self, num_episodes: int | None = None, greedy: bool = True) -> Metrics:
        """Play on held-out seeds with the current model; return reward, success and so on.

        Each environment of a mix plays that many episodes; `maze/reward` is the reward of `maze`,
        `reward` the mean over the environments, each counted with its weight.
        """
        number = num_episodes or self.config.training.eval_episodes or 32
        metrics: Metrics = {}
        stop = StopRequest(self._reporter.say)
        _, by_prefix = self._evaluate(number, stop, is_greedy=greedy)
        for prefix, values in by_prefix.items():
            metrics |= {f"{prefix}{name}": value for name, value in values.items()}
        return metrics

    def _evaluate_step(self, records: Records, stop: StopRequest) -> Metrics:
        """Evaluate greedily and as sampled, if the settings enable it; keep the episodes."""
        number = self.config.training.eval_episodes
        if not number:
            return {}
        started = time.perf_counter()
        metrics: Metrics = {}
        with restore_generators_if_interrupted():
            for kind in ("greedy", "sampled"):
                clock = Stopwatch()
                with clock.timing("play"):
                    played, by_prefix = self._evaluate(number, stop, is_greedy=kind == "greedy")
                for prefix, values in by_prefix.items():
                    metrics |= {f"eval/{prefix}{kind}/{key}": x for key, x in values.items()}
                records.keep_episodes(self.step, list(played), clock, kind=f"eval-{kind}")
        metrics["time/evaluate"] = time.perf_counter() - started
        return metrics

    def _evaluate(
        self, num_episodes: int, stop: StopRequest, *, is_greedy: bool
    ) -> tuple[Collection, dict[str, Metrics]]:
        """Play held-out episodes of each environment; return metrics by prefix: `maze/`, or ''."""
        collector, seed = self.components.collector, self.config.training.seed
        tasks = [
            dataclasses.replace(task, group=number * num_episodes + task.group, part=part.name)
            for number, part in enumerate(self._user.parts(self.config))
            for task in held_out_tasks(num_episodes, seed, part.components.eval_rows)
        ]
        on_episode = functools.partial(self._reporter.progress, "evaluation")
        sampling = GREEDY if is_greedy else collector.setup.sampling
        played = run_tasks(collector.sampling_with(sampling), tasks, stop, on_episode)
        failed = [one for one in (*played, *played.dropped) if one.status.is_error]
        if failed and is_greedy:
            share = f"{len(failed)} of {len(tasks)} episodes of the evaluation"
            why = describe_failure(failed[0])
            self._reporter.say(f"error: {share} failed; the first one with: {why}")
        weights = {part.name: part.weight for part in self._user.mix}
        return played, evaluation_metrics(played, weights, self._success_reported(played))

    def _success_reported(self, played: Collection) -> list[str]:
        known = {*self._progress.success_reported, *environments_with_success(played)}
        self._progress.success_reported = sorted(known)
        return self._progress.success_reported

    # ---- the run and its folder ----

    @property
    def components(self) -> RunComponents:
        """The model, learner, engine and collector, built when they are first needed."""
        if self._components is None:
            training = self.config.training
            num_steps = training.max_steps or training.num_epochs * self.steps_per_epoch
            assembler = ASSEMBLERS["ray"] if self.config.ray.use_ray else assemble
            self._components = assembler(self.config, self._user, num_steps)
        return self._components

    def cleanup(self) -> None:
        """Free the model and the engine. May be called twice."""
        self._refuse_in_fit("cleanup")
        if self._components is not None:
            self._components.close()
            self._components = None
            if uses_gpu():
                torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, by the settings and the size of the dataset."""
        rows = self._user.train_rows
        return self.config.training.epoch_steps(None if rows is None else len(rows))

    @contextlib.contextmanager
    def _run(self, num_epochs: int | None, per_epoch: int) -> Iterator[tuple[Records, StopRequest]]:
        """Open the run folder, resume the run in it, and record how it ends."""
        config, stop = self.config, StopRequest(self._reporter.say)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_stop_request", None)
            stack.enter_context(self._reporter.displayed())
            _ = self.components  # built before there is a folder: this finds mistakes
            record = record_run(config, self._given, self._user)
            # Weights that were loaded from elsewhere must not be replaced by those of another run.
            resume: Resume = "never" if self._is_loaded else self._resume
            with explained(Path(config.checkpoint.output_dir).expanduser() / "run"):
                if self.run_folder is not None:
                    folder, resumes = RunFolder(self.run_folder), False
                else:
                    folder, resumes = choose_run_folder(
                        record.config, self._name, resume, identity=record.facts["identity"]
                    )
                is_new = not folder.exists
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.held())
                stack.enter_context(folder.logged(config.logging.level))
            timeout = config.inference.stall_timeout
            stack.enter_context(stop.listening(timeout, folder.path.absolute()))
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
                sinks=config.logging.sinks,
                on_save=functools.partial(self._call_back, "on_save"),
            )
            records.begin(record.files)
            record.files.clear()  # they are on the disk now
            self._resume_run(records, resumes=resumes)
            self.run_folder, self._stop_request = folder.path, stop
            try:
                self._begin_fit(records, num_epochs, per_epoch)
                stop.can_save = True
                yield records, stop
            except Interrupted:
                pass
            except (KeyboardInterrupt, SystemExit):
                records.end("interrupted", self.step, None)
                raise
            except BaseException as error:  # a cancellation too ends the run
                # An engine stalls between two steps: the learner is consistent.
                write = self._write_state if isinstance(error, EngineStalled) else None
                records.end(f"stopped: {why_ended(error)}", self.step, write)
                is_mistake = isinstance(error, ConfigError | MissingExtraError)
                if is_mistake and is_new and self.step == 0 and not folder.has_checkpoints:
                    shutil.rmtree(folder.path, ignore_errors=True)
                    self.run_folder = None
                raise
            is_finished = self._is_over(records) or stop.ends_run
            records.end("finished" if is_finished else "interrupted", self.step, self._write_state)
            stop.raise_signal()

    def _begin_fit(self, records: Records, num_epochs: int | None, per_epoch: int) -> None:
        """Compute the last step of this call of `fit`; announce and record it."""
        config, components = self.config, self.components
        max_steps = None if num_epochs else config.training.max_steps
        num_epochs = num_epochs or config.training.num_epochs
        num_steps = self._progress.begin_fit(self._num_fits, num_epochs, per_epoch, max_steps)
        self._num_fits += 1
        assert self.run_folder is not None
        model, history = config.model.local_path or config.model.model_name, [*self.metrics_history]
        evaluated_on = self._user.evaluates_on
        self._reporter.begin(
            RunInfo(self.run_folder, self._name, model, num_steps, self.step, history, evaluated_on)
        )
        if self.step >= num_steps:
            longer = "training.max_steps or training.num_epochs"
            self._reporter.say(
                f"step {self.step} of {num_steps} is done: to train on, raise {longer}"
            )
        is_start = self.step == 0 and not self._progress.num_imitated
        facts = {"evaluation": evaluated_on, **model_facts(components, config, is_start=is_start)}
        records.begin_fit(num_steps, components.tokenizer, facts)
        for policy in components.policies.values():
            options = policy.learner.options
            policy.learner.options = dataclasses.replace(options, total_steps=num_steps)

    # ---- checkpoints ----

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Save everything that resuming needs; to the run's own folder if no path is given."""
        if path is None:
            if self.run_folder is None:
                raise ConfigError("there is no run yet: say where to save, save_checkpoint(path)")
            path = RunFolder(self.run_folder).checkpoints / f"step-{self.step:08d}"
        return save_checkpoint_to(Path(path), self._write_state, self.step).path

    def load_checkpoint(self, path: str | Path) -> None:
        """Restore weights, optimiser and everything else from a checkpoint.

        Training resumes from its step; metrics of later steps are dropped.
        """
        self._refuse_in_fit("load_checkpoint")
        self._restore(open_checkpoint(Path(path)))
        self._num_fits = len(self._progress.fit_steps)  # those calls of fit were the checkpoint's
        self._is_loaded = True
        self.metrics_history = [m for m in self.metrics_history if m["step"] <= self.step]

    def _resume_run(self, records: Records, *, resumes: bool) -> None:
        """Resume the run in the folder from its newest checkpoint, or go on from what is loaded."""
        if not resumes:
            if self.run_folder is not None:
                records.rewind(self.step)
            elif not self._is_loaded:
                seed_generators(self.config.training.seed)
            return
        checkpoint = records.checkpoints.newest()
        if checkpoint is None:
            _, num_lost = records.rewind(0)
            if num_lost:
                why = "beginning again at step 1, since the run saved no checkpoint"
                self._reporter.say(f"{why}; steps that are played again: {num_lost}")
            records.note_changes(0, None)
            seed_generators(self.config.training.seed)
            return
        self._restore(checkpoint)
        changes = records.note_changes(self.step, checkpoint_settings(checkpoint))
        if any(change.name == "training.kl_coef" for change in changes):
            for policy in self.components.policies.values():
                policy.advantages.kl_controller.value = self.config.training.kl_coef
        self.metrics_history, num_lost = records.rewind(self.step)
        records.mark_if_best(checkpoint)  # the run may have been killed before it did so
        lost = f"; steps that were not saved and are played again: {num_lost}" if num_lost else ""
        self._reporter.say(f"resuming from step {self.step} ({checkpoint.path}){lost}")

    def _learners(self) -> dict[str, BaseLearner]:
        return {player: policy.learner for player, policy in self.components.policies.items()}

    def _write_state(self, folder: Path) -> None:
        progress: dict[str, Any] = dataclasses.asdict(self._progress)
        if (unplayed := self._unplayed_state()) is not None:
            progress["unplayed"] = unplayed
        for prefix, curriculum in self._user.curricula(self.config).items():
            progress[f"{prefix}curriculum"] = curriculum.state_dict()
        for player, policy in self.components.policies.items():
            progress[f"policy/{player}"] = {
                "weight_version": policy.engine.weight_version,
                "kl_controller": policy.advantages.kl_controller.state_dict(),
            }
        config = self._recorded or recorded(self.config, self._given)
        write_state(folder, self._learners(), config, progress)

    def _unplayed_state(self) -> Mapping[str, Any] | None:
        """Return which groups an asynchronous run has still to play; None for a synchronous one."""
        if self._asynchronous is not None:
            return self._asynchronous.state_dict()
        return self._restored_unplayed

    def _restore(self, checkpoint: Checkpoint) -> None:
        progress = read_state(checkpoint, self._learners())
        for player, policy in self.components.policies.items():
            saved = progress[f"policy/{player}"]
            policy.publish_weights()
            policy.engine.weight_version = int(saved["weight_version"])
            policy.advantages.kl_controller.load_state_dict(saved["kl_controller"])
        fields = dataclasses.fields(Progress)
        self._progress = Progress(**{field.name: progress[field.name] for field in fields})
        self._asynchronous, self._restored_unplayed = None, progress.get("unplayed")
        for prefix, curriculum in self._user.curricula(self.config).items():
            if f"{prefix}curriculum" in progress:
                curriculum.load_state_dict(progress[f"{prefix}curriculum"])


RayPPOTrainer = Trainer
"""The same class under another name, which pickles and subclasses may use."""
