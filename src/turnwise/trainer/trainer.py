"""`Trainer`: episodes, advantages, update, again; and everything that a run leaves behind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

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
from turnwise.trainer.components import UserComponents
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.episode_metrics import step_metrics
from turnwise.trainer.epochs import FitPlan
from turnwise.trainer.evaluation import Evaluator
from turnwise.trainer.failures import FailureReport
from turnwise.trainer.lifecycle import RunLifecycle
from turnwise.trainer.mix import GivenEnvironment, with_mix
from turnwise.trainer.model_facts import model_facts
from turnwise.trainer.records import Records
from turnwise.trainer.reporter import Metrics, Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.state import seed_generators, undone_if_interrupted
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.stopwatch import Stopwatch, uses_gpu
from turnwise.trainer.training_step import PlayedStep, learn_from, play_step
from turnwise.trainer.warm_start import imitate
from turnwise.user_code import refuse_during_import


class Trainer(RunLifecycle):
    """Trains a language model in an environment.

    `environment` is a class, a factory, an instance or a name; `environments` is a mix of them,
    each with a weight: `[(Maze, 2.0), ("guess-number", 1.0)]`. `reward_fn` scores whole episodes
    (none: the sum of the step rewards); `dataset` gives each episode a task. `tools` are what the
    agent can call. In one process by default.

    `adv_estimator` and `policy_loss` are those of the settings, unless they are given here: a name,
    a function, or a record that says what the function needs (`AdvantageEstimator`, `PolicyLoss`).

    A run that was interrupted resumes when it is started again with the same settings.

    `fit` shows its progress: live in a terminal, in the cell of a notebook, elsewhere as a line per
    step. `reporter=None` shows nothing; an object with the methods of `Reporter` is told instead.
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
        curriculum: Curriculum | None = None,
        reporter: Reporter | Literal["auto"] | None = "auto",
        resume: Resume | bool = "auto",
    ) -> None:
        config = ConfigStore.of(config)
        check_sinks(config.logging.sinks)
        if isinstance(resume, bool):
            resume = "always" if resume else "never"
        if resume not in ("auto", "always", "never"):
            raise ConfigError(
                f"resume got {resume!r}, expected True to continue a run, False for a new one, or "
                "'auto': a run with the same settings that did not end is continued."
            )
        given = UserComponents(
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
            adv_estimator,
            policy_loss,
        )
        config, given = with_mix(config, given, environments)
        super().__init__(config, given, curriculum, reporter, resume)
        self._failures = FailureReport(self._reporter.say)
        self._why_stop: str | None = None
        """Why the run ends as soon as this step is written down."""
        self._by_hand: PlayedStep | None = None
        """What `rollout` played last."""

    def _steps_per_epoch(self) -> int:
        training, rows = self.config.training, self._user.train_rows
        return training.steps_per_epoch if rows is None else -(-len(rows) // training.batch_size)

    # ---- the loop ----

    def fit(
        self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None
    ) -> list[Metrics]:
        """Train; the metrics of every step. Called again, it trains for as long once more.

        Without numbers they are those of the settings; an epoch is one pass over the dataset, or
        `training.steps_per_epoch` steps where there is none. Each call begins a new epoch. In a
        script that is started again, the calls that were over return at once, and the one that
        was interrupted is resumed.
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
            while not (stop.is_wanted or self._is_over(plan)):
                ends_epoch = self._pending_metrics is not None  # its evaluation is missing
                if self._pending_metrics is None:
                    clock = Stopwatch()
                    metrics, played, columns = self._train_step(rollout, stop, clock)
                    self.step += 1
                    self._epochs.num_steps += 1
                    ends_epoch = self._epochs.num_steps >= plan.steps_per_epoch
                    records.keep_episodes(self.step, played, columns, clock)
                    self._pending_metrics = {
                        "step": self.step,
                        "epoch": self._epochs.num_done + 1,
                        **_finite(metrics),
                    }
                if ends_epoch and self._why_stop is None:
                    self._pending_metrics |= self._evaluator().after_epoch(self.step, records, stop)
                metrics, self._pending_metrics = self._pending_metrics, None
                self.metrics_history.append(metrics)
                records.keep(metrics)
                self._stop_if_hopeless()
                if ends_epoch:
                    self._epochs.end_epoch()
                    if self._epochs.num_done % self.config.checkpoint.save_interval == 0:
                        records.save(self.step, self._write_state)
        return self.metrics_history

    def _rollout(self, plan: FitPlan | None = None) -> Rollout:
        components = self.components
        return components.rollout(
            components.collector,
            self.config,
            self._user.train_rows,
            self._curriculum,
            estimator=components.advantages.estimator,
            plan=plan,
            mix=[part.source for part in self._user.mix],
        )

    def _train_step(
        self, rollout: Rollout, stop: StopRequest, clock: Stopwatch
    ) -> tuple[Metrics, Collection, Mapping[str, torch.Tensor]]:
        """Play, score, update, publish: one step of reinforcement learning."""
        with clock.timing("play"), undone_if_interrupted():
            step = self._play_step(rollout, stop)
        return self._learn(step, clock)

    def _play_step(self, rollout: Rollout, stop: StopRequest) -> PlayedStep:
        step, self._why_stop = play_step(
            rollout,
            self.step,
            stop,
            self._episode_progress,
            self._failures,
            nothing_learned=self.step == self._broken_steps.num_in_a_row,
            needs_baselines=self.components.advantages.estimator.needs_greedy_episode,
        )
        return step

    def _learn(
        self, step: PlayedStep, clock: Stopwatch
    ) -> tuple[Metrics, Collection, Mapping[str, torch.Tensor]]:
        figures, columns = learn_from(step, self.components, self.config, clock)
        changes_nothing = self._broken_steps.look(figures)
        self._why_stop = self._why_stop or changes_nothing
        for prefix, curriculum in self._curricula():
            if f"{prefix}success" in figures:
                curriculum.observe(figures[f"{prefix}success"], figures[f"{prefix}reward"])
        return {**figures, **clock.figures(step.played)}, step.played, columns

    def _stop_if_hopeless(self) -> None:
        """End the run; its last episodes and metrics are kept, for whoever looks for the cause."""
        why, self._why_stop = self._why_stop, None
        if why is not None:
            raise TrainingStopped(why)

    # ---- a step by hand ----

    def rollout(self) -> Collection:
        """Play the episodes of the next step; they are scored, and not yet learned from."""
        if self._components is None and not self._is_loaded:
            seed_generators(self.config.training.seed)
        with self._rollout() as rollout:
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
            estimator = self.components.advantages.estimator
            if estimator.needs_greedy_episode:
                raise ConfigError(
                    f"the advantage estimator {estimator.name} needs the greedy episodes that "
                    "rollout() plays in addition to the others. Pass what the last rollout() gave."
                )
            step = PlayedStep(episodes, step_metrics(episodes))
        figures, _, _ = self._learn(step, clock)
        self._stop_if_hopeless()
        # What was learned here is not to be replaced by a run that lies in the folder.
        self._by_hand, self._is_loaded = None, True
        self.step += 1
        metrics = {"step": self.step, "epoch": self._epochs.num_done + 1, **_finite(figures)}
        self._epochs.num_steps += 1
        if self._epochs.num_steps >= self._steps_per_epoch():
            self._epochs.end_epoch()
        self.metrics_history.append(metrics)
        return metrics

    # ---- before and between the steps ----

    def _warm_start(self, rollout: Rollout, records: Records, stop: StopRequest) -> None:
        """Learn to play as the expert, or chance, or a file does."""
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
        """Play on held-out seeds with the model as it is now: reward, success and so on.

        Each environment of a mix plays that many episodes; `maze/reward` is the reward of `maze`,
        `reward` the mean over the environments, each counted with its weight.
        """
        number = num_episodes or self.config.training.eval_episodes or 32
        evaluator = self._evaluator()
        found = evaluator.by_part(*evaluator.play(number, greedy, StopRequest(self._reporter.say)))
        return {
            f"{part}/{name}" if part else name: value
            for part, figures in found.items()
            for name, value in figures.items()
        }

    def _evaluator(self) -> Evaluator:
        components = self.components
        return Evaluator(
            components.collector, self.config, self._user.eval_rows, self._reporter, self._user.mix
        )

    def _episode_progress(self, done: int, total: int) -> None:
        self._reporter.progress("episodes", done, total)

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
        self._num_fits = len(self._epochs.starts)  # the next one is not one of the checkpoint's
        self._is_loaded = True
        self.metrics_history = [m for m in self.metrics_history if m["step"] <= self.step]

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


def _finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


RayPPOTrainer = Trainer
"""The same class under the name that VERL's users know; pickles and subclasses may name it."""
