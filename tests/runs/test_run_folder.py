"""What makes a folder a run, for the commands, for training and for the viewer."""

import pytest

from turnwise.cli.run_paths import find_run, find_source
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.places import base_folders, describe_base
from turnwise.runs.run_folder import RunFolder, is_run, run_containing
from turnwise.view.runs import Library


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
def test_a_copy_with_either_file_is_a_run_and_is_shown(tmp_path, file):
    (tmp_path / file).touch()
    assert is_run(tmp_path)
    assert find_run(tmp_path) == tmp_path
    library = Library([tmp_path])
    assert library.find()
    assert [run.folder.path for run in library.runs] == [tmp_path]


@pytest.mark.parametrize("saved", ["checkpoints/step-00000002", "verl/global_step_2"])
def test_what_was_saved_makes_a_folder_a_run(tmp_path, saved):
    (tmp_path / saved).mkdir(parents=True)
    assert find_run(tmp_path) == tmp_path


def test_a_folder_that_only_has_a_name_of_ours_is_no_run(tmp_path):
    """As a project has that keeps models in `checkpoints`."""
    (tmp_path / "checkpoints" / "mine").mkdir(parents=True)
    assert find_run(tmp_path) is None
    (tmp_path / "run.json").mkdir()
    assert not is_run(tmp_path)


def test_a_checkpoint_belongs_to_a_copy_of_a_run(tmp_path):
    store = CheckpointStore(tmp_path / "mine" / "checkpoints")
    for step in (1, 2):
        store.save(step, lambda folder: (folder / "state.json").write_text("{}"))
    run = tmp_path / "mine"
    assert run_containing(store.path(1)) == run
    base = describe_base(tmp_path, run)
    RunFolder(run).write_status(base_directory=base)
    assert base_folders(store.path(1)) == base_folders(run) == [tmp_path, tmp_path]
    alone = store.path(1).rename(tmp_path / "alone")
    assert run_containing(alone) == alone


def test_the_best_checkpoint_of_a_run_is_found(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    first, last = (
        store.save(step, lambda folder: (folder / "state.json").write_text("{}")) for step in (1, 2)
    )
    assert find_source(str(tmp_path), "best") == tmp_path  # none is marked: its last one
    store.mark_best(first, "reward", 1.0)
    assert find_source(str(tmp_path), "best") == first.path
    assert find_source(str(last.path), "best") == last.path
    assert find_source(str(tmp_path), "last") == tmp_path
    assert find_source("tiny", "best") is None
