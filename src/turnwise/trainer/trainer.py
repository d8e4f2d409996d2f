"""`Trainer`: the training loop, steps by hand, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from turnwise.reward import RewardFn
from turnwise.runs.checkpoints import Checkpoint, open_checkpoint, save_checkpoint_to
from turnwise.runs.choose_folder import changed_code, choose_run_folder
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.runs.sinks import check_sinks
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.assembly import assemble
from turnwise.trainer.async_rollout import AsyncRollout
from turnwise.trainer.checks import checked_callbacks, resume_mode
from turnwise.trainer.components import GivenEnvironment, UserComponents, with_mix
from turnwise.trainer.episode_metrics import (
    FailureReport,
    describe_failure,
    environments_with_success,
    evaluation_metrics,
    select_part,
    step_metrics,
    why_nothing_changes,
)
from turnwise.trainer.learning import PlayedStep, RunComponents, Stopwatch, learn_from
from turnwise.trainer.recording import identity, record_run, recorded
from turnwise.trainer.records import Records, model_facts, why_ended
from turnwise.trainer.reporter import Metrics, Reporter, RunInfo, choose_reporter
from turnwise.trainer.rollout import (
    GREEDY,
    Curriculum,
    Rollout,
    TaskSource,
    check_curriculum,
    evaluation_tasks,
    held_out_tasks,
    run_tasks,
)
from turnwise.trainer.state import (
    checkpoint_settings,
    read_learner,
    read_state,
    restore_generators_if_interrupted,
    seed_generators,
    uses_gpu,
    write_learner,
    write_state,
)
from turnwise.trainer.stopping import Interrupted, StopRequest, exit_now
from turnwise.trainer.warm_start import imitate
from turnwise.user_code import refuse_during_import
from turnwise.whole_files import explained

if TYPE_CHECKING:
    from turnwise.agents import AgentSource, Expert

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

    `fit` shows its progress: live in a terminal, in the cell of a notebook, elsewhere as a line per
    step. `reporter=None` shows nothing; an object with the methods of `Reporter` replaces it.

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
        environments: Iterable[GivenEnvironment] | Mapping[str, GivenEnvironment] | None = None,
        agent: AgentSource | None = None,
        expert: Expert | str | None = None,
        curriculum: Curriculum | None = None,
        callbacks: Sequence[Any] = (),
        reporter: Reporter | Literal["auto"] | None = "auto",
        resume: Resume | bool = "auto",
    ) -> None:
        config = ConfigStore.of(config)
        check_sinks(config.logging.sinks, config.logging.wandb)
        if tools is not None and not isinstance(tools, ToolRegistry):
            tools = ToolRegistry(tools)
        check_curriculum(curriculum)
        given = UserComponents(
            environment=environment,
            reward_fn=reward_fn,
            dataset=dataset if dataset is not None else train_dataset,
            eval_dataset=eval_dataset,
            tools=tools,
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
        has_rows = any(rows.path is not None for _, rows in config.datasets())
        if curriculum is not None and not has_rows and given.dataset is given.eval_dataset is None:
            # Without a task its environment may not even reset. Rows are recorded, for `eval`.
            given = dataclasses.replace(given, eval_dataset=evaluation_tasks(curriculum))
        self.config = config
        self.metrics_history: list[Metrics] = []
        """The metrics of each step so far."""
        self.run_folder: Path | None = None
        """The folder of the run, once it has begun."""
        self.step = 0
        """Finished steps."""
        self._given = given
        self._user = given.filled_from(config)
        self._name = self._user.environment_name if not given.mix else config.environment_name
        self._callbacks = checked_callbacks(callbacks)
        self._reporter, self._display = choose_reporter(reporter)
        self._resume = resume_mode(resume)
        self._failures = FailureReport(self._reporter.say)
        self._components: RunComponents | None = None
        self._by_hand: PlayedStep | None = None
        """The step that `rollout` played last."""
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
        with (
            self._run(num_epochs, num_iters_per_epoch) as (records, stop, plan),
            self._rollout(plan) as rollout,
        ):
            stop.can_save = True
            records.keep_tokenizer(self.components.tokenizer)
            is_start = self.step == 0 and not self._num_imitated
            records.add_facts(model_facts(self.components, self.config, is_start=is_start))
            for policy in (self.components, *self.components.others.values()):
                learner = policy.learner
                learner.options = dataclasses.replace(learner.options, total_steps=plan.num_steps)
            self._warm_start(rollout, records, stop)
            while not (stop.is_requested or self._is_over(plan)):
                why_stop, evaluated = None, {}
                evaluates = self._pending_metrics is not None  # the run was stopped in it
                if self._pending_metrics is None:
                    clock = Stopwatch()
                    with clock.timing("play"), restore_generators_if_interrupted():
                        played = self._play(rollout, stop)
                    metrics, columns, why_stop = self._learn(played, clock)
                    rollout.step_done()
                    why_stop = played.why_stop or why_stop
                    metrics = self._count_step(metrics)
                    evaluates = self._is_evaluated(plan)
                    records.keep_episodes(
                        self.step,
                        [*played.episodes, *played.episodes.dropped],
                        clock,
                        columns,
                        baselines=played.baselines,
                    )
                    self._pending_metrics = metrics
                if evaluates and why_stop is None:
                    evaluated = self._evaluate_step(records, stop)
                metrics, self._pending_metrics = self._pending_metrics | evaluated, None
                self.metrics_history.append(metrics)
                records.keep(metrics)
                _stop_if(why_stop)  # the episodes and metrics that show the cause are kept
                self._call_back("on_step", metrics)
                if evaluated:
                    self._call_back("on_evaluation", evaluated)
                is_saved = self._is_saved(records, plan)
                if self._epochs.num_steps >= plan.steps_per_epoch:
                    self._epochs.end_epoch()
                if is_saved:
                    records.save(self.step, self._write_state)
        return self.metrics_history

    @contextlib.contextmanager
    def _rollout(self, plan: FitPlan | None = None) -> Iterator[Rollout]:
        """Open what chooses and plays the episodes of steps; by hand, without a plan, in turns."""
        components, config = self.components, self.config
        estimator = components.advantages.estimator
        sources = [
            TaskSource(part.name, part.weight, part.components.train_rows, part.given.curriculum)
            for part in self._user.parts(config)
        ]
        unplayed = self._unplayed_state()
        if plan is None or not (config.training.max_staleness or unplayed):
            yield Rollout(components.collector, config, sources, estimator)
            return
        rollout = AsyncRollout(
            components.collector,
            config,
            sources,
            estimator,
            num_updates=plan.num_steps,
            step=self.step,
            state=unplayed,
            drawing=self._curriculum_lock,
        )
        self._asynchronous = rollout
        with (
            components.updates_in_flight(config.inference.stale_kv),
            contextlib.closing(rollout),
        ):
            yield rollout

    def _play(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        """Play the episodes of the next step."""

        def on_episode(done: int, total: int) -> None:
            self._reporter.progress("episodes", done, total)

        episodes = rollout.play(self.step, stop, on_episode)
        nothing_learned = self.step == self._num_broken_steps
        why_stop = self._failures.check(episodes, is_first_step=nothing_learned)
        baselines = rollout.baselines(stop) if why_stop is None else None
        self._success_reported |= environments_with_success(episodes)
        metrics = step_metrics(episodes, self._success_reported) | rollout.idle_shares()
        if rollout.zero_variance:
            metrics |= {
                f"{name}/zero_variance" if name else "zero_variance": share
                for name, share in rollout.zero_variance.items()
            }
            metrics["num_resampled"] = rollout.num_resampled
        return PlayedStep(episodes, metrics, baselines, why_stop)

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Mapping[str, torch.Tensor], str | None]:
        """Learn from a step; return metrics, token columns, and why the run should end, if so."""
        metrics, columns = learn_from(step, self.components, self.config, clock)
        self._num_broken_steps = 0 if metrics.get("num_steps") else self._num_broken_steps + 1
        why_stop = why_nothing_changes(self._num_broken_steps, metrics)
        for prefix, curriculum in self._curricula():
            if f"{prefix}reward" in metrics:
                with self._curriculum_lock:
                    success = metrics.get(f"{prefix}success", 0.0)
                    curriculum.observe(success, metrics[f"{prefix}reward"])
        return {**metrics, **clock.metrics(step.episodes)}, columns, why_stop

    def _curricula(self) -> Iterator[tuple[str, Curriculum]]:
        """Yield each curriculum with the prefix of the metrics that it observes."""
        for part in self._user.parts(self.config):
            if part.given.curriculum is not None:
                yield f"{part.name}/" if part.name else "", part.given.curriculum

    def _count_step(self, metrics: Metrics) -> Metrics:
        """Count a finished step; return its finite metrics with the numbers of step and epoch."""
        self.step += 1
        self._epochs.num_steps += 1
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return {"step": self.step, "epoch": self._epochs.num_done + 1, **finite}

    def _is_over(self, plan: FitPlan) -> bool:
        return self.step >= plan.num_steps and self._pending_metrics is None

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

    def _call_back(self, event: str, value: Any) -> None:
        """Call the method of this name of all callbacks that have it."""
        for callback in self._callbacks:
            if (method := getattr(callback, event, None)) is not None:
                method(self, value)

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
        _stop_if(self._by_hand.why_stop)
        return self._by_hand.episodes

    def train_step(self, episodes: Collection | None = None) -> Metrics:
        """Learn once from the result of `rollout`, or from new episodes; return metrics.

        `fit` is a loop of such steps with a run folder. This writes nothing:
        `save_checkpoint(path)` saves.
        """
        clock = Stopwatch()
        with clock.timing("play"):
            if episodes is None:
                episodes = self.rollout()
        step = self._by_hand
        if step is None or step.episodes is not episodes:
            estimator = self.components.advantages.estimator
            if estimator.needs_greedy_episode:
                raise ConfigError(
                    f"the advantage estimator {estimator.name} needs the greedy episodes that "
                    "rollout() plays in addition to the others. Pass what the last rollout() gave."
                )
            step = PlayedStep(episodes, step_metrics(episodes, self._success_reported))
        metrics, _, why_stop = self._learn(step, clock)
        _stop_if(why_stop)
        # A run in the folder must not replace what was learned here.
        self._by_hand, self._is_loaded = None, True
        metrics = self._count_step(metrics)
        if self._epochs.num_steps >= self.steps_per_epoch:
            self._epochs.end_epoch()
        self.metrics_history.append(metrics)
        return metrics

    # ---- before and between the steps ----

    def _warm_start(self, rollout: Rollout, records: Records, stop: StopRequest) -> None:
        """Imitate the expert, a random player or a file of conversations, if the settings say."""
        training, components = self.config.training, self.components
        num_steps = training.warm_start_steps
        if training.warm_start is None or self.step or self._num_imitated >= num_steps:
            return

        def on_step() -> None:
            self._num_imitated += 1
            self._reporter.progress("warm start", self._num_imitated, num_steps)

        steps = range(self._num_imitated, num_steps)
        loss = imitate(training, components, rollout.imitation_tasks, steps, stop, on_step)
        components.learner.restart()
        components.publish_weights()
        self._reporter.say(
            f"warm start on {training.warm_start}: {num_steps} steps, loss {loss:.3f}"
        )
        records.save(0, self._write_state)

    def evaluate(self, num_episodes: int | None = None, greedy: bool = True) -> Metrics:
        """Play on held-out seeds with the current model; return reward, success and so on.

        Each environment of a mix plays that many episodes; `maze/reward` is the reward of `maze`,
        `reward` the mean over the environments, each counted with its weight.
        """
        number = num_episodes or self.config.training.eval_episodes or 32
        played, by_environment = self._evaluate(number, greedy, StopRequest(self._reporter.say))
        self._report_failures(played)
        return {
            f"{environment}/{name}" if environment else name: value
            for environment, metrics in by_environment.items()
            for name, value in metrics.items()
        }

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
                    played, by_environment = self._evaluate(number, kind == "greedy", stop)
                if kind == "greedy":
                    self._report_failures(played)
                for environment, values in by_environment.items():
                    prefix = f"eval/{environment}/{kind}" if environment else f"eval/{kind}"
                    metrics |= {f"{prefix}/{key}": value for key, value in values.items()}
                records.keep_episodes(self.step, list(played), clock, kind=f"eval-{kind}")
        metrics["time/evaluate"] = time.perf_counter() - started
        return metrics

    def _evaluate(
        self, num_episodes: int, is_greedy: bool, stop: StopRequest
    ) -> tuple[Collection, dict[str, Metrics]]:
        """Play held-out episodes, in a mix that many of each environment; return their metrics."""
        collector, seed = self.components.collector, self.config.training.seed
        tasks = [
            dataclasses.replace(task, group=number * num_episodes + task.group, part=part.name)
            for number, part in enumerate(self._user.parts(self.config))
            for task in held_out_tasks(num_episodes, seed, part.components.eval_rows)
        ]
        on_episode = functools.partial(self._reporter.progress, "evaluation")
        sampling = GREEDY if is_greedy else collector.setup.sampling
        played = run_tasks(collector.sampling_with(sampling), tasks, stop, on_episode)
        self._success_reported |= environments_with_success(played)
        weights = {part.name: part.weight for part in self._user.mix}
        return played, evaluation_metrics(played, weights, self._success_reported)

    def _report_failures(self, played: Collection) -> None:
        """Report environments in which episodes of an evaluation failed, with the first failure."""
        for name in [part.name for part in self._user.parts(self.config)]:
            episodes = select_part(played, name)
            results = [*episodes, *episodes.dropped]
            failed = [result for result in results if result.status.is_error]
            if failed:
                where = f" in {name}" if name else ""
                what = f"{len(failed)} of {len(results)} episodes of the evaluation{where} failed"
                if len(failed) == len(results):
                    what = f"every episode of the evaluation{where} failed, so there is no result"
                first = describe_failure(failed[0])
                self._reporter.say(f"error: {what}; the first one with: {first}")

    # ---- the run and its folder ----

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

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, by the settings and the size of the dataset."""
        rows = self._user.train_rows
        return self.config.training.epoch_steps(None if rows is None else len(rows))

    @contextlib.contextmanager
    def _run(
        self, num_epochs: int | None, steps_per_epoch: int | None
    ) -> Iterator[tuple[Records, StopRequest, FitPlan]]:
        """Open the run folder, resume the run in it, and record how it ends."""
        config = self.config
        stop = self._stop_request = StopRequest(self._reporter.say)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_stop_request", None)
            stack.enter_context(self._display)
            self._assemble()  # before there is a folder: it raises for what cannot be used
            hashes = identity(self._user, config)
            record = record_run(config, self._given, self._user, hashes)
            with explained(Path(config.checkpoint.output_dir).expanduser() / "run"):
                folder, resumes = self._folder(record.config, hashes)
                is_new = not folder.exists
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.held())
                if is_new:  # after the lock: another process may just begin a run in it
                    stack.push(functools.partial(self._remove_if_unused, folder))
                stack.enter_context(folder.logged(config.logging.level))
            stall_timeout = config.inference.stall_timeout
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
                sinks=config.logging.sinks,
                on_save=functools.partial(self._call_back, "on_save"),
            )
            records.begin(record.files, resumes=is_old)
            record.files.clear()  # they are on the disk now
            if self.components.watch is not None:
                self.components.watch(functools.partial(self._end_process, records))
            if resumes:
                self._resume_run(records)
            elif self.run_folder is not None:
                records.rewind(self.step)
            elif not self._is_loaded:
                seed_generators(config.training.seed)
            self.run_folder = folder.path
            plan = self._epochs.plan(
                self._num_fits,
                num_epochs or config.training.num_epochs,
                steps_per_epoch or self.steps_per_epoch,
                None if num_epochs else config.training.max_steps,
                step=self.step,
                is_waiting=self._pending_metrics is not None,
            )
            self._num_fits += 1
            records.num_steps = plan.num_steps
            records.add_facts({"evaluation": self._user.evaluates_on})
            self._reporter.begin(
                RunInfo(
                    folder.path,
                    self._name,
                    config.model.local_path or config.model.model_name,
                    plan.num_steps,
                    self.step,
                    tuple(self.metrics_history),
                    self._user.evaluates_on,
                )
            )
            try:
                yield records, stop, plan
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

    def _folder(self, config: ConfigStore, hashes: Mapping[str, str]) -> tuple[RunFolder, bool]:
        """Return the folder of the run, and whether a run in it is resumed."""
        if self.run_folder is not None:
            return RunFolder(self.run_folder), False
        # Weights that were loaded from elsewhere must not be replaced by those of another run.
        resume: Resume = "never" if self._is_loaded else self._resume
        folder, resumes = choose_run_folder(config, self._name, resume, identity=hashes)
        if resumes and (changed := changed_code(folder, hashes)):
            self._reporter.say(
                f"{' and '.join(changed)} changed since this run began; the new code is used"
            )
        return folder, resumes

    def _remove_if_unused(self, folder: RunFolder, kind: Any, *_: object) -> None:
        """Remove a new folder if a mistake of the user ended the run before its first step."""
        is_mistake = kind is not None and issubclass(kind, ConfigError | MissingExtraError)
        if is_mistake and self.step == 0 and not folder.has_checkpoints:
            shutil.rmtree(folder.path, ignore_errors=True)
            self.run_folder = None

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

    # ---- checkpoints ----

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Save everything that resuming needs; to the run's own folder if no path is given."""
        if path is None:
            if self.run_folder is None:
                raise ConfigError("there is no run yet: say where to save, save_checkpoint(path)")
            path = RunFolder(self.run_folder).checkpoints / f"step-{self.step:08d}"
        meta = {"environment": self._name}
        return save_checkpoint_to(Path(path), self._write_state, meta, self.step).path

    def load_checkpoint(self, path: str | Path) -> None:
        """Restore weights, optimiser and everything else from a checkpoint.

        Training resumes from its step; metrics of later steps are dropped.
        """
        self._restore(open_checkpoint(Path(path)))
        self._num_fits = len(self._epochs.starts)  # those calls of fit were the checkpoint's
        self._is_loaded = True
        self.metrics_history = [m for m in self.metrics_history if m["step"] <= self.step]

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
            for policy in (self.components, *self.components.others.values()):
                policy.advantages.kl_controller.value = self.config.training.kl_coef
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
            "epochs": dataclasses.asdict(self._epochs),
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
        for player, policy in self.components.others.items():
            write_learner(folder, policy.learner, {}, player)
            progress[f"policy/{player}"] = {
                "weight_version": policy.engine.weight_version,
                "kl_controller": policy.advantages.kl_controller.state_dict(),
            }
        write_state(folder, self.components.learner, config, progress)

    def _unplayed_state(self) -> Mapping[str, Any] | None:
        """Return which groups an asynchronous run has still to play; None for a synchronous one."""
        if self._asynchronous is not None:
            return self._asynchronous.state_dict()
        return self._restored_unplayed

    def _restore(self, checkpoint: Checkpoint) -> None:
        components = self.components
        progress = read_state(checkpoint, components.learner)
        for player, policy in components.others.items():
            read_learner(checkpoint, policy.learner, player)
        policies = {"": components, **components.others}
        for player, policy in policies.items():
            saved = progress[f"policy/{player}"] if player else progress
            policy.publish_weights()
            policy.engine.weight_version = int(saved["weight_version"])
            policy.advantages.kl_controller.load_state_dict(saved["kl_controller"])
        self.step = int(progress["step"])
        self._num_broken_steps = int(progress["num_broken_steps"])
        self._num_imitated = int(progress["num_imitated"])
        self._pending_metrics = progress["unwritten"]
        self._success_reported = set(progress["success_reported"])
        self._asynchronous, self._restored_unplayed = None, progress.get("unplayed")
        if checkpoint_settings(checkpoint).training.eval_fraction is None:
            before, self._user = self._user, self._user.without_held_out()
            if before.evaluates_on != self._user.evaluates_on:
                self._reporter.say(
                    "this run began with all rows of its dataset as training rows, and continues "
                    "so: its evaluations are on training rows."
                )
        self._epochs = Epochs(**progress["epochs"])
        for prefix, curriculum in self._curricula():
            if f"{prefix}curriculum" in progress:
                curriculum.load_state_dict(progress[f"{prefix}curriculum"])


def _stop_if(why: str | None) -> None:
    if why is not None:
        raise TrainingStopped(why)


RayPPOTrainer = Trainer
"""The same class under another name, which pickles and subclasses may use."""
