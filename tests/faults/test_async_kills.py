"""kill -9 in asynchronous runs: every task is trained on once, and the run can be replayed.

Some kills are inside a save, as in `test_kills.py`; the others are at random moments.
"""

import os
import random
import signal
import time

import pytest

from trainer.runs import metrics_of, newest_files, trained
from trainer.training_child import SMALL, Child, Uneven, finish
from trainer.worlds import small_model, small_trainer
from turnwise.config import ConfigStore
from turnwise.trainer.replay import replay_run

KILLED = 128 + signal.SIGKILL
AHEAD = ("training.max_staleness=2", "training.adv_estimator=grpo", "training.group_size=2")
NUM_KILLS = 8 if os.environ.get("TURNWISE_THOROUGH") else 4


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The tasks of the run that was never killed; they do not depend on the staleness."""
    folder, settings = tmp_path_factory.mktemp("tasks"), (*SMALL, *AHEAD)
    sync = "training.max_staleness=0"
    with small_trainer(folder, Uneven, *settings, sync, reporter=None) as trainer:
        trainer.fit()
    return trained(trainer.run_folder)


def assert_nothing_lost(folder, tasks):
    assert [metrics["step"] for metrics in metrics_of(folder)] == [1, 2, 3, 4, 5]
    assert trained(folder) == tasks
    assert set(tasks.values()) == {1}


def assert_replayed(folder):
    config = ConfigStore.load(folder / "config.yaml", ["checkpoint.run_name=again"])
    model, tokenizer = small_model()
    outcome = replay_run(folder, config, environment=Uneven, model=model, tokenizer=tokenizer)
    assert outcome.num_equal == 5
    (step, left), (same, right) = newest_files(folder), newest_files(outcome.folder)
    assert step == same
    assert left["weights.safetensors"] == right["weights.safetensors"]


@pytest.mark.parametrize(("save", "change"), [(2, 3), (4, 9)])
def test_inside_a_save(tmp_path, tasks, save, change):
    child = Child(tmp_path, die_at_save=(save, change), world="uneven", settings=AHEAD)
    assert child.end() == KILLED, "\n".join(child.lines)
    assert child.lines[-1] == "dies inside a save"
    finish(tmp_path, world="uneven", settings=AHEAD)
    assert_nothing_lost(tmp_path / "killed", tasks)


def test_at_random_moments(tmp_path, tasks):
    moments = random.Random(0)
    num_kills, num_runs = 0, 0
    while num_kills < NUM_KILLS:
        folder = tmp_path / str(num_runs)
        child = Child(folder, world="uneven", settings=AHEAD)
        time.sleep(moments.uniform(0.05, 0.5))
        child.send(signal.SIGKILL)
        if child.end() == KILLED:
            num_kills += 1
        else:  # it was quicker than the signal
            num_runs += 1
    finish(folder, world="uneven", settings=AHEAD)
    assert_nothing_lost(folder / "killed", tasks)
    assert_replayed(folder / "killed")
