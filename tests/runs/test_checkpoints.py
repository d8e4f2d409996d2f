"""The store of checkpoints in good times: what is saved comes back, and only the old goes."""

import fcntl
import os
from contextlib import suppress

import pytest

from runs.saved_folders import check, fill, hidden, in_child
from turnwise import whole_files
from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.checkpoints import (
    CheckpointStore,
    open_checkpoint,
    save_checkpoint_to,
)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def save(store, *steps, version=""):
    return [store.save(step, fill(step, version), {"step": step}) for step in steps][-1]


def steps(store):
    return [checkpoint.step for checkpoint in store.list()]


class TestRoundTrip:
    def test_what_was_saved_comes_back(self, store):
        meta = {"loss": 0.1, "names": ["a", "b"], "deep": {"none": None, "yes": True}}
        saved = store.save(12, fill(12), meta)
        assert saved.path == store.folder / "step-00000012"
        assert store.newest() == open_checkpoint(saved.path) == store.list()[0] == saved
        assert (saved.step, saved.meta) == (12, meta)
        check(saved)
        assert hidden(store.folder) == []

    @pytest.mark.parametrize("value", [float("nan"), [float("inf")], object(), {1, 2}])
    def test_meta_that_json_cannot_hold_is_named(self, store, value):
        with pytest.raises(CheckpointError, match=r"meta\['odd'\]"):
            store.save(1, fill(1), {"fine": 1, "odd": value})
        assert store.newest() is None

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

    def test_the_manifest_is_the_stores_own(self, store):
        with pytest.raises(CheckpointError, match=r"manifest\.json is reserved for the manifest"):
            store.save(1, lambda folder: (folder / "manifest.json").touch(), {})
        assert hidden(store.folder) == []

    def test_links_are_not_saved(self, store, tmp_path):
        (tmp_path / "secret").touch()
        with pytest.raises(CheckpointError, match="door: it is a link"):
            store.save(1, lambda folder: (folder / "door").symlink_to(tmp_path / "secret"), {})
        assert store.list() == []

    def test_wrong_numbers(self, store, tmp_path):
        with pytest.raises(ConfigError, match="step got -1"):
            save(store, -1)
        with pytest.raises(ConfigError, match="keep_last_n got 0"):
            CheckpointStore(tmp_path, keep_last_n=0)


class TestReplacing:
    def test_the_same_step_again(self, store):
        save(store, 1, 2)
        save(store, 2, version="again")
        assert steps(store) == [1, 2]
        check(store.newest(), "again")
        assert hidden(store.folder) == []

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, FileNotFoundError])
    def test_what_write_raises_flies_and_nothing_changes(self, store, error):
        save(store, 1)

        def write(folder):
            fill(1, "again")(folder)
            raise error

        with pytest.raises(error):
            store.save(1, write, {})
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
        assert (store.best.step, store.best.mark.metric, store.best.mark.value) == (
            1,
            "eval/success",
            0.5,
        )
        check(store.best)
        store.mark_best(store.newest(), "eval/success", 0.75)
        save(store, 6)
        assert steps(store) == [4, 5, 6]
        assert CheckpointStore(store.folder).best.step == 5

    def test_only_a_finite_value_of_one_that_is_there_is_best(self, store, tmp_path):
        saved = save(store, 1)
        with pytest.raises(CheckpointError, match="reward got nan"):
            store.mark_best(saved, "reward", float("nan"))
        other = save_checkpoint_to(tmp_path / "mine", fill(1), {}, 1)
        with pytest.raises(CheckpointError, match="not a checkpoint of"):
            store.mark_best(other, "reward", 1.0)
        store.remove(saved)
        with pytest.raises(CheckpointError, match="does not exist"):
            store.mark_best(saved, "reward", 1.0)
        assert store.best is None

    def test_a_damaged_mark_stops_pruning_and_says_so(self, store, caplog):
        store.mark_best(save(store, 1), "reward", 1.0)
        mark = store.folder / "best.json"
        mark.write_bytes(mark.read_bytes().replace(b'"step": 1', b'"step": 3'))
        save(store, 2, 3, 4, 5)
        assert steps(store) == [1, 2, 3, 4, 5]
        assert "best.json: it was changed" in caplog.text
        assert store.best is None
        store.mark_best(store.newest(), "reward", 2.0)
        save(store, 6)
        assert steps(store) == [4, 5, 6]

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


class TestManyAtOnce:
    def test_a_save_in_progress_is_not_taken_for_a_dead_one(self, store):
        def write(folder):
            fill(1)(folder)
            other = CheckpointStore(store.folder)
            save(other, 2)
            assert other.newest().step == 2

        store.save(1, write, {})
        assert steps(store) == [1, 2]
        check(open_checkpoint(store.folder / "step-00000001"))

    def test_two_writers_and_a_reader(self, store):
        save(store, 0)

        def work(first):
            def saves(report):
                for step in range(first, 30, 2):
                    save(CheckpointStore(store.folder, keep_last_n=1), step, 30)

            return saves

        children = [in_child(work(1)), in_child(work(2))]
        for _ in range(30):
            with suppress(FileNotFoundError):  # it may go between the two, but it is never half
                check(store.newest())
        assert [child.wait() for child in children] == [([], False)] * 2
        check(store.newest())
        assert hidden(store.folder) == []

    def test_a_process_that_hangs_is_not_waited_for_forever(self, store, monkeypatch):
        save(store, 1)
        monkeypatch.setattr(whole_files, "PATIENCE_S", 0.02)
        handle = os.open(store.folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another process has been busy"):
            save(store, 2)
        os.close(handle)
        assert save(store, 2).step == 2


class TestPlacesOfTheUser:
    def test_saved_and_opened(self, tmp_path):
        saved = save_checkpoint_to(tmp_path / "my" / "folder", fill(3), {"a": 1}, 3)
        assert saved.path == tmp_path / "my" / "folder"
        assert open_checkpoint(tmp_path / "my" / "folder") == saved
        check(saved)
        assert os.listdir(tmp_path / "my") == ["folder"]

    def test_relative_and_through_a_link(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        save_checkpoint_to("link", fill(1), {}, 1)
        assert (tmp_path / "link").is_symlink()
        check(open_checkpoint("real"))

    def test_one_that_is_there_is_replaced(self, tmp_path):
        path = tmp_path / "[odd] name*"
        save_checkpoint_to(path, fill(1), {}, 1)
        (path / "weights.bin").write_text("damaged")
        save_checkpoint_to(path, fill(2, "again"), {}, 2)
        check(open_checkpoint(path), "again")
        assert os.listdir(tmp_path) == [path.name]

    def test_nothing_else_is_overwritten(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "notes").write_text("mine")
        save_checkpoint_to(tmp_path / "saved", fill(1), {}, 1)
        (tmp_path / "saved" / "notes").write_text("mine")
        for name, reason in {
            "file": "it is a file",
            "folder": r"no manifest\.json",
            "saved": "notes is not a part",
        }.items():
            with pytest.raises(CheckpointError, match=rf"{name} is not a checkpoint.*{reason}"):
                save_checkpoint_to(tmp_path / name, fill(2), {}, 2)
        assert (tmp_path / "file").read_text() == "mine"
        assert (tmp_path / "folder" / "notes").read_text() == "mine"
        assert (tmp_path / "saved" / "notes").read_text() == "mine"
        assert hidden(tmp_path) == []

    def test_what_came_while_it_was_written_stays_too(self, tmp_path):
        def write(folder):
            (tmp_path / "mine").mkdir()
            (tmp_path / "mine" / "notes").touch()

        with pytest.raises(CheckpointError, match="is not overwritten"):
            save_checkpoint_to(tmp_path / "mine", write, {}, 1)
        assert os.listdir(tmp_path / "mine") == ["notes"]
