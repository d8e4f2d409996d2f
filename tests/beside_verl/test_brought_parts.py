"""What a user may bring to VERL's trainer, and VERL's `DataProto` in ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from verl.protocol import DataProto
from verl.trainer.ppo.utils import Role

from beside_verl.script_runs import ON_CPU, process_environment
from turnwise import (
    ConfigError,
    ConfigStore,
    CustomGameEnvironment,
    CustomRayPPOTrainer,
    EnvironmentRewardWrapper,
    RewardManager,
    Trainer,
    VLLMRolloutSPMD,
    collate_fn,
    create_inference_engine,
)
from turnwise.errors import RewardError
from turnwise.reward import RewardBatch, batch_type
from turnwise.scale.verl.rewards import function_scorer, score_batch
from turnwise.scale.verl.running import find_role

SCRIPT = Path(__file__).parent / "brought_parts.py"


def run_script(kind: str, output: Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), kind, str(output), *ON_CPU],
        env=process_environment(output),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    found: dict[str, Any] = json.loads((output / "seen.json").read_text())
    return found


def test_a_function_of_batches_a_sampler_and_pools_in_a_real_run(tmp_path):
    found = run_script("function", tmp_path)
    # The sampler's order, and once more from its beginning when the rows are over.
    states = [[5.0, 4.0], [3.0, 2.0], [1.0, 0.0], [5.0, 4.0]]
    assert found["seen"] == [["verl.protocol", rewards] for rewards in states]
    assert found["rewards"] == [4.5, 2.5, 0.5, 4.5]
    assert (found["device"], found["pools"]) == ("cpu", ["own_pool"])
    assert found["tokenizer"].endswith("/tokenizer")


def test_a_reward_model_and_a_trainer_of_ones_own_in_a_real_run(tmp_path):
    found = run_script("model", tmp_path)
    # Two turns of at most six tokens, each worth one; the environment's 0.25 are replaced.
    assert all(2.0 <= reward <= 12.0 and reward % 0.5 == 0 for reward in found["rewards"])
    assert found["turns"] == [2.0] * 4


# ---- roles and pools ----


def test_roles_by_themselves_and_by_name():
    names = ("ActorRollout", "Critic", "RefPolicy", "RewardModel")
    assert [find_role(name) for name in names] == [Role[name] for name in names]
    assert find_role(Role.Critic) is find_role("CriticValue") is Role.Critic
    with pytest.raises(ConfigError, match=r"got the role 'Kritic'.*Critic"):
        find_role("Kritic")


def test_the_v1_trainer_takes_none_of_them(tmp_path):
    config = ConfigStore.load(overrides=[f"checkpoint.output_dir={tmp_path}"])
    trainer = CustomRayPPOTrainer(
        config,
        "guess-number",
        collate_fn=collate_fn,
        reward_fn=scores,
        verl_overrides=["trainer.use_v1=true"],
    )
    with pytest.raises(ConfigError, match=r"does not take collate_fn, a reward_fn of batches"):
        trainer.dry_run()


# ---- DataProto ----


def scores(data: DataProto) -> torch.Tensor:
    assert isinstance(data, DataProto)
    return torch.tensor([float(state) for state in data.batch["state"]])


def test_our_trainer_calls_a_function_of_data_protos(tmp_path):
    assert batch_type(scores) is not None
    rows = [{"prompt": f"Say {n}.", "state": n} for n in range(4)]
    config = ConfigStore.load(
        overrides=[
            f"checkpoint.output_dir={tmp_path}",
            "training.batch_size=4",
            "training.num_epochs=1",
            "inference.max_tokens=4",
        ]
    )
    with Trainer(config, train_dataset=rows, reward_fn=scores) as trainer:
        (metrics,) = trainer.fit()
    assert metrics["reward"] == 1.5


def test_managers_score_the_responses_of_a_data_proto():
    tokenizer = create_inference_engine("tiny", "scripted").tokenizer
    texts = ["move north", "mumble now"]
    data = DataProto.from_dict({"responses": torch.tensor([tokenizer.encode(t) for t in texts])})
    game = CustomGameEnvironment({"max_steps": 5})
    assert EnvironmentRewardWrapper(game, tokenizer=tokenizer)(data).tolist() == pytest.approx(
        [0.1, -0.1]
    )
    assert RewardManager(game, tokenizer=tokenizer)(data).tolist() == pytest.approx([0.5, -0.2])


def test_a_rollout_gives_a_data_proto_for_a_data_proto():
    with create_inference_engine("tiny") as engine:
        texts = ["One two", "Up now!"]
        prompts = torch.tensor([engine.tokenizer.encode(text) for text in texts])
        data = DataProto.from_dict(
            {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)},
            {"uid": np.array(["a", "b"], dtype=object)},
        )
        found = VLLMRolloutSPMD(engine, max_tokens=5).generate_sequences(data)
        expected = engine.generate(texts, max_tokens=5)
    assert isinstance(found, DataProto)
    assert found.batch["responses"].tolist() == expected.tokens.tolist()
    assert found.non_tensor_batch["uid"].tolist() == ["a", "b"]


def played(num_rows: int) -> tuple[Any, Any]:
    mask = torch.tensor([[1, 1, 0, 1, 0]] * num_rows)
    output = DataProto.from_dict(
        {"responses": mask * 7, "response_mask": mask, "rm_scores": torch.zeros(num_rows, 5)},
        {"trajectory": _objects([SimpleNamespace(actions=[str(n)]) for n in range(num_rows)])},
    )
    starts = [{"seed": n, "task": {"state": n}} for n in range(num_rows)]
    uids = _objects([str(n) for n in range(num_rows)])
    return output, SimpleNamespace(non_tensor_batch={"extra_info": _objects(starts), "uid": uids})


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def test_rewards_sit_on_the_last_sampled_token_and_failures_are_not_shown():
    output, prompts = played(3)
    score_batch(function_scorer(scores), output, prompts, [None, "it broke", None])
    assert output.batch["rm_scores"].tolist() == [[0.0] * 5, [0.0] * 5, [0, 0, 0, 2.0, 0]]
    assert "trajectory" not in output.non_tensor_batch

    def by_token(data: RewardBatch) -> torch.Tensor:
        assert isinstance(data, RewardBatch)
        return data.batch["response_mask"].float()

    output, prompts = played(2)
    score_batch(function_scorer(by_token), output, prompts, [None, None])
    assert torch.equal(output.batch["rm_scores"], output.batch["response_mask"].float())


def test_what_is_no_reward_is_told():
    def too_many(data: DataProto) -> torch.Tensor:
        return torch.ones(7)

    def endless(data: DataProto) -> torch.Tensor:
        return torch.full((2,), torch.inf)

    for function, told in ((too_many, r"shape \(7,\) for a batch of 2"), (endless, "not finite")):
        output, prompts = played(2)
        with pytest.raises(RewardError, match=told):
            score_batch(function_scorer(function), output, prompts, [None, None])
