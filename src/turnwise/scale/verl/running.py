"""`VerlRun`: Ray, VERL's workers and one of its two trainers, built from VERL's own parts."""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import turnwise
from turnwise.episode.batch_reward import object_array
from turnwise.errors import ConfigError, did_you_mean, import_extra
from turnwise.models import model_folder
from turnwise.reward import RewardFn
from turnwise.scale.verl.components import EpisodeComponents, pack
from turnwise.scale.verl.dataset import HELD_OUT, TRAIN, RegisteredDataset
from turnwise.scale.verl.rewards import function_scorer, reward_model_scorer
from turnwise.scale.verl.settings import AGENT_LOOP_MODULE, OWN_SECTION

METRICS_LOG = "verl-metrics.jsonl"
"""The file in the run folder to which VERL's file logger writes."""


@dataclass(frozen=True)
class VerlArguments:
    """The arguments that a user passes on to VERL's own trainer; None: VERL's own."""

    role_worker_mapping: Mapping[Any, type] = field(default_factory=dict)
    """Worker classes by role (`Role.Critic`) or its name; missing roles keep VERL's.
    A worker of the role RewardModel scores every batch by its `compute_rm_score(data)`."""
    resource_pool_manager: Any = None
    collate_fn: Callable[[list[Any]], Mapping[str, Any]] | None = None
    train_sampler: Any = None
    """Chooses among the rows of the training dataset."""
    device_name: str | None = None
    reward_fn: RewardFn | None = None
    """A reward function of whole batches, called in the process that drives the training."""

    @property
    def refused_by_v1(self) -> list[str]:
        """The names of the arguments that were given and VERL's V1 trainer does not take."""
        names = ("role_worker_mapping", "resource_pool_manager", "collate_fn", "train_sampler")
        given = [name for name in names if getattr(self, name)]
        return given if self.reward_fn is None else [*given, "a reward_fn of batches"]

    @property
    def scores_batches(self) -> bool:
        """Whether the driver scores whole batches; the episodes then have no rewards."""
        roles = {getattr(role, "name", role) for role in self.role_worker_mapping}
        return "RewardModel" in roles or self.reward_fn is not None

    def collate(self, rows: list[Any]) -> dict[str, Any]:
        """Make a batch of rows as VERL takes it: lists become arrays, or tensors."""
        assert self.collate_fn is not None
        batch = dict(self.collate_fn(rows))
        for name, column in batch.items():
            if isinstance(column, list | tuple):
                is_tensors = column and all(isinstance(item, torch.Tensor) for item in column)
                batch[name] = torch.stack(list(column)) if is_tensors else object_array(column)
        return batch


class VerlRun:
    """VERL's `RayPPOTrainer`, or its V1 trainer, with workers on a Ray that was started for it."""

    trainer: Any

    def __init__(
        self,
        config: Any,
        run_folder: Path,
        episodes: EpisodeComponents,
        datasets: tuple[Any, Any],
        arguments: VerlArguments,
        tokenizer: Any = None,
    ) -> None:
        self._queue: Any = None
        self._fit_arguments: list[Any] = []
        with import_extra("omegaconf", "verl").open_dict(config):
            config[OWN_SECTION].components = pack(episodes)
        if tokenizer is not None:
            path = str(run_folder / "tokenizer")  # all of VERL's workers see it
            if isinstance(tokenizer, str):
                path = model_folder(tokenizer)
            else:
                tokenizer.save_pretrained(path)
            for model in (config.actor_rollout_ref.model, config.critic.model):
                model.tokenizer_path = path
        os.environ["VERL_FILE_LOGGER_PATH"] = str(run_folder / METRICS_LOG)
        _start_ray(config)
        try:
            if config.trainer.use_v1:
                self._start_v1(config, *datasets)
            else:
                self._start_legacy(config, *datasets, arguments)
        except BaseException:  # Ctrl-C too: no worker is left behind
            self.close()
            raise

    def _start_legacy(
        self, config: Any, train: Any, held_out: Any, arguments: VerlArguments
    ) -> None:
        import ray
        from verl.trainer.main_ppo_v0 import BaseTaskRunner
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.trainer.ppo.utils import Role
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.dataset.rl_dataset import collate_fn

        runner = BaseTaskRunner()
        _, worker_group = runner.add_actor_rollout_worker(config)
        runner.add_critic_worker(config)
        workers = runner.role_worker_mapping
        actors = (Role.ActorRollout, Role.ActorRolloutRef)
        for key, worker in arguments.role_worker_mapping.items():
            role = find_role(key)
            runner.mapping.setdefault(role, "global_pool")
            if role in actors:
                # The actor's worker may hold the reference too; its role then has another name.
                role = next(name for name in workers if name in actors)
            workers[role] = ray.remote(worker) if isinstance(worker, type) else worker
        reward_worker = workers.pop(Role.RewardModel, None)
        pools = arguments.resource_pool_manager or runner.init_resource_pool_mgr(config)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.trainer = RayPPOTrainer(
            config=config,
            tokenizer=model.tokenizer,
            processor=model.processor,
            role_worker_mapping=workers,
            resource_pool_manager=pools,
            ray_worker_group_cls=worker_group,
            train_dataset=train,
            val_dataset=held_out,
            collate_fn=collate_fn if arguments.collate_fn is None else arguments.collate,
            train_sampler=arguments.train_sampler,
            device_name=arguments.device_name,
        )
        self.trainer.init_workers()
        manager = self.trainer.async_rollout_manager
        if reward_worker is not None:
            device = arguments.device_name or config.trainer.device
            manager.score = reward_model_scorer(reward_worker, config, pools, device)
        elif arguments.reward_fn is not None:
            manager.score = function_scorer(arguments.reward_fn)

    def _start_v1(self, config: Any, train: Any, held_out: Any) -> None:
        """Start VERL's V1 trainer, which keeps its batches in a TransferQueue."""
        queue = import_extra("transfer_queue", "verl")
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

        RegisteredDataset.registered.update({TRAIN: train, HELD_OUT: held_out})
        config.transfer_queue.enable = True
        import_extra("omegaconf", "verl").OmegaConf.resolve(config)
        queue.init(config.transfer_queue)
        self._queue = queue
        trainer_class: Any = get_trainer_cls(config.trainer.v1.trainer_mode)
        self.trainer = trainer_class(config=config)
        self.trainer.init()
        manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=self.trainer.get_llm_client(),
            teacher_client=self.trainer.get_teacher_client(),
            reward_loop_worker_handles=self.trainer.get_reward_handles(),
        )
        self._fit_arguments = [manager]

    def fit(self) -> None:
        """Train until VERL is done."""
        self.trainer.fit(*self._fit_arguments)

    def close(self) -> None:
        """Stop Ray, which ends the workers."""
        try:
            if self._queue is not None:
                self._queue.close()
        finally:
            import_extra("ray", "verl").shutdown()


def _start_ray(config: Any) -> None:
    """Start a cluster for this process, or connect to the one that the overrides name."""
    import ray
    from verl.plugin.platform import get_platform
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    omega = import_extra("omegaconf", "verl").OmegaConf
    wanted = omega.to_container(config.ray_kwargs.get("ray_init", {}), resolve=True)
    is_elsewhere = bool(wanted.get("address")) or "RAY_ADDRESS" in os.environ
    if not is_elsewhere and not get_platform().is_available():
        raise ConfigError(
            "VERL trains on GPUs, and torch sees none on this machine. Name a cluster that has "
            "them with ray.address, or train with engine='local'."
        )
    if ray.is_initialized():
        raise ConfigError(
            "Ray already runs in this process, without what VERL's workers need. Call "
            "ray.shutdown() first, or pass verl_overrides=['+ray_kwargs.ray_init.address=auto']"
        )
    importlib.import_module(AGENT_LOOP_MODULE)  # VERL may have been imported without it
    # A platform for VERL comes first: the first import of ours asks for it.
    modules = [*os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","), AGENT_LOOP_MODULE]
    # Workers import this very turnwise, installed or not.
    source = str(Path(turnwise.__file__).resolve().parent.parent)
    python_path = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    runtime = get_ppo_ray_runtime_env(config)
    users = {name: value for name, value in wanted.pop("runtime_env", {}).items() if value}
    env_vars = {
        **runtime.get("env_vars", {}),
        "VERL_USE_EXTERNAL_MODULES": ",".join(dict.fromkeys(filter(None, modules))),
        "TRANSFER_QUEUE_ENABLE": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, python_path))),
        **users.get("env_vars", {}),
    }
    ray.init(
        runtime_env={**runtime, **users, "env_vars": env_vars},
        **{name: value for name, value in wanted.items() if value is not None},
    )


def find_role(key: Any) -> Any:
    """Return a role of VERL's, given itself or its name; in older texts Critic is CriticValue."""
    from verl.trainer.ppo.utils import Role

    name = "Critic" if key == "CriticValue" else getattr(key, "name", key)
    if name not in Role.__members__:
        hint = did_you_mean(str(key), Role.__members__)
        raise ConfigError(f"role_worker_mapping got the role {key!r}. {hint}")
    return Role[name]
