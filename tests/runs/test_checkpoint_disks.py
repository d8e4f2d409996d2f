"""A disk that is full or may not be written to: a clear error, and the last good one stays."""

import errno
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runs.saved_folders import check, fill, hidden, in_child
from turnwise import whole_files
from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.checkpoints import CheckpointStore, open_checkpoint, save_checkpoint_to
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import RunFolder

NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path, request):
    """A disk of 400 kB, where mounting one is allowed; or one for a few files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = getattr(request, "param", "size=400k")
    mount = ["mount", "-t", "tmpfs", "-o", size, "none", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def open_place():
    """A folder whose parents everybody may enter; that of pytest is for its owner."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder).resolve()


def as_ordinary_user(work):
    """Run in a process that permissions bind, and return what it reported."""

    def bound(report):
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        report(work())

    said, _ = in_child(bound).wait()
    return "\n".join(said)


def message_of(work):
    try:
        work()
    except CheckpointError as error:
        return str(error)
    return "no error"


def writes(num_bytes):
    return lambda folder: (folder / "big").write_bytes(bytes(num_bytes))


def writes_tensors(folder):
    save_file({"weights": np.zeros(200_000, np.float32)}, folder / "big.safetensors")


class TestFullDisk:
    @pytest.mark.parametrize("write", [writes(800_000), writes_tensors])
    def test_a_real_one(self, small_disk, write):
        store = CheckpointStore(small_disk)
        store.save(1, fill(1), {})
        with pytest.raises(CheckpointError, match=r"disk is full.*are left.*keep_last_n") as caught:
            store.save(2, write, {})
        assert str(small_disk / "step-00000002") in str(caught.value)
        assert os.listdir(small_disk) == ["step-00000001"]
        check(store.newest())
        store.save(3, fill(3), {})

    @pytest.mark.parametrize("small_disk", ["size=4m,nr_inodes=12"], indirect=True)
    def test_one_that_can_hold_no_more_files(self, small_disk):
        store = CheckpointStore(small_disk)
        store.save(1, fill(1), {})
        with pytest.raises(CheckpointError, match=r"the disk is full, of bytes or of files"):
            store.save(2, fill(2), {})
        assert os.listdir(small_disk) == ["step-00000001"]
        for number in range(20):
            with suppress(OSError):
                (small_disk / f"file-{number}").touch()
        log = MetricsLog(small_disk / "run" / "metrics.jsonl")
        with pytest.raises(ConfigError, match=r"cannot write .*metrics\.jsonl: the disk is full"):
            log.append({"step": 1})
        with pytest.raises(CheckpointError, match=r"cannot save .*run\.json: the disk is full"):
            RunFolder(small_disk).write_status(status="running")

    @pytest.mark.parametrize("text", ["stopped: the disk is full", "stopped: é " + "x" * 9000])
    def test_a_status_can_change_without_room(self, small_disk, text):
        folder = RunFolder(small_disk)
        folder.write_status(status="running", step=3, names=list(range(40)))
        with suppress(OSError), open(small_disk / "large", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        folder.overwrite_status(text)
        assert folder.status["status"][:16] == text[:16]
        assert folder.status["step"] == 3

    def test_the_manifest_finds_no_room(self, small_disk):
        store = CheckpointStore(small_disk)
        store.save(1, fill(1), {})
        with pytest.raises(CheckpointError, match="disk is full"):
            store.save(2, fill(2), {"large": "x" * 500_000})
        check(store.newest())
        with pytest.raises(CheckpointError, match=r"cannot save .*best\.json: the disk is full"):
            store.mark_best(store.newest(), "x" * 500_000, 1.0)
        assert os.listdir(small_disk) == ["step-00000001"]

    def test_when_it_is_only_noticed_by_fsync(self, tmp_path, monkeypatch):
        def full(handle):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        store = CheckpointStore(tmp_path)
        store.save(1, fill(1), {})
        with monkeypatch.context() as patch:
            patch.setattr(whole_files.os, "fsync", full)
            with pytest.raises(CheckpointError, match=r"the disk is full.*quota"):
                store.save(1, fill(1, "again"), {})
        check(store.newest())
        assert hidden(tmp_path) == []


class TestReadOnly:
    def test_a_folder_without_permission(self, open_place):
        store = CheckpointStore(open_place / "checkpoints")
        store.save(1, fill(1), {})
        os.chmod(store.folder, 0o555)
        said = as_ordinary_user(lambda: message_of(lambda: store.save(2, fill(2), {})))
        assert f"{store.folder} cannot be written to (Permission denied)" in said
        assert "checkpoint.output_dir" in said
        os.chmod(store.folder, 0o755)
        check(store.newest())
        assert os.listdir(store.folder) == ["step-00000001"]

    def test_reading_needs_no_permission_to_write(self, open_place):
        store = CheckpointStore(open_place / "checkpoints")
        saved = store.save(1, fill(1), {})
        store.mark_best(saved, "reward", 1.0)
        (store.folder / ".step-00000002.saving-00000000-00000000").mkdir()
        os.chmod(store.folder, 0o555)

        def read():
            reader = CheckpointStore(store.folder)
            check(open_checkpoint(saved.path))
            return [reader.newest().step, reader.best.step, len(reader.list())]

        assert as_ordinary_user(read) == "[1, 1, 1]"

    def test_a_folder_that_may_not_be_looked_into(self, open_place):
        folder = open_place / "checkpoints"
        saved = CheckpointStore(folder).save(1, fill(1), {})
        os.chmod(saved.path / "weights.bin", 0)
        said = as_ordinary_user(lambda: message_of(lambda: open_checkpoint(saved.path)))
        assert "cannot read weights.bin of" in said
        os.chmod(folder, 0)
        said = as_ordinary_user(lambda: message_of(lambda: CheckpointStore(folder)))
        assert said == f"cannot read {folder}: Permission denied"

    def test_a_disk_that_is_read_only(self, small_disk):
        store = CheckpointStore(small_disk)
        store.save(1, fill(1), {})
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(CheckpointError, match=r"cannot be written to \(Read-only file system"):
            store.save(2, fill(2), {})
        check(store.newest())


class TestInTheWay:
    @pytest.mark.parametrize("below", ["", "checkpoints", "run/checkpoints"])
    def test_a_file_where_a_folder_should_be(self, tmp_path, below):
        (tmp_path / "file").write_text("mine")
        store = CheckpointStore(tmp_path / "file" / below)
        with pytest.raises(CheckpointError, match=r"file is a file, expected a folder"):
            store.save(1, fill(1), {})
        with pytest.raises(CheckpointError, match=r"file is a file, expected a folder"):
            save_checkpoint_to(tmp_path / "file" / below / "mine", fill(1), {}, 1)
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_name_that_is_too_long(self, tmp_path):
        with pytest.raises(CheckpointError, match="File name too long"):
            save_checkpoint_to(tmp_path / ("x" * 250), fill(1), {}, 1)
