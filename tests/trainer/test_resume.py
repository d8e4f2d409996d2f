"""A run that is stopped and started again is the run that was never stopped, to the byte."""

import random

import numpy as np
import pytest
import torch

from trainer.runs import assert_same_run, episodes, fit_to_the_end, metrics_of
from trainer.worlds import LETTERS, Memory, small_trainer, training
from turnwise.trainer import Levels

SMALL = (
    *training("batch_size=4 num_epochs=2 steps_per_epoch=2 warm_start_steps=2"),
    "inference.max_tokens=2",
)
PPO = (
    *SMALL,
    *training(
        "adv_estimator=gae use_kl_in_reward=true kl_target=0.01 lr_schedule=linear "
        "warmup_steps=2 mini_batch_size=3 update_epochs=2 eval_episodes=2"
    ),
)
GRPO = (
    *SMALL,
    *training(
        "adv_estimator=grpo group_size=3 resample=1 kl_loss_coef=0.01 lr_schedule=cosine "
        "weight_decay=0.01"
    ),
    "checkpoint.save_interval=2",
)
LORA = (
    *PPO,
    *training("lora_rank=4 lora_dropout=0.2 use_rslora=true eval_episodes=0"),
)


class Asked(Memory):
    """Memory whose letter is that of its task."""

    def reset(self):
        super().reset()
        self.letter = self.task["letter"] if self.task else self.letter
        return self.letter


def rows(number=8):
    return [{"prompt": "Say it.", "letter": LETTERS[i % 4], "number": i} for i in range(number)]


def any_of(*moments):
    return lambda what, number: (what, number) in moments


def every_step(what, number):
    return what == "step"


class TestEverySetting:
    @pytest.mark.parametrize("settings", [PPO, GRPO, LORA], ids=["ppo", "grpo", "lora"])
    def test_stopped_at_every_step(self, tmp_path, settings):
        def make(folder):
            return lambda listener: small_trainer(
                folder, Asked, *settings, dataset=rows(), reporter=listener
            )

        whole, history, _ = fit_to_the_end(make(tmp_path / "whole"))
        parts, resumed_history, listeners = fit_to_the_end(make(tmp_path / "parts"), every_step)
        assert len(listeners) == 4
        assert_same_run(whole, parts)
        assert [m["step"] for m in history] == [1, 2, 3, 4]
        assert len(resumed_history) == 4
        for number, listener in enumerate(listeners[1:], 1):
            (told,) = [line for line in listener.said if "resuming" in line]
            assert f"resuming from step {number} (" in told
            assert listener.run.first_step == number
            assert [m["step"] for m in listener.run.history] == list(range(1, number + 1))


MOMENTS = [("warm start", 1), ("warm start", 2), ("episodes", 2), ("evaluation", 1)]


def with_levels(folder):
    """A trainer whose tasks depend on how it went before."""

    def make(listener):
        levels = Levels([{"letter": "a"}, {"letter": "b"}, {"letter": "c"}], up=0.3, down=0.0)
        return small_trainer(folder, Asked, *PPO, curriculum=levels, reporter=listener)

    return make


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fit_to_the_end(with_levels(tmp_path_factory.mktemp("whole")))[0]


class TestEveryMoment:
    """Between steps is the easy part: here the stop comes in the middle of things."""

    def test_stopped_all_the_time(self, tmp_path, whole):
        parts, _, listeners = fit_to_the_end(
            with_levels(tmp_path), any_of(*MOMENTS, *(("step", number) for number in range(1, 5)))
        )
        # How many stops come of them depends on how long the sampled turns are.
        assert len(listeners) > 6
        assert_same_run(whole, parts)

    def test_an_environment_that_draws_from_the_global_generators(self, tmp_path):
        def make(folder):
            return lambda listener: small_trainer(folder, Careless, *SMALL, reporter=listener)

        whole, *_ = fit_to_the_end(make(tmp_path / "whole"))
        stops = any_of(("episodes", 2), ("step", 3))
        parts, *_ = fit_to_the_end(make(tmp_path / "parts"), stops)
        assert_same_run(whole, parts)


class Careless(Memory):
    def reset(self):
        super().reset()
        number = random.randrange(4) + np.random.randint(4) + int(torch.randint(4, ()))
        self.letter = LETTERS[number % 4]
        return self.letter


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path):
    runs = {}
    for name, seed in (("first", 1), ("second", 1), ("other", 2)):
        with small_trainer(tmp_path / name, Memory, *SMALL, f"training.seed={seed}") as trainer:
            trainer.fit()
        runs[name] = trainer.run_folder
    assert_same_run(runs["first"], runs["second"])
    assert episodes(runs["first"]) != episodes(runs["other"])
    assert metrics_of(runs["first"])[0]["entropy"] != metrics_of(runs["other"])[0]["entropy"]
