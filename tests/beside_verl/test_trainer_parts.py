"""The small parts around VERL's trainers: what travels, what is left out, what is scored."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from turnwise import (
    BaseEnvironment,
    ConfigError,
    ConfigStore,
    CustomEnvironmentDataset,
    CustomRayPPOTrainer,
    EnvironmentRewardWrapper,
    GuessNumberEnvironment,
    create_trainer,
)
from turnwise.episode import CollectorOptions
from turnwise.errors import TrainingStopped
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams
from turnwise.models import load_tokenizer
from turnwise.scale.verl.agent_loop import ServerEngine, leave_out
from turnwise.scale.verl.components import EpisodeComponents, pack


class Echo(BaseEnvironment):
    """One action; worth its length."""

    def reset(self, seed: int | None = None) -> str:
        return f"Speak, {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return action, float(len(action)), True, {"success": True}

    def get_state_description(self) -> str:
        return "listening"


def parts_with(factory: Any, reward_fn: Any = None) -> EpisodeComponents:
    return EpisodeComponents(factory, CollectorOptions(reward_fn=reward_fn))


# ---- what travels to the workers ----


def test_what_cannot_travel_is_said_with_the_cure():
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to VERL's workers.*reset\(\)"):
        pack(parts_with(lambda: (lock, Echo())[1]))


# ---- VERL's servers as an engine ----


class FakeClient:
    """Answers as VERL's server client does, and keeps what it was asked."""

    def __init__(self, **answer: Any) -> None:
        self.answer = {"log_probs": [-0.5], "token_ids": [9], "stop_reason": "completed", **answer}
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **asked: Any) -> Any:
        self.asked.append({"request_id": request_id, **asked})
        return SimpleNamespace(**self.answer, extra_fields={"global_steps": 4})


def request(length: int, max_tokens: int = 5) -> GenerationRequest:
    return GenerationRequest(
        [1] * length, max_tokens, SamplingParams(0.7, 3, 0.9), frozenset({9}), seed=6, session="s"
    )


def test_a_request_reaches_the_server_as_it_was_meant():
    client = FakeClient()
    engine = ServerEngine(client, "vllm", 10, 8, None)
    result = asyncio.run(engine.sample(request(4)))
    assert (list(result.ids), list(result.log_probs)) == ([9], [-0.5])
    assert (result.finish_reason, result.weight_version) == (FinishReason.STOP, 4)
    asked = client.asked[0]
    assert (asked["request_id"], asked["prompt_ids"]) == ("s", [1] * 4)
    params = asked["sampling_params"]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0.7, 3, 0.9)
    assert (params["max_tokens"], params["stop_token_ids"], params["seed"]) == (5, [9], 6)


def test_the_response_box_is_counted_from_the_end_of_the_opening():
    client = FakeClient(token_ids=[3] * 8, log_probs=[-1.0] * 8)
    engine = ServerEngine(client, "vllm", 10, 8, None)
    assert engine.context_length == 18
    result = asyncio.run(engine.sample(request(4, max_tokens=50)))
    assert client.asked[0]["sampling_params"]["max_tokens"] == 8
    assert engine.context_length == 12
    assert result.finish_reason is FinishReason.CONTEXT


def test_an_opening_that_is_too_long_says_which_override_helps():
    engine = ServerEngine(FakeClient(), "vllm", 10, 8, None)
    with pytest.raises(ConfigError, match=r"11 tokens.*data\.max_prompt_length=16"):
        asyncio.run(engine.sample(request(11)))
    assert engine.refusal is not None


# ---- failed episodes ----


def batch_of(scores: list[float]) -> dict[str, torch.Tensor]:
    rewards = torch.zeros(len(scores), 3)
    rewards[:, 2] = torch.tensor(scores)
    return {"rm_scores": rewards, "response_mask": torch.ones(len(scores), 3, dtype=torch.long)}


UIDS = np.array(["a", "a", "a", "b", "b", "b"], dtype=object)


def failures(*rows: int) -> Any:
    return np.array([f"boom {i}" if i in rows else None for i in range(6)], dtype=object)


def test_a_failed_episode_moves_nobodys_baseline():
    batch = batch_of([1.0, 3.0, 0.0, 5.0, 6.0, 7.0])
    leave_out(batch, UIDS, failures(2), drops_groups=False)
    assert batch["rm_scores"].sum(-1).tolist() == [1.0, 3.0, 2.0, 5.0, 6.0, 7.0]
    assert batch["response_mask"].sum(-1).tolist() == [3] * 6  # the agent loop masked the row


def test_a_group_can_go_with_its_failed_episode():
    batch = batch_of([1.0, 3.0, 0.0, 5.0, 6.0, 7.0])
    leave_out(batch, UIDS, failures(2), drops_groups=True)
    assert batch["response_mask"].sum(-1).tolist() == [0, 0, 0, 3, 3, 3]


def test_a_step_of_which_nothing_is_left_ends_the_run():
    with pytest.raises(TrainingStopped, match="boom 0"):
        leave_out(batch_of([0.0] * 6), UIDS, failures(*range(6)), drops_groups=False)


# ---- the dataset and the reward ----


def test_rows_are_tasks_and_held_out_starts_are_others():
    rows = [{"prompt": f"p{i}", "answer": i} for i in range(3)]
    dataset = CustomEnvironmentDataset(Echo, size=6, batch_size=3, rows=rows)
    tasks = [dataset[i]["extra_info"]["task"]["answer"] for i in range(6)]
    assert sorted(tasks[:3]) == sorted(tasks[3:]) == [0, 1, 2]
    held = CustomEnvironmentDataset(Echo, size=6, held_out=True)
    trained = CustomEnvironmentDataset(Echo, size=6)
    seeds = {dataset[i]["extra_info"]["seed"] for dataset in (held, trained) for i in range(6)}
    assert len(seeds) == 12


def test_the_reward_wrapper_takes_what_was_earned_or_plays_the_response():
    wrapper = EnvironmentRewardWrapper(Echo, tokenizer=load_tokenizer("tiny"))
    earned = SimpleNamespace(batch={"rm_scores": torch.tensor([[0.5, 1.0], [0.0, 2.0]])})
    assert wrapper(earned).tolist() == [1.5, 2.0]
    encoded = load_tokenizer("tiny")(["four", "six  6"], padding=True, return_tensors="pt")
    played = SimpleNamespace(
        batch={"responses": encoded["input_ids"], "attention_mask": encoded["attention_mask"]},
        non_tensor_batch={},
    )
    assert wrapper(played).tolist() == [4.0, 6.0]


# ---- the trainer before it has begun ----


def test_create_trainer_gives_verls():
    trainer = create_trainer(ConfigStore(), GuessNumberEnvironment, engine="verl")
    assert isinstance(trainer, CustomRayPPOTrainer)
    with pytest.raises(ConfigError, match="'verl'"):
        create_trainer(ConfigStore(), GuessNumberEnvironment, engine="verk")


def test_verl_needs_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    config = ConfigStore()
    config.checkpoint.output_dir = str(tmp_path)
    with pytest.raises(ConfigError, match="VERL trains on GPUs, and torch sees none"):
        CustomRayPPOTrainer(config, GuessNumberEnvironment, reporter=None).fit()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.rollout.agent.num_workers=3", "divides them"),
        ("trainer.use_v1=true", "does not take training.on_error=drop_group"),
    ],
)
def test_what_our_episodes_need_of_verls_config_is_checked(tmp_path, override, message):
    config = ConfigStore()
    config.checkpoint.output_dir = str(tmp_path)
    config.training.on_error = "drop_group"
    trainer = CustomRayPPOTrainer(config, GuessNumberEnvironment, verl_overrides=[override])
    with pytest.raises(ConfigError, match=message):
        trainer.verl_config()
