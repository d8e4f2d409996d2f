"""Asynchronous training: nothing waits for slow episodes, none is lost, twice or too old."""

import asyncio
import threading

import pytest
import torch

from trainer.runs import Listener, fit_to_the_end, metrics_of, trained
from trainer.worlds import Echo, Several, Uneven, small_trainer, training
from turnwise import ConfigError, EpisodeFailed, RewardBatch
from turnwise.trainer import Levels

SMALL = training(
    "batch_size=3 num_epochs=2 steps_per_epoch=3 warm_start_steps=2 adv_estimator=grpo group_size=2"
)
AHEAD = (*SMALL, "training.max_staleness=2")


def test_every_episode_is_trained_on_once_and_in_time(tmp_path):
    with small_trainer(tmp_path / "sync", Uneven, *SMALL, reporter=None) as trainer:
        trainer.fit()
        in_turns = trained(trainer.run_folder)
    with small_trainer(tmp_path / "async", Uneven, *AHEAD, reporter=None) as trainer:
        history = trainer.fit()
        ahead = trained(trainer.run_folder)
    assert ahead == in_turns  # the same tasks, whatever the order
    assert set(ahead.values()) == {1}
    behind = [metrics.get("weights_behind", 0) for metrics in history]
    assert behind[0] == 0
    assert 1 <= max(behind) <= 2
    assert all(metrics["num_episodes"] == 6 for metrics in history)


class Slow(Echo):
    """The first environment of the run ends only when the test says so."""

    may_end = threading.Event()
    first = iter([True])

    async def step(self, action):
        if next(self.first, False):
            while not self.may_end.is_set():
                await asyncio.sleep(0.001)
        return super().step(action)


def test_updates_go_on_without_a_slow_episode_until_it_is_due(tmp_path):
    class WaitsForSteps(Listener):
        def step(self, metrics):
            super().step(metrics)
            if metrics["step"] == 2:  # both were made without the slow group
                Slow.may_end.set()

    listener = WaitsForSteps()
    settings = (*AHEAD, "training.warm_start=null")
    with small_trainer(tmp_path, Slow, *settings, reporter=listener) as trainer:
        history = trainer.fit()
    assert listener.outcomes == ["finished"]
    assert history[2]["weights_behind"] == 2  # the slow group, at the last moment
    assert set(trained(trainer.run_folder).values()) == {1}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (("training.adv_estimator=gae", "training.group_size=1"), {}),
        (("training.adv_estimator=remax", "training.group_size=1"), {}),
        (("training.eval_episodes=2",), {}),
        (("training.mini_batch_size=2", "training.update_epochs=2"), {}),
        (("training.lora_rank=2", "training.lora_dropout=0.1", "training.kl_loss_coef=0.1"), {}),
        (("training.gradient_checkpointing=true", "inference.backend=transformers"), {}),
        (("inference.stale_kv=recompute",), {"curriculum": Levels([{"size": 1}, {"size": 2}])}),
        (("training.on_error=drop_group",), {"dataset": [{"number": i} for i in range(9)]}),
    ],
    ids=["gae", "remax", "evaluation", "minibatches", "lora", "plain", "curriculum", "dataset"],
)
def test_it_works_with(tmp_path, settings, options):
    settings = (*AHEAD, "training.steps_per_epoch=2", *settings)
    with small_trainer(tmp_path, Uneven, *settings, reporter=None, **options) as trainer:
        history = trainer.fit()
    assert len(history) == 4
    assert all(metrics["num_steps"] and not metrics["errors"] for metrics in history)
    assert max(metrics.get("weights_behind", 0) for metrics in history) <= 2


def test_a_reward_of_batches(tmp_path):
    def reward(data: RewardBatch) -> torch.Tensor:
        return torch.full((len(data),), float(len(data)))

    settings = (*AHEAD, "training.adv_estimator=gae", "training.group_size=1")
    with small_trainer(tmp_path, Uneven, *settings, reward_fn=reward, reporter=None) as trainer:
        assert {metrics["reward"] for metrics in trainer.fit()} == {3.0}
    resampling = (*AHEAD, "training.resample=1")
    with (
        small_trainer(tmp_path, Uneven, *resampling, reward_fn=reward, reporter=None) as trainer,
        pytest.raises(ConfigError, match="resample"),
    ):
        trainer.fit()


@pytest.mark.parametrize("now", [0, 1, 2])
def test_an_interrupted_run_loses_nothing_and_counts_nothing_twice(tmp_path, now):
    first = iter([(2, "auto")])

    def make(listener):
        k, resume = next(first, (now, "always"))  # it may change when a run is resumed
        settings = (*SMALL, f"training.max_staleness={k}", "checkpoint.run_name=run")
        return small_trainer(tmp_path, Uneven, *settings, reporter=listener, resume=resume)

    stops = {("step", 2), ("step", 4), ("episodes", 5)}
    folder, _, listeners = fit_to_the_end(make, lambda *moment: moment in stops)
    assert len(listeners) > 2
    assert [metrics["step"] for metrics in metrics_of(folder)] == list(range(1, 7))
    assert set(trained(folder).values()) == {1}
    with small_trainer(tmp_path / "sync", Uneven, *SMALL, reporter=None) as trainer:
        trainer.fit()
        assert trained(folder) == trained(trainer.run_folder)


def test_a_second_fit_continues_with_what_is_left(tmp_path):
    with small_trainer(tmp_path, Uneven, *AHEAD, reporter=None) as trainer:
        trainer.fit(1)
        trainer.fit(1)
        assert set(trained(trainer.run_folder).values()) == {1}
        assert len(trainer.metrics_history) == 6


class Breaks(Several):
    """Fails in its second step."""

    def step(self, action):
        if self.step_count == 1:
            raise ValueError("broken on purpose")
        return super().step(action)


def test_a_failure_of_an_episode_ends_the_run_where_the_settings_say_so(tmp_path):
    settings = (*AHEAD, "training.on_error=fail", "training.warm_start=null")
    with (
        small_trainer(tmp_path, Breaks, *settings, reporter=None) as trainer,
        pytest.raises(EpisodeFailed, match="broken on purpose"),
    ):
        trainer.fit()
