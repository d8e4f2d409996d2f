"""Damaged run folders: the viewer answers every page, and shows the other runs."""

import os
import shutil

import pytest

from turnwise import ConfigStore
from view.runs_to_view import crowd, said, write_run
from view.serving import eventually, refresh, serving

FILES = ("run.json", "metrics.jsonl", "config.yaml", "tokenizer.json", "changes.jsonl", "log.txt")
EPISODES = "episodes/step-000001.parquet"


def make_run(folder):
    write_run(folder, {1: crowd(3)})
    ConfigStore().save(folder / "config.yaml")
    (folder / "changes.jsonl").write_text('{"step": 1, "settings": {"training.lam": [1, 0.9]}}\n')
    (folder / "log.txt").write_text("2026-01-01 00:00:00,000 INFO begun\n")
    return folder


PAGES = (
    *("", "/metrics", "/episodes", "/episodes?text=lamp", "/episodes/train-1-0"),
    *("/episodes/train-1-0/tokens", "/episodes?seed=1", "/steps/1/timeline"),
)


def answers(client, key="bad"):
    """The answer to every page, none of which is a failure of the server."""
    found = {}
    for page in (*(f"/api/runs/{key}{page}" for page in PAGES), f"/export/{key}/train-1-0.html"):
        status, _, body = client.request(page)
        assert status in (200, 400, 404), (page, body)
        found[page.removeprefix(f"/api/runs/{key}")] = status, body
    runs = client.get("/api/runs")["runs"]
    assert sorted(run["key"] for run in runs) == ["bad", "good"]
    assert client.get("/api/runs/good/episodes/train-1-0")["id"] == "train-1-0"
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A good run, and one that the tests spoil; looked at by one viewer."""
    folder = tmp_path_factory.mktemp("hostile")
    make_run(folder / "good")
    make_run(folder / "bad")
    shutil.copytree(folder / "good", folder.parent / "spare")
    return folder


@pytest.fixture(scope="module")
def client(place):
    with serving(place) as client:
        yield client


def restore(place):
    """Make the bad run a good one; its folder stays, since the viewer looks at it meanwhile."""
    for name in (*FILES, EPISODES):
        path = place / "bad" / name
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        shutil.copy(place.parent / "spare" / name, path)


@pytest.fixture
def spoil(place, client):
    """A function that makes a file of the bad run hold something."""
    restore(place)

    def spoil(name, content):
        path = place / "bad" / name
        path.write_bytes(content) if isinstance(content, bytes) else content(path)
        os.utime(path.parent)  # as the rename does by which a run puts its files there
        refresh(client.viewer.library.get("bad"))
        return answers(client)

    return spoil


def problems(client):
    (run,) = [run for run in client.get("/api/runs")["runs"] if run["key"] == "bad"]
    return run["problems"]


def test_a_run_that_can_be_read_has_no_problems(client, spoil):
    spoil("log.txt", b"")
    assert problems(client) == []
    detail = client.get("/api/runs/bad")
    assert detail["changes"] == [{"step": 1, "settings": {"training.lam": [1, 0.9]}}]
    assert detail["config"]["training"]["seed"] == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", b"", "run.json is not JSON"),
        ("run.json", b"[1]", "expected a JSON object"),
        ("metrics.jsonl", b'{"step": 1}\n{"reward": {}}\n\n', "line 2: 'reward' got {}"),
        ("metrics.jsonl", b"\xff\xfe\n" * 1000, "line 1 is not JSON"),
        ("changes.jsonl", b"{\n", "changes.jsonl is not JSON"),
        (EPISODES, b"", "no whole Parquet file"),
        (EPISODES, b"PAR1" * 500, "no whole Parquet file"),
    ],
    ids=range(7),
)
def test_a_file_that_is_no_such_file_is_shown_with_the_reason(client, spoil, name, content, words):
    spoil(name, content)
    (problem,) = problems(client)
    assert words in problem
    assert name.rpartition("/")[2] in problem


# ---- the viewer itself ----


def test_the_watcher_goes_on_for_the_others(client, spoil, place, monkeypatch, caplog):
    bad = client.viewer.library.get("bad")

    def fail(*_):
        raise RecursionError("too deep")

    monkeypatch.setattr(bad, "_refresh", fail)
    (place / "good" / "run.json").write_text('{"status": "stopped: by the test"}')
    try:
        eventually(lambda: client.get("/api/runs/good")["status"] == "stopped: by the test")
        eventually(lambda: "RecursionError: too deep" in str(problems(client)))
        said = [record for record in caplog.records if "too deep" in record.message]
        assert len(said) <= 1
    finally:
        bad._failure = None


def test_odd_names_of_folders(tmp_path):
    names = ["a b", "ü", "日本", "x\ny", "a&b<c>", "~", "%2e", "'\""]
    for name in names:
        write_run(tmp_path / name, {1: [said("Hello")]})
    raw = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(raw)
    with open(raw + b"/run.json", "w") as file:
        file.write("{}")
    with serving(tmp_path) as client:
        keys = [run["key"] for run in client.get("/api/runs")["runs"]]
        assert len(set(keys)) == len(names) + 1
        for key in keys:
            client.get(f"/api/runs/{key}")
