"""`CustomRayPPOTrainer`: the same environment and reward, trained by VERL."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode import EpisodeLimits, MultiTurnInferenceEngine
from turnwise.episode.options import ParserChoice
from turnwise.errors import CheckpointError, ConfigError, TrainingStopped, import_extra
from turnwise.models import model_folder
from turnwise.progress.lines import LineReporter
from turnwise.reward import RewardFn, batch_type
from turnwise.runs.choose_folder import choose_run_folder
from turnwise.runs.doctor import Doctor
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import Resume, RunFolder
from turnwise.scale.verl.compose import check, compose
from turnwise.scale.verl.dataset import CustomEnvironmentDataset
from turnwise.scale.verl.given import GivenParts
from turnwise.scale.verl.handed import HELD_OUT, TRAIN
from turnwise.scale.verl.machine import find_machine
from turnwise.scale.verl.names import PARTS
from turnwise.scale.verl.parts import pack, parts_of
from turnwise.scale.verl.running import LegacyRun, NewerRun, prepare_process, start_ray
from turnwise.scale.verl.settings import refuse_mix, to_verl_config
from turnwise.tools import Tool, ToolRegistry
from turnwise.trainer.components import UserComponents
from turnwise.trainer.reporter import Metrics, Reporter, RunInfo, choose_reporter
from turnwise.trainer.rollout import Rows

_EVALUATED = 32
_LOGGED = "verl-metrics.jsonl"
_LOG = logging.getLogger("turnwise")


class CustomRayPPOTrainer:
    """Trains with VERL's own `RayPPOTrainer`, or its V1 trainer.

    The arguments are those of `turnwise.Trainer`; `verl_overrides` are written as VERL's command
    line takes them, such as `"trainer.use_v1=true"`, and stand above all else. Of a
    `multi_turn_engine` the turns, the system prompt and the tools are taken.

    VERL's own arguments are passed on to its `RayPPOTrainer`: `role_worker_mapping` (worker
    classes by role; others stay as VERL has them, and one for RewardModel scores every batch),
    `resource_pool_manager`, `collate_fn`, `train_sampler` (over the rows of `train_dataset`) and
    `device_name`; `val_dataset` is another name for `eval_dataset`. A `CustomEnvironmentDataset`
    as `train_dataset` is taken as it is, and its environment is played.

    VERL prints each step to the console itself, unless `reporter` is None or an object, which is
    told of the steps when VERL is done.
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
        if device_name is not None:
            model = dataclasses.replace(self.config.model, device=device_name)
            self.config = dataclasses.replace(self.config, model=model)
        eval_dataset = val_dataset if eval_dataset is None else eval_dataset
        chosen = dataset if dataset is not None else train_dataset
        if environment is None and isinstance(chosen, CustomEnvironmentDataset):
            environment = chosen.environment
        self.metrics_history: list[Metrics] = []
        """The metrics of each step, under VERL's names, and `step` and `reward`."""
        self.run_folder: Path | None = None
        self._parts = UserComponents(
            environment,
            reward_fn,
            chosen,
            eval_dataset,
            tools,
            parser,
            system_prompt,
            tokenizer,
            None,
            limits,
        ).filled_from(self.config)
        self._verl_prints = reporter == "auto"
        self._reporter = LineReporter() if reporter == "auto" else choose_reporter(reporter)[0]
        self._multi_turn = multi_turn_engine
        self._resume = resume
        self._overrides = list(verl_overrides)
        reward_fn = self._parts.reward_fn
        self._given = GivenParts(
            role_worker_mapping or {},
            resource_pool_manager,
            collate_fn,
            train_sampler,
            device_name,
            None if batch_type(reward_fn) is None else reward_fn,
        )
        self._has_verl_rows = isinstance(self._parts.dataset, CustomEnvironmentDataset)
        if self._has_verl_rows:  # it makes its own rows, those of evaluations too
            self._parts = self._parts.without_held_out()
        self._rows: Rows | None = self._parts.train_rows
        has_eval_rows = not self._has_verl_rows or self._parts.eval_dataset is not None
        self._eval_rows: Rows | None = self._parts.eval_rows if has_eval_rows else None
        # The same environment by its class and by `path.py:Class` is the same run.
        name = self._parts.environment_name
        self._name = f"{name.rpartition(':')[2] if '.py:' in name else name}-verl"
        self._resume_from: Path | None = None
        self._run: LegacyRun | NewerRun | None = None
        self._has_ray = False

    @property
    def verl_trainer(self) -> Any:
        """VERL's own trainer, while its workers run: after `fit` and before `cleanup`."""
        return None if self._run is None else self._run.trainer

    @property
    def step(self) -> int:
        """Steps that are done."""
        return int(self.metrics_history[-1]["step"]) if self.metrics_history else 0

    # ---- VERL's config ----

    def dry_run(self) -> str:
        """VERL's whole config as it would run, in YAML; nothing is started."""
        text: str = import_extra("omegaconf", "verl").OmegaConf.to_yaml(
            self.verl_config(), resolve=True
        )
        return text

    def verl_config(self, num_steps: int | None = None, extra: Sequence[str] = ()) -> Any:
        """VERL's whole config; `extra` are overrides that stand above the user's."""
        machine = find_machine(self.config, self.run_folder or self._folder().path)
        prepare_process(machine.on_cpu)
        limits = parts_of(self._parts, self.config, self._multi_turn).limits
        settings = to_verl_config(self.config, machine, num_steps, self._steps_per_epoch(), limits)
        settings |= self._own_settings()
        config = compose(settings, [*self._overrides, *extra])
        self._check(config)
        check(config)
        return config

    def _own_settings(self) -> dict[str, Any]:
        """What is ours in VERL's config, whatever the user's settings."""
        found: dict[str, Any] = {
            "data.train_files": TRAIN,
            "data.val_files": HELD_OUT,
            "data.custom_cls.path": "pkg://turnwise.scale.verl.handed",
            "data.custom_cls.name": "HandedDataset",
            f"{PARTS}.drops_groups": self.config.training.on_error == "drop_group",
        }
        if not self._verl_prints:
            found["trainer.logger"] = ["file", *self.config.logging.sinks]
        if self._given.train_sampler is not None or self._has_verl_rows:
            # As many passes as it takes; the steps are counted by themselves.
            found["trainer.total_epochs"] = 10**6
        if self._resume_from is not None:
            found["trainer.resume_mode"] = "resume_path"
            found["trainer.resume_from_path"] = str(self._resume_from)
        return found

    def _check(self, config: Any) -> None:
        on_error = self.config.training.on_error
        if config.trainer.use_v1 and on_error != "retry":
            raise ConfigError(
                f"training.on_error got {on_error!r}. VERL's V1 trainer continues without the "
                "episodes that failed; take 'retry', or trainer.use_v1=false."
            )
        if config.trainer.use_v1 and self._given.names:
            raise ConfigError(
                f"VERL's V1 trainer makes its own parts: {', '.join(self._given.names)} cannot be "
                "given to it. Leave them out, or train with trainer.use_v1=false."
            )
        rollout = config.actor_rollout_ref.rollout
        episodes = config.data.train_batch_size * rollout.n
        if not config.trainer.use_v1 and episodes % rollout.agent.num_workers:
            raise ConfigError(
                f"ray.num_actors got {rollout.agent.num_workers}, and VERL deals the {episodes} "
                "episodes of a step out evenly. Take a number that divides them."
            )

    def _steps_per_epoch(self) -> int:
        training = self.config.training
        if self._rows is None:
            return training.steps_per_epoch
        return max(1, -(-len(self._rows) // training.batch_size))

    # ---- training ----

    def fit(
        self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None
    ) -> list[Metrics]:
        """Train; the metrics of every step. Called again, it trains for as long once more."""
        per_epoch = num_iters_per_epoch or self._steps_per_epoch()
        num_steps = self.step + (num_epochs or self.config.training.num_epochs) * per_epoch
        folder = self._folder()
        folder.path.mkdir(parents=True, exist_ok=True)
        self.run_folder = folder.path
        with folder.held(), folder.logged(self.config.logging.level):
            if _saved_steps(folder.path) >= num_steps:
                self.metrics_history = MetricsLog(folder.metrics_file).read()
                return self.metrics_history
            self._write_status(folder, "running", num_steps)
            self.config.save(folder.config_file)
            model = self.config.model.local_path or self.config.model.model_name
            first = _saved_steps(folder.path)
            self._reporter.begin(RunInfo(folder.path, self._name, model, num_steps, first))
            try:
                run = self._start(num_steps)
                run.fit()
            except BaseException as error:
                self._read_metrics(folder)
                self._end(folder, f"stopped: {error}", num_steps, first)
                self.cleanup()
                raise
            self._read_metrics(folder)
            self._end(folder, "finished", num_steps, first)
        return self.metrics_history

    def _end(self, folder: RunFolder, outcome: str, num_steps: int, first: int) -> None:
        """Record how it ended, and report it: the steps if VERL did not, the doctor's findings."""
        self._write_status(folder, outcome, num_steps)
        doctor = Doctor()
        for metrics in self.metrics_history:
            doctor.look(metrics)
            if not self._verl_prints and metrics["step"] > first:
                self._reporter.step(metrics)
        self._reporter.end(outcome)
        for finding in doctor.present():
            self._reporter.say(f"doctor: {finding}")

    def _start(
        self, num_steps: int, num_held_out: int | None = None, extra: Sequence[str] = ()
    ) -> LegacyRun | NewerRun:
        """Ray, VERL's workers, and its trainer: 45 seconds and more."""
        self.cleanup()
        assert self.run_folder is not None
        config = self.verl_config(num_steps, extra)
        machine = find_machine(self.config, self.run_folder)
        self._send_parts(config)
        self._place_tokenizer(config)
        os.environ["VERL_FILE_LOGGER_PATH"] = str(self.run_folder / _LOGGED)
        start_ray(config, machine)
        self._has_ray = True
        make = NewerRun if config.trainer.use_v1 else LegacyRun
        number = num_held_out or self.config.training.eval_episodes or _EVALUATED
        datasets = self._datasets(config, num_steps, number)
        self._run = make(config, machine, *datasets, self._given)
        return self._run

    def _send_parts(self, config: Any) -> None:
        scores_batches = self._given.scores_batches
        packed = pack(
            parts_of(self._parts, self.config, self._multi_turn, scores_batches=scores_batches)
        )
        with import_extra("omegaconf", "verl").open_dict(config):
            config[PARTS].parts = packed

    def _place_tokenizer(self, config: Any) -> None:
        """VERL's workers load the tokenizer from a place that all of them see."""
        tokenizer = self._parts.tokenizer
        if tokenizer is None:
            return
        assert self.run_folder is not None
        if isinstance(tokenizer, str):
            place = model_folder(tokenizer)
        else:
            place = str((self.run_folder / "tokenizer").absolute())
            tokenizer.save_pretrained(place)
        for model in (config.actor_rollout_ref.model, config.critic.model):
            model.tokenizer_path = place

    def _datasets(self, config: Any, num_steps: int, num_held_out: int) -> tuple[Any, Any]:
        training = self.config.training
        source = self._parts.environment
        assert source is not None
        size = config.data.train_batch_size
        options: dict[str, Any] = {"seed": training.seed, "name": self._name}
        train: Any = self._rows
        if isinstance(train, CustomEnvironmentDataset):
            train = train.without_tokens()
        else:
            # One step more than there is: VERL does not resume a loader that had come to its end.
            num_starts = (num_steps + 1) * size
            in_order = self._rows is not None and self._given.train_sampler is not None
            train = CustomEnvironmentDataset(
                source,
                size=len(train) if in_order else num_starts,
                rows=train,
                batch_size=size,
                in_order=in_order,
                **options,
            )
        held_out: Any = self._eval_rows
        if isinstance(held_out, CustomEnvironmentDataset):
            held_out = held_out.without_tokens()
        else:
            held_out = CustomEnvironmentDataset(
                source, size=num_held_out, rows=held_out, held_out=True, **options
            )
        return train, held_out

    def _folder(self) -> RunFolder:
        if self.run_folder is not None:
            return RunFolder(self.run_folder)
        # VERL's checkpoints bring their own learning rate and more: no change would take effect.
        return choose_run_folder(self.config, self._name, self._resume, allow_changes=False)[0]

    def _write_status(self, folder: RunFolder, status: str, num_steps: int) -> None:
        folder.write_status(
            status=status, step=self.step, num_steps=num_steps, environment=self._name
        )

    def _read_metrics(self, folder: RunFolder) -> None:
        """What VERL logged in this process, joined to what was there before."""
        log = MetricsLog(folder.metrics_file)
        for step, data in _logged(folder.path / _LOGGED):
            if "training/global_step" in data:
                log.rewind(step - 1)
                log.append({"step": step, "reward": data["critic/score/mean"], **data})
        self.metrics_history = log.read()

    # ---- the rest of a trainer ----

    def evaluate(self, num_episodes: int | None = None, greedy: bool = True) -> Metrics:
        """Play on held-out starts with VERL's newest checkpoint; `reward`, and VERL's own names."""
        folder = self._folder()
        folder.path.mkdir(parents=True, exist_ok=True)
        self.run_folder = folder.path
        extra = ["trainer.val_before_train=true", "trainer.val_only=true"]
        if not greedy:
            place = "actor_rollout_ref.rollout.val_kwargs"
            inference = self.config.inference
            extra += [
                f"{place}.do_sample=true",
                f"{place}.temperature={inference.temperature}",
                f"{place}.top_p={inference.top_p}",
            ]
        try:
            self._start(max(_saved_steps(folder.path), 1), num_episodes, extra).fit()
        finally:
            self.cleanup()
        logged = _logged(folder.path / _LOGGED)
        if not logged:
            raise TrainingStopped("VERL's evaluation logged no metrics. Look at its output above.")
        figures = logged[-1][1]
        means = {
            name.split("/")[-2]: value
            for name, value in figures.items()
            if name.endswith("/mean@1")
        }
        return {**means, **figures}

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """The newest checkpoint of VERL's, copied to `path` if one is given."""
        if self.run_folder is None:
            raise ConfigError("nothing is trained yet: call fit() first")
        folder, step = self.run_folder / "verl", _saved_steps(self.run_folder)
        if not step:
            raise ConfigError(f"VERL has saved nothing in {folder}. See checkpoint.save_interval.")
        found = folder / f"global_step_{step}"
        if path is None:
            return found
        place = Path(path) / found.name
        shutil.copytree(found, place, dirs_exist_ok=True)
        return place

    def load_checkpoint(self, path: str | Path) -> None:
        """The next `fit` goes on from this checkpoint of VERL's, a folder `global_step_N`."""
        place = Path(path).expanduser().absolute()
        if not place.name.startswith("global_step_") or not place.is_dir():
            raise ConfigError(f"{place} is no checkpoint of VERL's: a folder global_step_N")
        self._resume_from = place

    def cleanup(self) -> None:
        """End VERL's workers, and the Ray that was started for them."""
        run, self._run = self._run, None
        has_ray, self._has_ray = self._has_ray, False
        try:
            if run is not None:
                run.close()
        finally:
            if has_ray:
                import_extra("ray", "verl").shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _logged(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """What VERL's file logger wrote, step by step; it is gone afterwards.

    A line that cannot be read, such as the half line of a process that was killed, is reported and
    left out.
    """
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            entry = json.loads(line)
            entries.append((int(entry["step"]), dict(entry["data"])))
        except (ValueError, TypeError, KeyError):
            _LOG.warning("%s, line %d: no metrics of a step, left out: %.80s", path, number, line)
    path.unlink()
    return entries


def _saved_steps(run_folder: Path) -> int:
    """The step of VERL's newest checkpoint; 0 if there is none."""
    latest = run_folder / "verl" / "latest_checkpointed_iteration.txt"
    if not latest.exists():
        return 0
    text = latest.read_text(errors="replace").strip()
    if not text.isdecimal():
        raise CheckpointError(
            f"{latest} got {text!r:.80}, expected the step of VERL's newest checkpoint. Write the "
            f"number of the newest folder global_step_N in {latest.parent} into it, or remove it "
            "to begin anew."
        )
    return int(text)
