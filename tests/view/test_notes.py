"""Tags, notes and archive: saved from the page alone, into `notes.json`, and nothing else."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from view.runs_to_view import said, write_run
from view.serving import serving

NONE = {"tags": [], "note": "", "archived": False}


@pytest.fixture(scope="module")
def place():
    """A folder that also others may look into: a test writes as another user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    for name in ("a", "b", "damaged"):
        write_run(folder / name, {1: [said("Hello")]})
    (folder / "damaged" / "notes.json").write_text('{"tags": "no list"}')
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def client(place):
    with serving(place) as client:
        yield client


def save(client, changes, run="a", method="PATCH", **headers):
    """Send a change as the page does, with other headers where they are named."""
    body = changes if isinstance(changes, bytes) else json.dumps(changes).encode()
    usual = {
        "Origin": f"http://127.0.0.1:{client.port}",
        "Content_Type": "application/json",
        "X_Turnwise_Token": client.viewer.write_token,
    }
    sent = {name: value for name, value in (usual | headers).items() if value is not None}
    status, _, answer = client.request(f"/api/runs/{run}/notes", method, body, **sent)
    return status, json.loads(answer)


def notes_of(client, run):
    return next(one["notes"] for one in client.get("/api/runs")["runs"] if one["key"] == run)


def test_notes_are_saved_one_by_one_and_read_again(client, place):
    assert notes_of(client, "a") == NONE
    before = (place / "a" / "run.json").read_bytes()
    assert save(client, {"tags": [" paper ", "long  run", "paper"]})[0] == 200
    assert save(client, {"note": "Größe\n<b>"}) == (
        200,
        {"tags": ["paper", "long run"], "note": "Größe\n<b>", "archived": False},
    )
    assert save(client, {"archived": True})[0] == 200
    written = json.loads((place / "a" / "notes.json").read_text())
    assert written == {"tags": ["paper", "long run"], "note": "Größe\n<b>", "archived": True}
    assert notes_of(client, "a") == client.get("/api/runs/a")["notes"] == written
    assert (place / "a" / "run.json").read_bytes() == before
    assert notes_of(client, "b") == NONE
    assert not (place / "b" / "notes.json").exists()


def test_what_others_wrote_into_the_file_stays(client, place):
    (place / "b" / "notes.json").write_text('{"note": "by hand", "mine": 1}')
    assert save(client, {"tags": ["x"]}, "b")[1] == {**NONE, "tags": ["x"], "note": "by hand"}
    assert json.loads((place / "b" / "notes.json").read_text())["mine"] == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tags": "paper"}, "notes got {'tags': 'paper'}, expected tags: a list of texts"),
        ({"tags": ["a,b"]}, "without commas"),
        ({"tags": [""]}, "without commas"),
        ({"note": 3}, "note: text"),
        ({"archived": "yes"}, "archived: true or false"),
        ({"status": "finished"}, "expected tags, note or archived"),
        ([], "notes got [], expected tags, note or archived"),
        (b"{", "the request is not JSON"),
    ],
)
def test_other_things_are_refused_and_told(client, changes, expected):
    status, answer = save(client, changes)
    assert status == 400
    assert expected in answer["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"X_Turnwise_Token": None},
        {"X_Turnwise_Token": "guessed"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_only_the_page_itself_can_save(client, place, headers):
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    status, answer = save(client, {"note": "from elsewhere"}, **headers)
    assert status == 403
    assert answer["error"]
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_only_to_the_notes_of_a_run_that_is_served(client, place):
    for run in ("none", "..%2f..", "%2e%2e", "a%2fepisodes"):
        assert save(client, {"note": "x"}, run)[0] in (404, 405)
    assert save(client, {"note": "x"}, method="PUT")[0] == 405
    assert save(client, {"note": "x"}, method="POST")[0] == 405
    assert not list(place.glob("notes.json"))


def test_a_file_that_cannot_be_read_is_shown_and_not_replaced(client, place):
    status, answer = save(client, {"note": "mine"}, "damaged")
    assert status == 400
    assert "expected tags: a list" in answer["error"]
    assert (place / "damaged" / "notes.json").read_text() == '{"tags": "no list"}'
    assert "no list" in client.get("/api/runs/damaged")["problems"][0]


def test_a_folder_that_cannot_be_written_is_told(client, place):
    run = place / "a"
    before = (run / "notes.json").read_bytes()
    run.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:  # who may write anywhere
        os.seteuid(65534)
    try:
        status, answer = save(client, {"note": "not to be saved"})
    finally:
        if is_root:
            os.seteuid(0)
        run.chmod(0o755)
    assert status == 403
    assert "cannot be saved" in answer["error"]
    assert "Permission denied" in answer["error"]
    assert (run / "notes.json").read_bytes() == before


def test_a_viewer_that_only_reads_says_so(place):
    with serving(place, is_read_only=True) as client:
        assert client.get("/api/runs")["write_token"] is None
        status, answer = save(client, {"note": "x"}, X_Turnwise_Token="x")
        assert status == 403
        assert "--read-only" in answer["error"]
