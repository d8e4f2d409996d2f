"""`Trainer`: the training loop, steps by hand, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from turnwise.algo.choose import EstimatorChoice, LossChoice
from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode import Collection, EpisodeLimits
from turnwise.episode.options import ParserChoice
from turnwise.errors import ConfigError, TrainingStopped
from turnwise.reward import RewardFn
from turnwise.runs.checkpoints import open_checkpoint, save_checkpoint_to
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.runs.sinks import check_sinks
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.agents import check_alone
from turnwise.trainer.async_rollout import AsyncRollout
from turnwise.trainer.components import GivenEnvironment, UserComponents, with_mix
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.episode_metrics import environments_with_success, step_metrics
from turnwise.trainer.evaluation import Evaluator
from turnwise.trainer.failures import FailureReport, why_nothing_changes
from turnwise.trainer.lifecycle import FitPlan, RunLifecycle
from turnwise.trainer.records import Records, model_facts
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.state import restore_generators_if_interrupted, seed_generators
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.training_step import PlayedStep, Stopwatch, learn_from
from turnwise.trainer.warm_start import imitate
from turnwise.user_code import refuse_during_import

if TYPE_CHECKING:
    from turnwise.agents import AgentSource, Expert


class Trainer(RunLifecycle):
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
        owned = {"environment": environment, "environments": environments, "tools": tools}
        check_alone(agent, {**owned, "system_prompt": system_prompt})
        config, given = with_mix(config, given, environments)
        super().__init__(config, given, callbacks, reporter, resume)
        self._failures = FailureReport(
            self._reporter.say,
            is_agent=self._user.agent is not None,
            has_warm_start=config.training.warm_start is not None,
        )
        self._by_hand: PlayedStep | None = None
        """The step that `rollout` played last."""

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
            self._run(num_epochs, num_iters_per_epoch) as run,
            self._rollout(run.plan) as rollout,
        ):
            records, stop, plan = run
            stop.can_save = True
            learner = self.components.learner
            records.keep_tokenizer(self.components.tokenizer)
            is_start = self.step == 0 and not self._num_imitated
            records.add_facts(model_facts(self.components, self.config, is_start=is_start))
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
                    records.keep_episodes(self.step, played, columns, clock)
                    self._pending_metrics = metrics
                if evaluates and why_stop is None:
                    evaluated = self._evaluator().after_step(self.step, records, stop)
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
        estimator, sources = components.advantages.estimator, self._user.task_sources()
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

    def _count_step(self, metrics: Metrics) -> Metrics:
        """Count a finished step; return its finite metrics with the numbers of step and epoch."""
        self.step += 1
        self._epochs.num_steps += 1
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return {"step": self.step, "epoch": self._epochs.num_done + 1, **finite}

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
        evaluator = self._evaluator()
        played = evaluator.play(number, greedy, StopRequest(self._reporter.say))
        evaluator.report_failure(played)
        return {
            f"{environment}/{name}" if environment else name: value
            for environment, metrics in evaluator.by_environment(played).items()
            for name, value in metrics.items()
        }

    def _evaluator(self) -> Evaluator:
        return Evaluator(
            self.components.collector,
            self.config,
            self._user,
            self._reporter,
            self._success_reported,
        )

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


def _stop_if(why: str | None) -> None:
    if why is not None:
        raise TrainingStopped(why)


RayPPOTrainer = Trainer
"""The same class under another name, which pickles and subclasses may use."""
