"""VERL's two trainers, built from VERL's own roles, resource pools and worker groups, on Ray."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import turnwise
from turnwise.errors import ConfigError, import_extra
from turnwise.models import model_folder
from turnwise.scale.verl.arguments import VerlArguments
from turnwise.scale.verl.dataset import register_datasets
from turnwise.scale.verl.episode_components import EpisodeComponents, pack
from turnwise.scale.verl.files import METRICS_LOG
from turnwise.scale.verl.resources import Resources
from turnwise.scale.verl.targets import OWN_SECTION, PLUGIN

_LOGICAL_CPUS = 32
"""Ray's CPUs on a machine without GPU: VERL asks for many, for actors that mostly wait."""


def prepare_process(on_cpu: bool) -> None:
    """Set VERL's platform and plugin, before VERL is imported."""
    os.environ.update(_environment(on_cpu))
    import_extra("verl", "verl")
    importlib.import_module(PLUGIN)  # VERL may have been imported before, without it
    if on_cpu:
        from verl.plugin.platform.platform_manager import get_platform, set_platform

        from turnwise.scale.verl.cpu.platform import CpuPlatform

        if get_platform().device_name != "cpu":
            set_platform(CpuPlatform())


def _environment(on_cpu: bool) -> dict[str, str]:
    modules = [PLUGIN, *filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","))]
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(dict.fromkeys(modules)),
        "TRANSFER_QUEUE_ENABLE": "1",
        **({"VERL_PLATFORM": "cpu"} if on_cpu else {}),
    }


def _start_ray(config: Any, resources: Resources) -> None:
    """Start a cluster for this process, or connect to the one that the overrides name."""
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        raise ConfigError(
            "Ray is already running in this process, without what VERL's workers need. Call "
            "ray.shutdown() first, or name a cluster: "
            "verl_overrides=['+ray_kwargs.ray_init.address=auto']"
        )
    omega = import_extra("omegaconf", "verl").OmegaConf
    wanted = omega.to_container(config.ray_kwargs.get("ray_init", {}), resolve=True)
    runtime = get_ppo_ray_runtime_env(config)
    env_vars = {**runtime.get("env_vars", {}), **_environment(resources.on_cpu)}
    env_vars["PYTHONPATH"] = _python_path()
    own = {name: value for name, value in wanted.pop("runtime_env", {}).items() if value}
    options: dict[str, Any] = {
        "runtime_env": {**runtime, **own, "env_vars": {**env_vars, **own.get("env_vars", {})}},
        **{name: value for name, value in wanted.items() if value is not None},
    }
    if resources.on_cpu and "address" not in options and "RAY_ADDRESS" not in os.environ:
        num_workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
        options = {
            "address": "local",  # not one that happens to run on this machine
            "num_cpus": _LOGICAL_CPUS + 4 * num_workers,
            "num_gpus": num_workers,
            "include_dashboard": False,
            # Otherwise Ray starts an idle process for each of these CPUs.
            "_system_config": {"prestart_worker_first_driver": False},
            **options,
        }
    ray.init(**options)


def _place_tokenizer(tokenizer: Any, config: Any, run_folder: Path) -> None:
    """Let VERL's workers load the user's tokenizer from a folder that all of them see."""
    if tokenizer is None:
        return
    if isinstance(tokenizer, str):
        place = model_folder(tokenizer)
    else:
        place = str(run_folder / "tokenizer")
        tokenizer.save_pretrained(place)
    for model in (config.actor_rollout_ref.model, config.critic.model):
        model.tokenizer_path = place


def _python_path() -> str:
    """Return a path by which workers import this very turnwise, installed or not."""
    here = str(Path(turnwise.__file__).resolve().parent.parent)
    return os.pathsep.join(
        dict.fromkeys([here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )


def start_run(
    config: Any,
    resources: Resources,
    episodes: EpisodeComponents,
    datasets: tuple[Any, Any],
    arguments: VerlArguments,
    tokenizer: Any = None,
) -> LegacyRun | NewerRun:
    """Start Ray, VERL's workers and the trainer that VERL's config names."""
    with import_extra("omegaconf", "verl").open_dict(config):
        config[OWN_SECTION].components = pack(episodes)
    _place_tokenizer(tokenizer, config, resources.run_folder)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(resources.run_folder / METRICS_LOG)
    make = NewerRun if config.trainer.use_v1 else LegacyRun
    _start_ray(config, resources)
    try:
        return make(config, resources, *datasets, arguments)
    except BaseException:
        import_extra("ray", "verl").shutdown()
        raise


class LegacyRun:
    """VERL's `RayPPOTrainer`."""

    def __init__(
        self, config: Any, resources: Resources, train: Any, held_out: Any, arguments: VerlArguments
    ) -> None:
        from verl.trainer.main_ppo_v0 import BaseTaskRunner
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.dataset.rl_dataset import collate_fn

        from turnwise.scale.verl.batch_rewards import reward_model, scorer_of

        runner = BaseTaskRunner()
        _, worker_group = runner.add_actor_rollout_worker(config)
        runner.add_critic_worker(config)
        pools = arguments.pools(runner, config)
        if resources.on_cpu:
            runner.role_worker_mapping = _on_cpu(runner.role_worker_mapping)
        roles, reward_worker = arguments.workers(runner.role_worker_mapping)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.trainer = RayPPOTrainer(
            config=config,
            tokenizer=model.tokenizer,
            processor=model.processor,
            role_worker_mapping=roles,
            resource_pool_manager=pools,
            ray_worker_group_cls=worker_group,
            train_dataset=train,
            val_dataset=held_out,
            collate_fn=arguments.collate(collate_fn),
            train_sampler=arguments.train_sampler,
            device_name=arguments.device_name,
        )
        self.trainer.init_workers()
        manager = self.trainer.async_rollout_manager
        if reward_worker is not None:
            manager.score = reward_model(reward_worker, config, pools, arguments.device_name)
        elif arguments.reward_fn is not None:
            manager.score = scorer_of(arguments.reward_fn)

    def fit(self) -> None:
        self.trainer.fit()

    def close(self) -> None:
        """Stop Ray, which ends the workers."""
        import_extra("ray", "verl").shutdown()


class NewerRun:
    """VERL's V1 trainer, which keeps its batches in a TransferQueue."""

    def __init__(
        self, config: Any, resources: Resources, train: Any, held_out: Any, _: Any
    ) -> None:
        self._queue = import_extra("transfer_queue", "verl")
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

        register_datasets(train, held_out)
        base: Any = get_trainer_cls(config.trainer.v1.trainer_mode)

        class Trainer(base):  # type: ignore[misc]
            role_worker_mapping: Any

            def _init_resource_pool_mgr(self) -> None:
                super()._init_resource_pool_mgr()
                if resources.on_cpu:
                    self.role_worker_mapping = _on_cpu(self.role_worker_mapping)

        config.transfer_queue.enable = True
        import_extra("omegaconf", "verl").OmegaConf.resolve(config)
        self._queue.init(config.transfer_queue)
        self.trainer = Trainer(config=config)
        self.trainer.init()
        self._manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=self.trainer.get_llm_client(),
            teacher_client=self.trainer.get_teacher_client(),
            reward_loop_worker_handles=self.trainer.get_reward_handles(),
        )

    def fit(self) -> None:
        self.trainer.fit(self._manager)

    def close(self) -> None:
        try:
            self._queue.close()
        finally:
            import_extra("ray", "verl").shutdown()


def _on_cpu(roles: dict[Any, Any]) -> dict[Any, Any]:
    """Return the same roles with workers that need no GPU."""
    import ray
    from verl.trainer.ppo.utils import Role

    from turnwise.scale.verl.cpu.workers import CpuActorRolloutRefWorker, CpuTrainingWorker

    return {
        role: ray.remote(CpuTrainingWorker if role == Role.Critic else CpuActorRolloutRefWorker)
        for role in roles
    }
