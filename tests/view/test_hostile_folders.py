"""Run folders that hold anything: the viewer answers every page, and shows the other runs."""

import contextlib
import logging
import os
import random
import shutil
import socket
import time

import pyarrow as pa
import pytest
from pyarrow import parquet

from turnwise import ConfigStore, http_server
from turnwise.runs import metrics_log
from turnwise.view import episodes, runs
from view.runs_to_view import crowd, said, write_run
from view.serving import eventually, open_library, refresh, serving

FILES = ("run.json", "metrics.jsonl", "config.yaml", "tokenizer.json", "changes.jsonl", "log.txt")
EPISODES = "episodes/step-000001.parquet"
DEEP = b"[" * 100_000
OBJECTS = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
LAUGHS = "a0: &a0 [x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


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
        ("run.json", DEEP, "run.json is nested too deeply"),
        ("run.json", OBJECTS, "run.json is nested too deeply"),
        ("run.json", b"", "run.json is not JSON"),
        ("run.json", b"[1]", "expected a JSON object"),
        ("run.json", b'{"step": []}', "step got [], expected a whole number"),
        ("metrics.jsonl", DEEP + b"\n", "line 1: expected a JSON object"),
        ("metrics.jsonl", b'{"step": 1}\n{"reward": {}}\n\n', "line 2: 'reward' got {}"),
        ("metrics.jsonl", b'{"step": 1, "reward": 1' + b"0" * 400 + b"}\n", "'reward' got 1000"),
        ("metrics.jsonl", b"\xff\xfe\n" * 1000, "(999 more lines cannot be read)"),
        ("metrics.jsonl", b"x" * 2_000_000, "line 1: it has 2,000,000 bytes"),
        ("config.yaml", LAUGHS.encode(), "more than 100,000 values"),
        ("config.yaml", b"a: &a [*a]", "an alias stands inside of what it names"),
        ("config.yaml", b"training: " + b"x" * 300_000, "expected at most 262,144"),
        ("changes.jsonl", b"[]\n", "changes.jsonl, line 1: got []"),
        (EPISODES, b"", "no whole Parquet file"),
        (EPISODES, b"PAR1" * 500, "no whole Parquet file"),
    ],
    ids=range(16),
)
def test_a_file_that_is_no_such_file_is_shown_with_the_reason(client, spoil, name, content, words):
    spoil(name, content)
    (problem,) = problems(client)
    assert words in problem
    assert name.rpartition("/")[2] in problem


def test_files_that_are_no_files(client, spoil, place):
    for name in (*FILES, EPISODES):
        for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to(path.name)):

            def replace(path, make=make):
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
                make(path)

            spoil(name, replace)
        path = place / "bad" / name
        path.unlink()
        shutil.copy(place.parent / "spare" / name, path)
    spoil("log.txt", b"")
    assert problems(client) == []


def test_any_bytes_in_any_file(client, spoil, place):
    rng = random.Random(0)
    for number in range(30):
        name = rng.choice((*FILES, EPISODES))
        good = (place.parent / "spare" / name).read_bytes()
        kind = rng.randrange(4)
        if kind == 0:
            content = rng.randbytes(rng.randrange(300))
        elif kind == 1:
            content = good[: rng.randrange(len(good))]
        else:
            spoiled = bytearray(good)
            for _ in range(rng.randint(1, 20)):
                spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
            content = bytes(spoiled)
        spoil(name, content)
        if number % 10 == 9:
            restore(place)


# ---- files of episodes that are Parquet files, and lie ----


def rewrite(path, change):
    """The same file with other values, of the same types."""
    table = parquet.read_table(path)
    rows = table.to_pylist()
    change(rows)
    parquet.write_table(pa.Table.from_pylist(rows, table.schema), path)


ODD = {int: [-1, 0, 7, 2**31 - 1], float: [-1.0, float("nan"), float("inf")], bool: [True, False]}
WORDS = ["", "x", "null", "{}", "[1]", '{"a":', "[" * 9000, "done", "\ufffd"]


def spoil_somewhere(rng, value):
    """Put something odd of the same kind somewhere into a row, or take something out."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.9:
            value = value[key]
            continue
        if isinstance(value, list) and rng.random() < 0.5:
            del value[key]
        elif value[key] is not None:
            value[key] = rng.choice(ODD.get(type(value[key]), WORDS))
        return


def test_episodes_of_any_values(client, spoil, place, caplog):
    rng = random.Random(1)
    spare = place.parent / "spare" / EPISODES

    def change(rows):
        for _ in range(rng.randint(1, 3)):
            spoil_somewhere(rng, rng.choice(rows))

    def write(path):
        shutil.copy(spare, path)
        with contextlib.suppress(pa.ArrowException, TypeError):
            rewrite(path, change)

    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            spoil(EPISODES, write)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) < 20


@pytest.mark.parametrize("name", ["token_ids", "mask", "sampler_log_probs"])
def test_columns_that_do_not_fit_together(client, spoil, name):
    def change(rows):
        rows[0]["agents"][0][name].pop()

    answered = spoil(EPISODES, lambda path: rewrite(path, change))
    status, body = answered["/episodes/train-1-0/tokens"]
    assert status == 400
    assert b"step-000001.parquet" in body


def test_a_bomb_is_not_unpacked(client, spoil, monkeypatch):
    for module in (runs, episodes):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 2**20)

    def change(rows):
        rows[0]["text"] = "x" * 2**24

    status, body = spoil(EPISODES, lambda path: rewrite(path, change))["/episodes/train-1-0"]
    assert status == 400
    assert b"bytes unpacked, expected at most 1,048,576" in body


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


def test_half_requests_end(client, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        doors = []
        for start in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\n"):
            door = stack.enter_context(socket.create_connection(("127.0.0.1", client.port), 60))
            door.sendall(start)
            doors.append(door)
        # One that sends a byte now and then has no more time for that.
        with contextlib.suppress(OSError):
            for _ in range(8):
                doors[2].sendall(b"X")
                time.sleep(0.1)
        for door in doors:
            with contextlib.suppress(ConnectionError):
                while door.recv(4096):
                    pass


def test_metrics_beyond_the_limit_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_log, "MAX_BYTES", 1000)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {n}}}\n' for n in range(1, 500)))
    reader = metrics_log.MetricsReader()
    for _ in range(3):
        reader.update(path)
        assert 60 < len(reader.lines) < 100
        assert "larger than 1,000 bytes" in reader.problem


def test_many_runs_take_few_open_files(tmp_path):
    for number in range(30):
        write_run(tmp_path / "many" / f"run-{number}", {1: [said("Hello")]})
    before = len(os.listdir("/proc/self/fd"))
    library = open_library(tmp_path / "many")
    summaries = [run.summary() for run in library.runs]
    assert [summary["num_episodes"] for summary in summaries] == [1] * 30
    assert len(os.listdir("/proc/self/fd")) - before < 20
    assert library.get("run-7").key == "run-7"


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
