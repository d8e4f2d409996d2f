"""kill -9 at sixteen moments of a run: it always goes on, and nothing is lost.

With TURNWISE_THOROUGH=1 in the environment it is forty moments. Half of them are inside a save: the
child counts the changes that a save makes on the disk (folders made, files forced onto it, renames)
and kills itself just before a given one, having said so. The others are the parent's, at random.
"""

import os
import random
import signal
import time

import pytest

from trainer.runs import assert_same_run
from trainer.training_child import Child, finish
from turnwise.runs.checkpoints import CheckpointStore, open_checkpoint

KILLED = 128 + signal.SIGKILL
# The first save follows the warm start; the fourth one also lets an old checkpoint go.
THOROUGH = bool(os.environ.get("TURNWISE_THOROUGH"))
SAVES, CHANGES = ((1, 2, 4, 6), (1, 3, 5, 7, 9)) if THOROUGH else ((1, 4), (1, 3, 6, 9))
INSIDE = [(save, change) for save in SAVES for change in CHANGES]
NUM_CHAINS, NUM_KILLS = (4, 5) if THOROUGH else (2, 4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(folder)
    return folder / "killed"


def newest_step(folder):
    """The newest step that was saved; every checkpoint is whole."""
    store = CheckpointStore(folder / "killed" / "checkpoints")
    for checkpoint in store.list():
        open_checkpoint(checkpoint.path)
    newest = store.newest()
    return newest.step if newest else -1


@pytest.mark.parametrize(("save", "change"), INSIDE)
def test_inside_a_save(tmp_path, undisturbed, save, change):
    child = Child(tmp_path, die_at_save=(save, change))
    assert child.end() == KILLED, "\n".join(child.lines)
    assert child.lines[-1] == "dies inside a save"
    assert newest_step(tmp_path) in (save - 2, save - 1)  # the first save is of step 0
    finish(tmp_path)
    assert_same_run(undisturbed, tmp_path / "killed")


@pytest.mark.parametrize("chain", range(NUM_CHAINS))
def test_at_random_moments(tmp_path, undisturbed, chain):
    moments = random.Random(chain)
    num_kills, num_runs, reached = 0, 0, -1
    while num_kills < NUM_KILLS:
        folder = tmp_path / str(num_runs)
        child = Child(folder)
        time.sleep(moments.uniform(0.05, 0.5))
        child.send(signal.SIGKILL)
        if child.end() == KILLED:
            num_kills += 1
            saved = newest_step(folder)
            assert saved >= reached
            reached = saved
            continue
        # It was quicker than the signal.
        assert_same_run(undisturbed, folder / "killed")
        num_runs, reached = num_runs + 1, -1
    finish(folder)
    assert_same_run(undisturbed, folder / "killed")
