"""Runs are counted in steps: when they end, are saved and evaluated, with and without a dataset."""

import contextlib
import zlib

import pytest

from trainer.runs import Listener, assert_same_run, metrics_of
from trainer.worlds import LETTERS, Echo, small_trainer, training
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.run_folder import RunFolder
from turnwise.trainer import records as run_records

SMALL = (
    *training(
        "warm_start=null batch_size=2 steps_per_epoch=null eval_episodes=1 lr_schedule=linear"
    ),
    "inference.max_tokens=1",
    "checkpoint.keep_last_n=99",
)


class Asked(Echo):
    """Pays for any text, so that an untrained model learns something in every step."""

    def reset(self):
        super().reset()
        self.letter = self.task["letter"] if self.task else self.letter
        return self.letter

    def step(self, action):
        self._done = True
        return "", zlib.crc32((self.letter + action).encode()) % 5 / 4, True, {}


ROWS = [{"letter": LETTERS[number % 4], "number": number} for number in range(20)]


def train(folder, *settings, listener=None, fit=(), **options):
    """Train on 20 rows, two a step: ten steps are a pass."""
    options = {"dataset": ROWS, **options}
    listener = listener or Listener()
    with (
        small_trainer(folder, Asked, *SMALL, *settings, reporter=listener, **options) as trainer,
        contextlib.suppress(KeyboardInterrupt),
    ):
        trainer.fit(*fit)
    return trainer


def saved_steps(folder):
    return [saved.step for saved in CheckpointStore(RunFolder(folder).checkpoints).list()]


def evaluated_steps(folder):
    return [m["step"] for m in metrics_of(folder) if "eval/greedy/reward" in m]


class Killed(Exception):
    """Ends a run as `kill -9` does: nothing is saved after it."""


class Killer(Listener):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def step(self, metrics):
        super().step(metrics)
        if metrics["step"] == self.at:
            raise Killed


def kill(folder, *settings, at):
    with pytest.raises(Killed):
        train(folder, *settings, listener=Killer(at))


def test_success_is_absent_where_none_is_reported(tmp_path):
    trainer = train(tmp_path, "training.max_steps=2")
    assert not [name for m in metrics_of(trainer.run_folder) for name in m if "success" in name]
    (last,) = trainer.metrics_history[-1:]
    assert last["eval/greedy/num_episodes"] == 1


class TestMaxSteps:
    def test_ends_a_run_within_a_pass_over_the_dataset(self, tmp_path):
        run = train(tmp_path, "training.max_steps=3").run_folder
        assert [m["step"] for m in metrics_of(run)] == [1, 2, 3]
        assert RunFolder(run).status["status"] == "finished"
        assert RunFolder(run).status["num_steps"] == 3
        assert evaluated_steps(run) == saved_steps(run) == [3]  # the end, whatever the epoch

    def test_counts_in_place_of_the_epochs(self, tmp_path):
        settings = ("training.max_steps=5", "training.num_epochs=1", "training.steps_per_epoch=2")
        trainer = train(tmp_path, *settings, dataset=None)
        assert [m["epoch"] for m in trainer.metrics_history] == [1, 1, 2, 2, 3]
        rates = [m["learning_rate"] for m in trainer.metrics_history]
        assert rates[-1] > 0  # it decays over the five
        assert rates == sorted(rates, reverse=True)

    def test_each_fit_trains_for_as_long_and_its_own_number_of_epochs_wins(self, tmp_path):
        with small_trainer(tmp_path, Echo, *SMALL, "training.max_steps=3") as trainer:
            trainer.fit()
            assert trainer.step == 3
            trainer.fit()
            assert trainer.step == 6
            trainer.fit(1, 2)
            assert trainer.step == 8

    def test_a_finished_run_goes_on_with_a_larger_one(self, tmp_path):
        whole = train(tmp_path / "whole", "training.max_steps=5", "training.lr_schedule=constant")
        for number in (3, 5):
            settings = (f"training.max_steps={number}", "checkpoint.run_name=mine")
            longer = train(tmp_path, *settings, "training.lr_schedule=constant")
        assert longer.step == 5
        last, expected = longer.metrics_history[-1], whole.metrics_history[-1]
        assert last["eval/greedy/reward"] == expected["eval/greedy/reward"]
        assert last["entropy"] == expected["entropy"]
        assert last["grad_norm"] > 0


def test_eval_steps_and_save_steps(tmp_path):
    settings = ("training.num_epochs=1", "training.eval_steps=4", "checkpoint.save_steps=3")
    run = train(tmp_path, *settings).run_folder
    assert evaluated_steps(run) == [4, 8, 10]  # always the last one
    assert saved_steps(run) == [3, 6, 9, 10]


class TestDefaults:
    def test_a_long_pass_is_saved_and_evaluated_within(self, tmp_path):
        run = train(tmp_path, "training.num_epochs=1", dataset=(ROWS * 6)[:102]).run_folder
        assert len(metrics_of(run)) == 51
        assert evaluated_steps(run) == saved_steps(run) == [50, 51]

    def test_slow_steps_are_saved_by_the_clock(self, tmp_path, monkeypatch):
        by_steps = train(tmp_path / "steps", "training.num_epochs=1").run_folder
        monkeypatch.setattr(run_records, "SECONDS_BETWEEN_SAVES", 0.0)
        by_clock = train(tmp_path / "clock", "training.num_epochs=1").run_folder
        assert saved_steps(by_clock) == [*range(1, 11)]
        assert saved_steps(by_steps) == [10]
        assert_same_run(by_steps, by_clock)  # the clock decides when, never what


KILLED = ("training.num_epochs=1", "checkpoint.save_steps=4", "training.eval_steps=3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), *KILLED).run_folder


class TestKilled:
    """A run that was killed resumes from its newest checkpoint, exactly, and says what is lost."""

    @pytest.mark.parametrize("extra", [(), ("training.adv_estimator=grpo", "training.resample=1")])
    def test_within_a_pass(self, tmp_path, whole, extra):
        if extra:
            whole = train(tmp_path / "whole", *KILLED, *extra).run_folder
        kill(tmp_path / "parts", *KILLED, *extra, at=6)
        listener = Listener()
        parts = train(tmp_path / "parts", *KILLED, *extra, listener=listener).run_folder
        (line,) = [line for line in listener.said if line.startswith("resuming")]
        assert line.startswith("resuming from step 4 (")
        assert line.endswith("; steps that were not saved and are played again: 2")
        assert listener.run.first_step == 4
        assert len({m["grad_norm"] for m in metrics_of(whole)}) == 10
        assert_same_run(whole, parts)

    def test_before_the_first_checkpoint(self, tmp_path, whole):
        kill(tmp_path / "parts", *KILLED, at=3)
        listener = Listener()
        parts = train(tmp_path / "parts", *KILLED, listener=listener).run_folder
        (line,) = [line for line in listener.said if "no checkpoint" in line]
        assert line.startswith("beginning again at step 1")
        assert line.endswith("again: 3")
        assert_same_run(whole, parts)
