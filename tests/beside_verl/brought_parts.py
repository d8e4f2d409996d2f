"""A user's script that brings parts of VERL's trainer: `brought_parts.py KIND OUTPUT OVERRIDES`.

`function`: a reward function of `DataProto`, a sampler, `collate_fn` and resource pools.
`model`: a trainer of one's own on a dataset of the environment, with a worker for RewardModel.
What was seen is written to OUTPUT/seen.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.ray_trainer import ResourcePoolManager
from verl.trainer.ppo.utils import Role

from turnwise import (
    BaseEnvironment,
    ConfigStore,
    CustomEnvironmentDataset,
    CustomRayPPOTrainer,
    EnvironmentRewardWrapper,
    PromptDataset,
    collate_fn,
    create_trainer,
)
from turnwise.models import load_tokenizer

KIND, OUTPUT, OVERRIDES = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
TOKENIZER = load_tokenizer("tiny")
SEEN: list[Any] = []


class Talk(BaseEnvironment):
    """Two turns of anything."""

    def reset(self, seed: int | None = None) -> str:
        self.step_count = 0
        return f"Talk, {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.step_count += 1
        return "Go on.", 0.25, self.step_count == 2, {}

    def get_state_description(self) -> str:
        return "talking"


class StateReward:
    """Worth the number in the dataset's row; looks whether all columns are about one episode."""

    def __call__(self, data: DataProto) -> torch.Tensor:
        rewards = []
        for i in range(len(data.batch)):
            ids = data.batch["responses"][i][data.batch["response_mask"][i].bool()]
            text = TOKENIZER.decode(ids, skip_special_tokens=True)
            assert text == data.non_tensor_batch["response_texts"][i]
            assert data.non_tensor_batch["trajectory"][i].actions == [text]
            rewards.append(float(data.batch["state"][i].removeprefix("state ")))
        SEEN.append([type(data).__module__, rewards])
        return torch.tensor(rewards)


class Backwards(Sampler[int]):
    """The last row first."""

    def __init__(self, dataset: Any) -> None:
        self.size = len(dataset)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 1, -1, -1))


class LengthModel(Worker):  # type: ignore[misc]
    """A reward model: every sampled token is worth one."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.is_ready = False

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        self.is_ready = True

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)  # type: ignore[untyped-decorator]
    def compute_rm_score(self, data: DataProto) -> DataProto:
        assert self.is_ready
        return DataProto.from_dict({"rm_scores": data.batch["response_mask"].float()})


class OwnTrainer(CustomRayPPOTrainer):
    """Puts a dataset and a reward between an environment and VERL's trainer."""

    def __init__(self, config: ConfigStore, environment: Any, tokenizer: Any, **parts: Any) -> None:
        super().__init__(
            config=config,
            tokenizer=tokenizer,
            train_dataset=CustomEnvironmentDataset(environment, tokenizer, size=4),
            reward_fn=EnvironmentRewardWrapper(environment, lambda trajectory: 0.0),
            **parts,
        )

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return super().fit(*args, **kwargs)


def with_a_function(config: ConfigStore) -> CustomRayPPOTrainer:
    dataset = PromptDataset([{"prompt": f"Say {n}.", "state": f"state {n}"} for n in range(6)])
    roles = (Role.ActorRollout, Role.Critic)
    pools = ResourcePoolManager({"own_pool": [1]}, dict.fromkeys(roles, "own_pool"))
    trainer = create_trainer(
        config,
        reward_fn=StateReward(),
        tokenizer=TOKENIZER,
        engine="verl",
        train_dataset=dataset,
        train_sampler=Backwards(dataset),
        collate_fn=collate_fn,
        resource_pool_manager=pools,
        device_name="cpu",
        verl_overrides=OVERRIDES,
    )
    assert isinstance(trainer, CustomRayPPOTrainer)
    return trainer


def with_a_model(config: ConfigStore) -> CustomRayPPOTrainer:
    roles = {"RewardModel": LengthModel}
    return OwnTrainer(
        config, Talk(), TOKENIZER, role_worker_mapping=roles, verl_overrides=OVERRIDES
    )


if __name__ == "__main__":
    settings = [
        f"checkpoint.output_dir={OUTPUT}",
        "training.batch_size=2",
        "training.adv_estimator=reinforce_plus_plus",
        "inference.max_tokens=6",
        "ray.num_actors=1",
        "model.dtype=float32",
    ]
    make = with_a_function if KIND == "function" else with_a_model
    trainer = make(ConfigStore.load(overrides=settings))
    with trainer:
        history = trainer.fit(num_epochs=1, num_iters_per_epoch=4)
        driven = trainer.verl_trainer
        found = {
            "seen": SEEN,
            "rewards": [metrics["reward"] for metrics in history],
            "turns": [metrics["num_turns/mean"] for metrics in history],
            "device": driven.device_name,
            "pools": list(driven.resource_pool_manager.resource_pool_dict),
            "tokenizer": driven.tokenizer.name_or_path,
        }
    (OUTPUT / "seen.json").write_text(json.dumps(found))
