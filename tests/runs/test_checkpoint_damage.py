"""A checkpoint that is not what was saved is refused, by the name of the file."""

import json
import os
import shutil

import pytest

from runs.saved_folders import check, fill
from turnwise.errors import CheckpointError
from turnwise.runs.checkpoints import CheckpointStore, open_checkpoint, sealed_json


@pytest.fixture
def store(tmp_path):
    """With two good ones; the second is the one to damage."""
    return filled(tmp_path / "checkpoints")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The same for laws of many cases, each of which puts back what it damaged."""
    return filled(tmp_path_factory.mktemp("run"))


def filled(folder):
    store = CheckpointStore(folder)
    for step in (1, 2):
        store.save(step, fill(step), {"note": "Grüße", "loss": 0.25})
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


FILES = ("weights.bin", "parts/state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_found(shared, name):
    path = last(shared) / name
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        refused(shared, f"{name}: it")
    path.write_bytes(good)
    assert shared.newest().step == 2


def test_the_warning_says_which_and_what(store, caplog):
    path = last(store) / "weights.bin"
    path.write_bytes(path.read_bytes().swapcase())
    assert store.newest().step == 1
    [record] = caplog.records
    assert record.levelname == "WARNING"
    message = record.getMessage()
    assert str(last(store)) in message
    assert "weights.bin: its sha256 is not that of the manifest" in message
    assert message.endswith("Using step-00000001 instead.")


def test_a_file_cut_short_or_gone_or_new(store):
    path = last(store) / "weights.bin"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    refused(store, rf"weights\.bin: it has {size - 1} bytes, and the manifest {size}")
    path.unlink()
    refused(store, r"weights\.bin: it is missing")
    shutil.copy(store.folder / "step-00000001" / "weights.bin", path)
    refused(store, r"weights\.bin: its sha256")
    fill(3)(store.folder.parent)
    shutil.copy(store.folder.parent / "weights.bin", last(store) / "parts" / "new")
    refused(store, "parts/new: it was not there when")


def test_links_and_devices(store, tmp_path):
    path = last(store) / "weights.bin"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    refused(store, r"weights\.bin: it is a link")
    path.unlink()
    os.mkfifo(path)
    refused(store, r"weights\.bin: it is a link or a device")
    path.unlink()
    (last(store) / "parts").rename(tmp_path / "parts")
    (last(store) / "parts").symlink_to(tmp_path / "parts")
    refused(store, "parts: it is a link")


def test_a_manifest_that_is_a_link(store, tmp_path):
    path = last(store) / "manifest.json"
    path.rename(tmp_path / "manifest.json")
    path.symlink_to(tmp_path / "manifest.json")
    refused(store, r"no manifest\.json")


def rewritten(store, **changes):
    """A manifest that is well sealed and says something else."""
    path = last(store) / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    del content["sha256"]
    path.write_bytes(sealed_json(content))


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "../..", "..", ".", "/etc/hostname", "parts/../../secret", "./x", "a//b"),
        *("", "manifest.json", "a/" * 50 + "b", "a\0b"),
    ],
)
def test_names_that_lead_elsewhere(store, name):
    rewritten(store, files={name: {"size": 0, "sha256": ""}})
    refused(store, r"manifest\.json: it names")


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [1]},
        {"files": {"weights.bin": 3}},
        {"files": {"weights.bin": {"size": -1, "sha256": ""}}},
        {"files": {"weights.bin": {"size": "1", "sha256": ""}}},
        {"step": "x"},
        {"step": -1},
        {"step": 1e300},
        {"meta": 1},
    ],
)
def test_a_manifest_of_another_shape(store, changes):
    rewritten(store, **changes)
    refused(store, r"manifest\.json: not a manifest of a checkpoint")


def test_a_newer_format(store):
    rewritten(store, format=2)
    refused(store, r"it has format 2, and this turnwise reads 1.*newer")


def test_a_folder_with_the_name_of_another_step(store):
    (store.folder / "step-00000001").rename(store.folder / "step-00000007")
    newest = store.newest()
    assert (newest.step, newest.path.name) == (2, "step-00000002")


def test_all_damaged_is_an_error_that_names_each(store):
    for step in (1, 2):
        (store.folder / f"step-0000000{step}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)none of.*step-00000002.*step-00000001"):
        store.newest()
    assert store.list() == []


def test_what_is_no_checkpoint_at_all(store, tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nothing" / "at" / "all")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="it is a file"):
        open_checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"did not finish\. Did you mean .*step-00000002\?"):
        open_checkpoint(store.folder)
    with pytest.raises(CheckpointError, match=r"did not finish\. Did you mean .*step-00000002\?"):
        open_checkpoint(tmp_path)


def test_none_at_all_is_none(tmp_path):
    assert CheckpointStore(tmp_path / "nothing").newest() is None
    assert not (tmp_path / "nothing").exists()


def test_folders_inside_each_other_without_end(store, monkeypatch):
    monkeypatch.chdir(last(store))
    for _ in range(100):
        os.mkdir("d")
        os.chdir("d")
    refused(store, "folders inside each other")


def test_a_manifest_that_is_a_pipe_or_without_end(store):
    path = last(store) / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    refused(store, "it has no manifest")
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 30)
    refused(store, "expected at most")


@pytest.mark.parametrize(
    "mark",
    [
        {},
        {"step": 1},
        {"step": [], "metric": "reward", "value": 1.0},
        {"step": 1, "metric": 5, "value": 1.0},
        {"step": 1, "metric": "reward", "value": "high"},
    ],
)
def test_a_mark_of_the_best_of_another_shape(store, mark, caplog):
    (store.folder / "best.json").write_bytes(sealed_json({"format": 1, **mark}))
    assert store.best is None
    assert "it does not say which checkpoint is the best" in caplog.text
    assert store.newest() is not None
