"""Training with a reward function of whole batches, and steps that are taken by hand."""

import math

import pytest
import torch

from trainer.worlds import QUICK, Echo, Memory, small_model, small_trainer
from turnwise import (
    EnvironmentRewardWrapper,
    EpisodeCollector,
    EpisodeFailed,
    EpisodeStatus,
    RewardBatch,
    RewardManager,
    ScriptedEngine,
)

ONE_EPOCH = (*QUICK, "training.num_epochs=1", "training.steps_per_epoch=2")


def collect(environment, reward_fn, num=5, **options):
    tokenizer = small_model()[1]
    engine = ScriptedEngine(tokenizer, lambda text: "ab")
    collector = EpisodeCollector(engine, environment, reward_fn=reward_fn, **options)
    return collector.collect_sync(num), tokenizer


def test_all_episodes_are_scored_in_one_call_with_their_tokens():
    calls = []

    def score(data: RewardBatch) -> torch.Tensor:
        calls.append(data)
        return torch.arange(len(data.batch), dtype=torch.float32)

    played, tokenizer = collect(Memory, score)
    assert [result.reward.total for result in played] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [result.agent.turn_rewards for result in played][3] == [0.0, 0.0, 3.0]
    (data,) = calls
    for row, result in zip(data, played, strict=True):
        stream, mask = result.stream, row.batch["attention_mask"].bool()
        assert row.batch["input_ids"][mask].tolist() == list(stream.ids[: mask.sum()])
        sampled = row.batch["responses"][row.batch["response_mask"].bool()]
        assert tokenizer.decode(sampled, skip_special_tokens=True) == "ababab"
        assert row.batch["position_ids"][mask].tolist() == list(range(int(mask.sum())))
        assert row.non_tensor_batch["response_texts"] == "ab\nab\nab"
        assert row.non_tensor_batch["trajectory"] is result.trajectory
        assert row.non_tensor_batch["extra_info"]["seed"] == result.seed


def test_a_reward_for_each_token_sits_on_its_turn():
    def score(data: RewardBatch) -> dict[str, torch.Tensor]:
        mask = data.batch["response_mask"]
        return {"reward_tensor": torch.where(mask.bool(), mask.cumsum(1), 0).float()}

    played, _ = collect(Memory, score, num=2)
    for result in played:
        lengths = [turn.num_tokens for turn in result.turns]
        numbers = iter(range(1, sum(lengths) + 1))
        expected = [float(sum(next(numbers) for _ in range(n))) for n in lengths]
        assert result.agent.turn_rewards == expected
        assert result.reward.total == sum(expected)


def boom(data: RewardBatch):
    raise ZeroDivisionError("nothing to divide by")


def too_few(data: RewardBatch):
    return [1.0]


def endless(data: RewardBatch):
    return [math.inf] * len(data)


async def none_at_all(data: RewardBatch):
    return None


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (boom, "'boom': raised ZeroDivisionError"),
        (too_few, "returned 1 rewards for a batch of 5 episodes"),
        (endless, "the reward is inf"),
        (none_at_all, "returned NoneType for a batch of 5"),
    ],
)
def test_a_function_that_fails_fails_the_episodes_and_is_no_zero(function, told):
    played, _ = collect(Echo, function)
    assert {result.status for result in played} == {EpisodeStatus.REWARD_ERROR}
    assert all(told in result.error and result.reward is None for result in played)
    with pytest.raises(EpisodeFailed, match=told.split("'")[-1]):
        collect(Echo, function, on_error="fail")


def test_the_columns_of_a_dataset_stand_beside_the_responses(tmp_path):
    seen = []

    class Judge:
        def __call__(self, data: RewardBatch) -> torch.Tensor:
            for row in range(len(data.batch)):
                text, state = data.non_tensor_batch["response_texts"][row], data.batch["state"][row]
                seen.append((text, state, data.batch["responses"][row].shape))
            return torch.tensor([float(state) for state in data.batch["state"]])

    rows = [{"prompt": f"Say {n}.", "state": n, "input_ids": [n]} for n in range(4)]
    trainer = small_trainer(tmp_path, None, *ONE_EPOCH, reward_fn=Judge(), dataset=rows)
    with trainer:
        history = trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    assert [metrics["reward"] for metrics in history] == [1.5, 1.5]
    assert sorted(state for _, state, _ in seen[:4]) == [0, 1, 2, 3]
    assert len({shape for _, _, shape in seen[:4]}) == 1
    assert history[0]["num_steps"] > 0


def test_a_wrapper_and_a_manager_score_the_episodes_of_a_trainer(tmp_path):
    for number, reward in enumerate(
        [EnvironmentRewardWrapper(Echo, lambda trajectory: 3.0), RewardManager(Echo())]
    ):
        with small_trainer(tmp_path / str(number), Echo, *ONE_EPOCH, reward_fn=reward) as trainer:
            played = trainer.rollout()
        expected = [reward(trajectory).total for trajectory in played.trajectories]
        assert [result.reward.total for result in played] == expected


# ---- steps by hand ----


@pytest.mark.parametrize("estimator", ["gae", "remax"])
def test_steps_by_hand_are_those_of_a_run(tmp_path, estimator):
    settings = (*ONE_EPOCH, f"training.adv_estimator={estimator}")
    with small_trainer(tmp_path / "run", Memory, *settings) as trainer:
        expected = trainer.fit()
    with small_trainer(tmp_path / "hand", Memory, *settings) as trainer:
        episodes = trainer.rollout()
        assert len(episodes) == len(episodes.rollout) == 4
        assert RewardManager(Memory()).compute_batch_rewards(episodes).shape == (4,)
        first = trainer.train_step(episodes)
        second = trainer.train_step()
        assert trainer.metrics_history == [first, second]
        assert (trainer.step, trainer.run_folder) == (2, None)
    for found, wanted in zip([first, second], expected, strict=True):
        for name, value in wanted.items():
            if not name.startswith(("time/", "memory/")):
                assert found.get(name) == value, name


def test_a_run_goes_on_from_steps_by_hand_and_not_from_the_folder(tmp_path):
    with small_trainer(tmp_path, Echo, *ONE_EPOCH) as trainer:
        trainer.fit()
    with small_trainer(tmp_path, Echo, *ONE_EPOCH) as trainer:
        trainer.train_step()
        trainer.save_checkpoint(tmp_path / "by-hand")
        history = trainer.fit()
        assert [metrics["step"] for metrics in history] == [1, 2, 3]


def test_any_episodes_can_be_learned_from(tmp_path):
    with small_trainer(tmp_path / "a", Echo, *ONE_EPOCH) as trainer:
        episodes = trainer.components.collector.collect_sync(6)
        assert trainer.train_step(episodes)["num_episodes"] == 6
