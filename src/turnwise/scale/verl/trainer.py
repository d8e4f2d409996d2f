"""`CustomRayPPOTrainer`: the same environment and reward, trained by VERL."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from turnwise.compat.multi_turn import MultiTurnInferenceEngine
from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode import EpisodeLimits
from turnwise.episode.options import ParserChoice
from turnwise.errors import ConfigError, import_extra
from turnwise.progress.lines import LineReporter
from turnwise.reward import RewardFn, batch_type
from turnwise.runs.choose_folder import choose_run_folder
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.scale.verl.components import episode_components
from turnwise.scale.verl.dataset import HELD_OUT, TRAIN, CustomEnvironmentDataset, make_datasets
from turnwise.scale.verl.running import METRICS_LOG, VerlArguments, VerlRun
from turnwise.scale.verl.settings import (
    OWN_SECTION,
    check,
    compose,
    find_resources,
    refuse_mix,
    to_verl_config,
)
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.checks import check_run
from turnwise.trainer.components import UserComponents, as_registry, either
from turnwise.trainer.reporter import Metrics, Reporter, RunInfo, choose_reporter

_DEFAULT_EVAL_EPISODES = 32
_LOG = logging.getLogger("turnwise")


def take_metrics(run_folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return what VERL's file logger wrote, as steps with their metrics, and remove the file."""
    path = run_folder / METRICS_LOG
    entries = []
    # In bytes, whose lines end with line feeds alone: JSON may contain U+2028 and the like.
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:  # the half line of a killed process
            _LOG.warning("%s: no metrics of a step, left out: %.80s", path, line)
        else:
            entries.append((int(entry["step"]), dict(entry["data"])))
    path.unlink(missing_ok=True)
    return entries


def newest_step(run_folder: Path) -> int:
    """Return the step of VERL's newest checkpoint; 0 if there is none."""
    latest = run_folder / "verl" / "latest_checkpointed_iteration.txt"
    return int(latest.read_text()) if latest.exists() else 0


class CustomRayPPOTrainer:
    """Trains with VERL's own `RayPPOTrainer`, or its V1 trainer.

    The arguments are those of `turnwise.Trainer`; `verl_overrides` are written as VERL's command
    line takes them, such as `"trainer.use_v1=true"`, and override everything else. Of a
    `multi_turn_engine` the turns, the system prompt and the tools are used.

    VERL's own arguments are passed on to its `RayPPOTrainer`: `role_worker_mapping` (worker
    classes by role; other roles keep VERL's, and one for RewardModel scores every batch),
    `resource_pool_manager`, `collate_fn`, `train_sampler` (over the rows of `train_dataset`) and
    `device_name`; `val_dataset` is another name for `eval_dataset`. A `CustomEnvironmentDataset`
    as `train_dataset` is used as it is, and its environment is played.

    VERL prints each step to the console itself, unless `reporter` is None.
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
        limits: EpisodeLimits | None = None,
        multi_turn_engine: MultiTurnInferenceEngine | None = None,
        reporter: Reporter | Literal["auto"] | None = "auto",
        resume: Resume = "auto",
        verl_overrides: Sequence[str] = (),
        val_dataset: Any = None,
        role_worker_mapping: Mapping[Any, type] | None = None,
        resource_pool_manager: Any = None,
        collate_fn: Callable[[list[Any]], Mapping[str, Any]] | None = None,
        train_sampler: Any = None,
        device_name: str | None = None,
    ) -> None:
        self.config = ConfigStore.of(config)
        refuse_mix(self.config)
        rows = either(dataset=dataset, train_dataset=train_dataset)
        if environment is None and isinstance(rows, CustomEnvironmentDataset):
            environment = rows.environment
        eval_rows = either(eval_dataset=eval_dataset, val_dataset=val_dataset)
        user = UserComponents(
            environment,
            reward_fn,
            rows,
            eval_rows,
            as_registry(tools),
            parser,
            system_prompt,
            tokenizer=tokenizer,
            limits=limits,
        ).filled_from(self.config)
        self._has_verl_rows = isinstance(user.dataset, CustomEnvironmentDataset)
        if self._has_verl_rows:  # such a dataset makes the rows of evaluations itself
            user = dataclasses.replace(user, eval_fraction=None)
        self._user = user
        self._arguments = VerlArguments(
            role_worker_mapping or {},
            resource_pool_manager,
            collate_fn,
            train_sampler,
            device_name,
            None if batch_type(user.reward_fn) is None else user.reward_fn,
        )
        self._multi_turn = multi_turn_engine
        self._resume = resume
        self._overrides = list(verl_overrides)
        self._verl_prints = reporter is not None
        self._reporter = LineReporter() if reporter == "auto" else choose_reporter(reporter)
        self.metrics_history: list[Metrics] = []
        """The metrics of each step, under VERL's names, and `step` and `reward`."""
        self.run_folder: Path | None = None
        # The same environment by its class and by `path.py:Class` is the same run.
        name = user.environment_name
        self._name = f"{name.rpartition(':')[2] if '.py:' in name else name}-verl"
        self._resume_from: Path | None = None
        self._run: VerlRun | None = None

    @property
    def verl_trainer(self) -> Any:
        """VERL's own trainer, while its workers run: after `fit` and before `cleanup`."""
        return None if self._run is None else self._run.trainer

    @property
    def step(self) -> int:
        """The number of finished steps."""
        return int(self.metrics_history[-1]["step"]) if self.metrics_history else 0

    def dry_run(self) -> str:
        """Return VERL's whole config as it would run, in YAML, without starting anything."""
        omega = import_extra("omegaconf", "verl").OmegaConf
        return str(omega.to_yaml(self.verl_config(), resolve=True))

    def verl_config(self, num_steps: int | None = None) -> Any:
        """Return VERL's whole config."""
        resources = find_resources(self.config, self._folder().path)
        components = episode_components(self._user, self.config, self._multi_turn)
        limits = components.options.limits
        assert limits is not None  # `filled_from` gives them
        max_turns = limits.max_turns or self._user.turn_limit(self.config)
        limits = dataclasses.replace(limits, max_turns=max_turns)
        settings = to_verl_config(
            self.config, resources, num_steps, self._steps_per_epoch(), limits
        )
        config = compose(settings | self._own_settings(), self._overrides)
        check(config, self.config.training.on_error, self._arguments.refused_by_v1)
        return config

    def _own_settings(self) -> dict[str, Any]:
        """Return what this trainer needs in VERL's config, whatever the user's settings are."""
        settings: dict[str, Any] = {
            "data.train_files": TRAIN,
            "data.val_files": HELD_OUT,
            "data.custom_cls.path": "pkg://turnwise.scale.verl.dataset",
            "data.custom_cls.name": "RegisteredDataset",
            f"{OWN_SECTION}.drops_groups": self.config.training.on_error == "drop_group",
        }
        if not self._verl_prints:
            settings["trainer.logger"] = ["file", *self.config.logging.sinks]
        if self._arguments.train_sampler is not None or self._has_verl_rows:
            # As many passes as it takes; the number of steps ends the run.
            settings["trainer.total_epochs"] = 10**6
        if self._resume_from is not None:
            settings["trainer.resume_mode"] = "resume_path"
            settings["trainer.resume_from_path"] = str(self._resume_from)
        return settings

    def _steps_per_epoch(self) -> int:
        rows = self._user.train_rows
        return self.config.training.epoch_steps(None if rows is None else len(rows))

    def fit(
        self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None
    ) -> list[Metrics]:
        """Train; the metrics of every step. Called again, it trains for as long once more."""
        inference = self.config.inference
        if inference.backend == "local":  # VERL samples with vLLM then
            inference = dataclasses.replace(inference, backend="vllm")
        check_run(dataclasses.replace(self.config, inference=inference), self._user)
        per_epoch = num_iters_per_epoch or self._steps_per_epoch()
        training = self.config.training
        num_steps = self.step + (num_epochs or training.num_epochs) * per_epoch
        if training.max_steps is not None and not num_epochs:
            num_steps = self.step + training.max_steps
        folder = self._folder()
        folder.path.mkdir(parents=True, exist_ok=True)
        self.run_folder = folder.path
        with folder.held(), folder.logged(self.config.logging.level):
            first = newest_step(folder.path)
            if first >= num_steps:
                self.metrics_history = MetricsLog(folder.metrics_file).read()
                return self.metrics_history
            self._write_status(folder, "running", num_steps)
            self.config.save(folder.config_file)
            model = self.config.model.local_path or self.config.model.model_name
            self._reporter.begin(RunInfo(folder.path, self._name, model, num_steps, first))
            try:
                self._start(num_steps).fit()
            except BaseException as error:
                self._finish(folder, f"stopped: {error}", num_steps)
                self.cleanup()
                raise
            self._finish(folder, "finished", num_steps)
        return self.metrics_history

    def _finish(self, folder: RunFolder, outcome: str, num_steps: int) -> None:
        log = MetricsLog(folder.metrics_file)
        for step, data in take_metrics(folder.path):
            if "training/global_step" in data:
                log.rewind(step - 1)
                log.append({"step": step, "reward": data["critic/score/mean"], **data})
        self.metrics_history = log.read()
        self._write_status(folder, outcome, num_steps)
        self._reporter.end(outcome)

    def _start(self, num_steps: int) -> VerlRun:
        """Start Ray, VERL's workers and its trainer, which takes 45 seconds and more."""
        self.cleanup()
        assert self.run_folder is not None
        config = self.verl_config(num_steps)
        episodes = episode_components(
            self._user, self.config, self._multi_turn, scores_batches=self._arguments.scores_batches
        )
        training = self.config.training
        datasets = make_datasets(
            self._user,
            name=self._name,
            seed=training.seed,
            batch_size=config.data.train_batch_size,
            num_steps=num_steps,
            num_held_out=training.eval_episodes or _DEFAULT_EVAL_EPISODES,
            has_sampler=self._arguments.train_sampler is not None,
        )
        self._run = VerlRun(
            config, self.run_folder, episodes, datasets, self._arguments, self._user.tokenizer
        )
        return self._run

    def _folder(self) -> RunFolder:
        if self.run_folder is not None:
            return RunFolder(self.run_folder)
        # VERL's checkpoints bring their own learning rate and more: no change would take effect.
        return choose_run_folder(self.config, self._name, self._resume, allow_changes=False)[0]

    def _write_status(self, folder: RunFolder, status: str, num_steps: int) -> None:
        folder.write_status(
            status=status, step=self.step, num_steps=num_steps, environment=self._name
        )

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Return VERL's newest checkpoint, copied to `path` if one is given."""
        if self.run_folder is None:
            raise ConfigError("nothing is trained yet: call fit() first")
        folder, step = self.run_folder / "verl", newest_step(self.run_folder)
        if not step:
            raise ConfigError(f"VERL has saved nothing in {folder}. See checkpoint.save_interval.")
        newest = folder / f"global_step_{step}"
        if path is None:
            return newest
        return Path(shutil.copytree(newest, Path(path) / newest.name, dirs_exist_ok=True))

    def load_checkpoint(self, path: str | Path) -> None:
        """Resume the next `fit` from this checkpoint of VERL's, a folder `global_step_N`."""
        folder = Path(path).expanduser().absolute()
        if not folder.name.startswith("global_step_") or not folder.is_dir():
            raise ConfigError(f"{folder} is no checkpoint of VERL's: a folder global_step_N")
        self._resume_from = folder

    def cleanup(self) -> None:
        """End VERL's workers, and the Ray that was started for them. May be called twice."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()
