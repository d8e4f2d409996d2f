"""VERL's two trainers, built with VERL's own parts: roles, resource pools, worker groups."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import turnwise
from turnwise.errors import ConfigError, import_extra
from turnwise.scale.verl.given import GivenParts
from turnwise.scale.verl.handed import hand_over
from turnwise.scale.verl.machine import Machine
from turnwise.scale.verl.names import PLUGIN

_LOGICAL_CPUS = 32
"""Ray's count on a CPU: VERL asks for more than a laptop has, for actors that mostly wait."""


def prepare_process(on_cpu: bool) -> None:
    """Before VERL is imported: which platform it is on, and what of ours it loads."""
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


def start_ray(config: Any, machine: Machine) -> None:
    """A cluster of this process's own, or the one whose address the overrides name."""
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
    env_vars = {**runtime.get("env_vars", {}), **_environment(machine.on_cpu)}
    env_vars["PYTHONPATH"] = _python_path()
    own = {name: value for name, value in wanted.pop("runtime_env", {}).items() if value}
    options: dict[str, Any] = {
        "runtime_env": {**runtime, **own, "env_vars": {**env_vars, **own.get("env_vars", {})}},
        **{name: value for name, value in wanted.items() if value is not None},
    }
    if machine.on_cpu and "address" not in options and "RAY_ADDRESS" not in os.environ:
        num_workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
        options = {
            "address": "local",  # whatever else runs on this machine
            "num_cpus": _LOGICAL_CPUS + 4 * num_workers,
            "num_gpus": num_workers,
            "include_dashboard": False,
            # Else Ray starts an idle process for each of these CPUs, real or not.
            "_system_config": {"prestart_worker_first_driver": False},
            **options,
        }
    ray.init(**options)


def _python_path() -> str:
    """The workers find this very turnwise, installed or not."""
    here = str(Path(turnwise.__file__).resolve().parent.parent)
    return os.pathsep.join(
        dict.fromkeys([here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )


class LegacyRun:
    """VERL's `RayPPOTrainer`."""

    def __init__(
        self, config: Any, machine: Machine, train: Any, held_out: Any, given: GivenParts
    ) -> None:
        from verl.trainer.main_ppo_v0 import BaseTaskRunner
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.utils.config import omega_conf_to_dataclass
        from verl.utils.dataset.rl_dataset import collate_fn

        from turnwise.scale.verl.batch_rewards import reward_model, scorer_of

        runner = BaseTaskRunner()
        _, worker_group = runner.add_actor_rollout_worker(config)
        runner.add_critic_worker(config)
        pools = given.pools(runner, config)
        if machine.on_cpu:
            runner.role_worker_mapping = _on_cpu(runner.role_worker_mapping)
        roles, judge = given.workers(runner.role_worker_mapping)
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
            collate_fn=given.collate(collate_fn),
            train_sampler=given.train_sampler,
            device_name=given.device_name,
        )
        self.trainer.init_workers()
        manager = self.trainer.async_rollout_manager
        if judge is not None:
            manager.score = reward_model(judge, config, pools, given.device_name)
        elif given.reward_fn is not None:
            manager.score = scorer_of(given.reward_fn)

    def fit(self) -> None:
        self.trainer.fit()

    def close(self) -> None:
        """Its workers end with Ray."""


class NewerRun:
    """VERL's V1 trainer, which keeps its batches in a TransferQueue."""

    def __init__(self, config: Any, machine: Machine, train: Any, held_out: Any, _: Any) -> None:
        self._queue = import_extra("transfer_queue", "verl")
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

        hand_over(train, held_out)
        base: Any = get_trainer_cls(config.trainer.v1.trainer_mode)

        class Trainer(base):  # type: ignore[misc]
            role_worker_mapping: Any

            def _init_resource_pool_mgr(self) -> None:
                super()._init_resource_pool_mgr()
                if machine.on_cpu:
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
        self._queue.close()


def _on_cpu(roles: dict[Any, Any]) -> dict[Any, Any]:
    """The same roles, played by workers that need no GPU."""
    import ray
    from verl.trainer.ppo.utils import Role

    from turnwise.scale.verl.cpu.workers import CpuActorRolloutRefWorker, CpuTrainingWorker

    return {
        role: ray.remote(CpuTrainingWorker if role == Role.Critic else CpuActorRolloutRefWorker)
        for role in roles
    }
