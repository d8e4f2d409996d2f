"""Asynchronous training on one GPU: the engine captures its graphs while the learner computes."""

import asyncio

import pytest
import torch

from trainer.worlds import training
from turnwise import BaseEnvironment, ConfigStore, Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Uneven(BaseEnvironment):
    """Episodes of 1 to 4 turns, so that the engine decodes batches of many sizes."""

    def reset(self, seed=0):
        self._done = False
        self.step_count, self.num_turns = 0, 1 + seed % 4
        return "hello"

    async def step(self, action):
        await asyncio.sleep(0.01 * self.num_turns)
        self.step_count += 1
        self._done = self.step_count == self.num_turns
        return "and now?", float("a" in action), self._done, {}

    def get_state_description(self):
        return "?"


def history_of(folder, *overrides):
    """The metrics of twelve asynchronous steps with these settings."""
    own = [
        f"checkpoint.output_dir={folder}",
        *training("adv_estimator=grpo group_size=4 batch_size=16"),
    ]
    with Trainer(ConfigStore.load(overrides=[*own, *overrides]), Uneven) as trainer:
        trainer.fit(1, 12)
        return trainer.metrics_history


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_episodes_are_played_while_the_learner_computes(tmp_path, lora_rank):
    history = history_of(
        tmp_path,
        "training.max_staleness=4",
        f"training.lora_rank={lora_rank}",
        "inference.max_tokens=8",
    )
    assert [metrics["num_steps"] for metrics in history] == [1] * 12
    assert any("weights_behind" in metrics for metrics in history)
    assert all(metrics.get("weights_behind", 0) <= 4 for metrics in history)
    assert all(metrics["errors"] == 0 for metrics in history)


def test_what_is_sampled_during_an_update_has_the_log_probs_of_the_learner(tmp_path):
    """Engine and learner compute at once: neither may read memory that the other writes."""
    history = history_of(
        tmp_path,
        "training.max_staleness=2",
        "training.learning_rate=1e-12",
        "model.dtype=float32",
        "inference.max_tokens=64",
    )
    assert any("weights_behind" in metrics for metrics in history)
    assert all(metrics["gap_max"] < 1e-3 for metrics in history)
