"""Runs the user's script in a process of its own, and reads what it left behind."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

import turnwise

HERE = Path(__file__).parent
SCRIPT = HERE / "user_script.py"
RECORD = "++actor_rollout_ref.rollout.agent.agent_loop_manager_class=recording.RecordingManager"
ON_CPU = [
    "trainer.device=cpu",
    "actor_rollout_ref.rollout.name=turnwise",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile=false",
    "critic.fsdp.use_torch_compile=false",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "critic.strategy=fsdp2",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.model.use_remove_padding=false",
    "critic.model.use_remove_padding=false",
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "++critic.model.override_config.attn_implementation=sdpa",
    "++ray_kwargs.ray_init.num_gpus=1",  # one logical device for the learner
    "++ray_kwargs.ray_init.num_cpus=36",  # VERL asks for many, for actors that mostly wait
    "++ray_kwargs.ray_init.include_dashboard=false",
    # Otherwise Ray starts an idle process for each of these CPUs.
    "++ray_kwargs.ray_init._system_config.prestart_worker_first_driver=false",
]
"""What VERL needs on a machine without GPU, besides `cpu_platform`."""
NUM_STARTS, GROUP_SIZE = 3, 2
NUM_EPISODES = NUM_STARTS * GROUP_SIZE
"""In one step of the script."""


@dataclass
class Ran:
    """What a run of the script left behind; its history is the one at that time."""

    output: Path
    history: list[dict[str, Any]]

    @property
    def run_folder(self) -> Path:
        return self.output / "runs" / "run"

    @property
    def episodes(self) -> list[list[Any]]:
        """What each environment wrote down, in the order in which they closed."""
        lines = (self.output / "environments.jsonl").read_text().splitlines()
        return [json.loads(line)["events"] for line in lines]

    @property
    def batches(self) -> list[dict[str, torch.Tensor]]:
        """What VERL trained on, step by step."""
        return [torch.load(path) for path in sorted(self.output.glob("batch-*.pt"))]


def settings(output: Path, estimator: str, num_steps: int) -> dict[str, Any]:
    return {
        "environment": {
            "name": f"{SCRIPT}:Letters",
            "params": {"log": str(output / "environments.jsonl")},
        },
        "reward": f"{SCRIPT}:doubled",
        "model": {"dtype": "float32"},
        "inference": {"max_tokens": 8, "max_turns": 4},
        "training": {
            "adv_estimator": estimator,
            "batch_size": NUM_STARTS,
            "group_size": GROUP_SIZE,
            "num_epochs": num_steps,
            "steps_per_epoch": 1,
            "learning_rate": 1e-3,
            "kl_loss_coef": 0.01 if estimator == "grpo" else 0.0,
        },
        "checkpoint": {"output_dir": str(output / "runs"), "run_name": "run"},
    }


def process_environment(output: Path) -> dict[str, str]:
    """For a process that finds this turnwise, and one thread is enough for."""
    source = str(Path(turnwise.__file__).parent.parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, str(HERE)]),
        "RECORDED": str(output),
        "OMP_NUM_THREADS": "1",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_PLATFORM": "cpu",
    }


def run_script(output: Path, engine: str, estimator: str, num_steps: int, *overrides: str) -> Ran:
    config = _write_config(output, estimator, num_steps)
    overrides = (*ON_CPU, *overrides) if engine == "verl" else overrides
    return _run([str(SCRIPT), engine, str(config), *overrides], output)


def run_command(output: Path, estimator: str, num_steps: int, *words: str) -> Ran:
    """The same by `turnwise train`, which has the environment and the reward from the file."""
    config = _write_config(output, estimator, num_steps)
    command = ["-m", "turnwise", "train", str(config), "--engine", "verl"]
    return _run([*command, *ON_CPU, *words], output)


def _write_config(output: Path, estimator: str, num_steps: int) -> Path:
    output.mkdir(exist_ok=True)
    config = output / "config.yaml"
    config.write_text(yaml.safe_dump(settings(output, estimator, num_steps)))
    return config


def _run(words: list[str], output: Path) -> Ran:
    result = subprocess.run(
        [sys.executable, *words],
        env=process_environment(output),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,  # a minute or two, where nobody else computes
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    metrics = (output / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    return Ran(output, [json.loads(line) for line in metrics])
