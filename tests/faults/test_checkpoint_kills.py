"""Processes that are killed while they save: what is there then is whole, and nothing is lost."""

import itertools
import os

from runs.saved_folders import check, die_at, fill, in_child
from turnwise.runs.checkpoints import CheckpointStore, open_checkpoint
from turnwise.whole_files import discard


def killed_everywhere(tmp_path, prepare, work):
    """Kill `work` before each of its steps on the disk in turn; a folder for each time."""
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        prepare(folder)

        def dying(report, folder=folder, number=number):
            die_at(number)
            work(folder)
            report("saved")

        said, killed = in_child(dying).wait()
        assert said == ([] if killed else ["saved"])
        yield folder, killed
        if not killed:
            return


def visible(folder):
    """What is there besides what the next save will remove."""
    return [path.name for path in folder.glob("[!.]*")]


def test_the_first_save(tmp_path):
    def save(folder):
        CheckpointStore(folder / "checkpoints").save(1, fill(1))

    outcomes = []
    for folder, killed in killed_everywhere(tmp_path, lambda folder: None, save):
        store = CheckpointStore(folder / "checkpoints")
        newest = store.newest()
        outcomes.append(newest is not None)
        assert killed or newest is not None
        if newest is not None:
            check(newest)
        store.save(1, fill(1, "again"))
        check(store.newest(), "again")
        assert os.listdir(store.folder) == ["step-00000001"]
    # Not there up to some point, there from then on.
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 5


def test_a_save_that_lets_an_old_one_go(tmp_path):
    def prepare(folder):
        store = CheckpointStore(folder, keep_last_n=2)
        for step in (1, 2, 3):
            store.mark_best(store.save(step, fill(step)), "reward", 0.0 - step)
            store.mark_best(store.list()[0], "reward", 0.0)

    def save(folder):
        CheckpointStore(folder, keep_last_n=2).save(4, fill(4))

    seen = set()
    for folder, killed in killed_everywhere(tmp_path, prepare, save):
        store = CheckpointStore(folder, keep_last_n=2)
        steps = tuple(checkpoint.step for checkpoint in store.list())
        seen.add(steps)
        assert len(visible(folder)) == len(steps) + 1  # no half ones; and best.json
        for checkpoint in store.list():
            check(open_checkpoint(checkpoint.path))
        assert store.newest().step == steps[-1]
        assert store.best.step == 1
        assert killed or steps == (1, 3, 4)
    assert seen == {(1, 2, 3), (1, 2, 3, 4), (1, 3, 4)}


def test_a_step_that_is_saved_again(tmp_path):
    def prepare(folder):
        CheckpointStore(folder).save(1, fill(1, "old"))

    def save(folder):
        CheckpointStore(folder).save(1, fill(1, "new"))

    versions, num_gaps = [], 0
    for folder, killed in killed_everywhere(tmp_path, prepare, save):
        num_gaps += not (folder / "step-00000001").exists()
        store = CheckpointStore(folder)
        versions.append(check(store.newest(), "old", "new"))
        assert visible(folder) == ["step-00000001"]
        assert killed or versions[-1] == "new"
    assert versions == sorted(versions, reverse=True)
    assert num_gaps == 1  # it was killed between the two renames, and came back


def test_another_best(tmp_path):
    def prepare(folder):
        store = CheckpointStore(folder)
        store.mark_best(store.save(1, fill(1)), "reward", 1.0)
        store.save(2, fill(2))

    def mark(folder):
        store = CheckpointStore(folder)
        store.mark_best(store.newest(), "reward", 2.0)

    for folder, killed in killed_everywhere(tmp_path, prepare, mark):
        assert (folder / "best.json").exists()
        best = CheckpointStore(folder).best
        assert (best.step, best.value) in ({(1, 1.0), (2, 2.0)} if killed else {(2, 2.0)})


def test_a_removal(tmp_path):
    def prepare(folder):
        store = CheckpointStore(folder)
        for step in (1, 2):
            store.save(step, fill(step))

    def remove(folder):
        discard(CheckpointStore(folder).newest().path)

    for folder, killed in killed_everywhere(tmp_path, prepare, remove):
        steps = [checkpoint.step for checkpoint in CheckpointStore(folder).list()]
        assert steps in ([[1, 2], [1]] if killed else [[1]])
        assert len(visible(folder)) == len(steps)
        check(CheckpointStore(folder).newest())
