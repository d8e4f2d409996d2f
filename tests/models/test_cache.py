"""Folders of the cache: made once, whole or not there, by however many processes at once."""

import multiprocessing

import pytest

from turnwise import ConfigError
from turnwise.models.load import cached_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "turnwise" / "models"


def test_it_is_filled_once(cache):
    calls = []

    def fill(folder):
        calls.append(folder)
        (folder / "weights").write_text("all")

    assert cached_folder("m", fill) == cached_folder("m", fill) == cache / "m"
    assert len(calls) == 1
    assert (cache / "m" / "weights").read_text() == "all"
    assert [path.name for path in cache.iterdir()] == ["m"]


def test_a_cache_that_cannot_be_made_is_a_message(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot make the folder"):
        cached_folder("m", lambda folder: None)


def _fill_together(barrier, name):
    def fill(folder):
        barrier.wait(timeout=60)  # both are at work before either is done
        (folder / "weights").write_text("all")

    cached_folder(name, fill)


def test_two_processes_at_once(cache):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    workers = [context.Process(target=_fill_together, args=(barrier, "m")) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert (cache / "m" / "weights").read_text() == "all"
    assert [path.name for path in cache.iterdir()] == ["m"]
