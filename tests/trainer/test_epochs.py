"""Epochs are counted over all calls of `fit`, whatever the length of each one's epochs."""

import contextlib

import pytest

from trainer.runs import Listener, assert_same_run, metrics_of
from trainer.worlds import Echo, small_trainer, training
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.run_folder import RunFolder

SMALL = (
    *training("warm_start=null batch_size=2 eval_episodes=1 lr_schedule=linear"),
    "inference.max_tokens=1",
    "checkpoint.save_interval=2",
    "checkpoint.keep_last_n=9",
)


def two_fits(folder, stop_at=lambda what, number: False):
    """A script that trains twice, with epochs of 4 and of 3 steps."""
    listener = Listener(stop_at)
    with (
        small_trainer(folder, Echo, *SMALL, reporter=listener) as trainer,
        contextlib.suppress(KeyboardInterrupt),
    ):
        trainer.fit(1, 4)
        trainer.fit(2, 3)
    return trainer.run_folder, listener


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return two_fits(tmp_path_factory.mktemp("whole"))[0]


def test_a_second_fit_counts_on_from_the_first(whole):
    history = metrics_of(whole)
    assert [m["step"] for m in history] == [*range(1, 11)]
    assert [m["epoch"] for m in history] == [1] * 4 + [2] * 3 + [3] * 3
    # The schedule is that of the steps that a fit was asked for.
    assert [m["learning_rate"] / 3e-3 for m in history[:4]] == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert [m["step"] for m in history if "eval/greedy/reward" in m] == [4, 7, 10]
    saved = [found.step for found in CheckpointStore(RunFolder(whole).checkpoints).list()]
    assert saved == [4, 7, 10]  # the end of each fit, and every second epoch
    assert RunFolder(whole).status["num_steps"] == 10


@pytest.mark.parametrize("moment", [("step", 2), ("step", 6), ("evaluation", 1)], ids=str)
def test_a_script_that_was_stopped_resumes_the_fit_that_was_under_way(tmp_path, whole, moment):
    _, stopped = two_fits(tmp_path, lambda *now: now == moment)
    assert stopped.outcomes[-1] == "interrupted"
    parts, _ = two_fits(tmp_path)
    assert_same_run(whole, parts)
