"""Checkpoints: what is saved comes back whole, only the old goes, damage is named."""

import os
import shutil
import subprocess

import pytest

from runs.saved_folders import check, fill, hidden
from turnwise import whole_files
from turnwise.errors import CheckpointError
from turnwise.runs.checkpoints import CheckpointStore, open_checkpoint, save_checkpoint_to
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import RunFolder


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def save(store, *steps, version=""):
    return [store.save(step, fill(step, version)) for step in steps][-1]


def steps(store):
    return [checkpoint.step for checkpoint in store.list()]


class TestRoundTrip:
    def test_what_was_saved_comes_back(self, store):
        saved = store.save(12, fill(12))
        assert saved.path == store.folder / "step-00000012"
        assert store.newest() == open_checkpoint(saved.path) == store.list()[0] == saved
        assert saved.step == 12
        check(saved)
        assert hidden(store.folder) == []

    def test_a_file_that_is_not_in_it(self, store):
        with pytest.raises(CheckpointError, match=r"no file 'model'.*weights\.bin"):
            save(store, 1).file("model")

    def test_all_of_it_is_on_the_disk_before_it_has_its_name(self, store, monkeypatch):
        fsync, rename = os.fsync, os.rename
        synced, before = set(), set()

        def state(stat):
            return stat.st_ino, stat.st_mtime_ns  # a folder's time is that of its last new file

        def record(handle):
            synced.add(state(os.fstat(handle)))
            fsync(handle)

        def name_it(source, target):
            before.update(synced)
            synced.clear()
            rename(source, target)

        monkeypatch.setattr(whole_files.os, "fsync", record)
        monkeypatch.setattr(whole_files.os, "rename", name_it)
        saved = save(store, 1)
        above = (store.folder.parent, store.folder.parent.parent)
        assert {
            state(path.stat()) for path in (saved.path, *saved.path.rglob("*"), *above)
        } <= before
        assert synced == {state(store.folder.stat())}


class TestReplacing:
    def test_the_same_step_again(self, store):
        save(store, 1, 2)
        save(store, 2, version="again")
        assert steps(store) == [1, 2]
        check(store.newest(), "again")
        assert hidden(store.folder) == []

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_what_write_raises_propagates_and_nothing_changes(self, store, error):
        save(store, 1)

        def write(folder):
            fill(1, "again")(folder)
            raise error

        with pytest.raises(error):
            store.save(1, write)
        check(store.newest())
        assert os.listdir(store.folder) == ["step-00000001"]

    @pytest.mark.parametrize("nth", [1, 2])
    def test_an_interrupt_between_the_renames_leaves_the_old_one(self, store, monkeypatch, nth):
        save(store, 1)
        rename, calls = os.rename, []

        def interrupted(*paths):
            calls.append(paths)
            if len(calls) == nth:
                raise KeyboardInterrupt
            rename(*paths)

        with monkeypatch.context() as patch:
            patch.setattr(whole_files.os, "rename", interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(store, 1, version="again")
        assert os.listdir(store.folder) == ["step-00000001"]
        check(store.newest())


class TestPruning:
    def test_the_newest_few_stay(self, store):
        save(store, 1, 2, 3, 4, 5)
        assert steps(store) == [3, 4, 5]

    def test_the_best_stays_too(self, store):
        store.mark_best(save(store, 1), "eval/success", 0.5)
        save(store, 2, 3, 4, 5)
        assert steps(store) == [1, 3, 4, 5]
        best = store.best
        assert (best.step, best.metric, best.value) == (1, "eval/success", 0.5)
        check(open_checkpoint(store.path(1)))
        store.mark_best(store.newest(), "eval/success", 0.75)
        save(store, 6)
        assert steps(store) == [4, 5, 6]
        assert CheckpointStore(store.folder).best.step == 5

    def test_a_damaged_mark_is_mentioned(self, store, caplog):
        store.mark_best(save(store, 1), "reward", 1.0)
        (store.folder / "best.json").write_text('{"format": 1')
        assert store.best is None
        assert "best.json is not JSON" in caplog.text
        with pytest.raises(CheckpointError, match="reward got nan"):
            store.mark_best(store.newest(), "reward", float("nan"))
        store.mark_best(store.newest(), "reward", 2.0)
        assert store.best.value == 2.0

    def test_later_steps_do_not_crowd_out_what_is_saved_now(self, tmp_path):
        store = CheckpointStore(tmp_path, keep_last_n=1)
        save(store, 12)
        save(store, 5)
        assert steps(store) == [5, 12]
        save(store, 6)
        assert steps(store) == [6, 12]
        save(store, 13)
        assert steps(store) == [13]

    def test_other_things_in_the_folder_are_let_be(self, store):
        save(store, 1)
        for name in ("notes.txt", "step-12.txt", ".hidden"):
            (store.folder / name).write_text("mine")
        save(store, 2, 3, 4, 5)
        assert steps(store) == [3, 4, 5]
        assert (store.folder / ".hidden").read_text() == "mine"
        assert (store.folder / "step-12.txt").read_text() == "mine"


class TestPlacesOfTheUser:
    def test_saved_opened_and_replaced(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        saved = save_checkpoint_to("my/folder", fill(3), 3)
        assert saved.path == tmp_path / "my" / "folder"
        assert open_checkpoint(saved.path) == saved
        (saved.path / "weights.bin").write_text("damaged")
        save_checkpoint_to("my/folder", fill(2, "again"), 2)
        check(open_checkpoint(saved.path), "again")
        assert os.listdir(tmp_path / "my") == ["folder"]

    def test_nothing_else_is_overwritten(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "notes").write_text("mine")
        save_checkpoint_to(tmp_path / "saved", fill(1), 1)
        (tmp_path / "saved" / "notes").write_text("mine")
        for name in ("file", "folder", "saved"):
            with pytest.raises(CheckpointError, match=rf"{name} is not a checkpoint"):
                save_checkpoint_to(tmp_path / name, fill(2), 2)
        assert (tmp_path / "file").read_text() == "mine"
        assert (tmp_path / "folder" / "notes").read_text() == "mine"
        assert (tmp_path / "saved" / "notes").read_text() == "mine"
        assert hidden(tmp_path) == []


# ---- damage ----


@pytest.fixture
def two(store):
    """With two good ones; the second is the one to damage."""
    save(store, 1, 2)
    return store


def last(store):
    return store.folder / "step-00000002"


def refused(store, reason):
    """By itself with that reason, and passed over by the store."""
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(last(store))
    newest = store.newest()
    assert newest.step == 1
    check(newest)


@pytest.mark.parametrize("name", ["weights.bin", "parts/state.json"])
def test_any_flipped_bit_is_found(two, name):
    path = last(two) / name
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        refused(two, f"{name} was changed or cut")
    path.write_bytes(good)
    assert two.newest().step == 2


def test_the_warning_says_which_and_what(two, caplog):
    path = last(two) / "weights.bin"
    path.write_bytes(path.read_bytes().swapcase())
    assert two.newest().step == 1
    message = caplog.messages[0]
    assert str(last(two)) in message
    assert message.endswith("Using step-00000001 instead.")


def test_a_file_that_is_gone_or_new(two):
    path = last(two) / "weights.bin"
    content = path.read_bytes()
    path.unlink()
    refused(two, r"weights\.bin is missing")
    path.write_bytes(content)
    (last(two) / "parts" / "new").touch()
    refused(two, "parts/new was not there when")


def test_a_file_that_cannot_be_read_is_the_cause(two):
    path = last(two) / "weights.bin"
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="cannot use the checkpoint") as caught:
        open_checkpoint(last(two))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ('{"format": 2}', "has format 2, and this turnwise reads 1"),
        ('{"format": 1, "files": [1]}', "is damaged"),
    ],
)
def test_a_manifest_that_is_none(two, content, words):
    (last(two) / "manifest.json").write_text(content)
    refused(two, words)


def test_a_folder_with_the_name_of_another_step(two):
    (two.folder / "step-00000001").rename(two.folder / "step-00000007")
    newest = two.newest()
    assert (newest.step, newest.path.name) == (2, "step-00000002")


def test_all_damaged_is_an_error_that_names_each(two):
    for step in (1, 2):
        (two.folder / f"step-0000000{step}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)none of.*step-00000002.*step-00000001"):
        two.newest()
    assert two.list() == []


def test_what_is_no_checkpoint_at_all(two, tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nothing" / "at" / "all")
    for folder in (two.folder, two.folder.parent):
        with pytest.raises(CheckpointError, match=r"Did you mean .*step-00000002\?"):
            open_checkpoint(folder)
    assert CheckpointStore(tmp_path / "nothing").newest() is None
    assert not (tmp_path / "nothing").exists()


# ---- disks ----


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 400 kB, where mounting one is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk):
    store = CheckpointStore(small_disk)
    save(store, 1)
    with pytest.raises(CheckpointError, match=r"No space left.*keep_last_n") as caught:
        store.save(2, lambda folder: (folder / "big").write_bytes(bytes(800_000)))
    assert str(small_disk / "step-00000002") in str(caught.value)
    assert os.listdir(small_disk) == ["step-00000001"]
    check(store.newest())
    save(store, 3)
    with pytest.raises(CheckpointError, match=r"cannot save .*run\.json: No space"):
        RunFolder(small_disk).write_status(status="x" * 500_000)
    with pytest.raises(CheckpointError, match=r"cannot save .*metrics\.jsonl: No space"):
        MetricsLog(small_disk / "metrics.jsonl").append({"step": 1, "x": "x" * 500_000})


def test_a_disk_that_is_read_only(small_disk):
    store = CheckpointStore(small_disk)
    save(store, 1)
    store.mark_best(store.newest(), "reward", 1.0)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only file system.*checkpoint\.output_dir"):
        save(store, 2)
    check(store.newest())
    assert (store.best.step, len(store.list())) == (1, 1)


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"File exists|Not a directory"):
        save(CheckpointStore(tmp_path / "file" / "checkpoints"), 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_one_that_its_run_removes_while_it_is_read_says_so(tmp_path):
    saved = save_checkpoint_to(tmp_path / "mine", lambda folder: (folder / "x").touch(), 1)
    shutil.rmtree(saved.path)
    with pytest.raises(CheckpointError, match="was removed while it was read"):
        saved.file("x")
