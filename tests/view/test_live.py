"""The page is told of what happens, and the server ends when it is told to."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import turnwise
from turnwise import ConfigError
from turnwise.cli import main
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.metrics_log import MetricsLog
from turnwise.runs.run_folder import RunFolder
from turnwise.view import server
from turnwise.view.server import PORT, listening
from view.runs_to_view import said, write_run
from view.serving import eventually, serving


class Listening:
    """Hears the events of a viewer."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", "/api/events")
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"].startswith("text/event-stream")

    def next(self):
        """The runs of the next event."""
        while (line := self._answer.readline()) != b"event: runs\n":
            assert line, "the stream ended"
        return json.loads(self._answer.readline().removeprefix(b"data: "))["runs"]

    def until(self, check):
        while not check(runs := {run["key"]: run for run in self.next()}):
            pass
        return runs

    def close(self):
        self._connection.close()


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "runs" / "one", {1: [said("Hello")]}, status="running")


@pytest.fixture
def live(folder, monkeypatch):
    monkeypatch.setattr(server, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(server, "_TICK_SECONDS", 0.01)
    with serving(folder.parent) as client:
        listener = Listening(client.port)
        yield client, listener
        listener.close()


def test_a_step_is_told(live, folder):
    client, listener = live
    assert [run["step"] for run in listener.next()] == [1]
    EpisodeStore(folder / "episodes", 1e9).write(2, [said("Again"), said("And again")])
    MetricsLog(folder / "metrics.jsonl").append({"step": 2, "reward": 0.5})
    runs = listener.until(lambda runs: runs["one"]["num_episodes"] == 3)
    assert runs["one"]["step"] == 2
    assert client.get("/api/runs/one/episodes", text="and again")["total"] == 1


def test_the_end_of_a_run_is_told(live, folder):
    _, listener = live
    RunFolder(folder).write_status(status="finished", step=1, num_steps=1, environment="talk")
    listener.until(lambda runs: runs["one"]["status"] == "finished")


def test_a_new_run_is_told_and_one_that_went_away(live, folder):
    client, listener = live
    write_run(folder.parent / "two", {1: [said("Hello")]})
    listener.until(lambda runs: runs.keys() == {"one", "two"})
    (folder.parent / "two" / "run.json").unlink()
    (folder.parent / "two" / "metrics.jsonl").unlink()
    listener.until(lambda runs: runs.keys() == {"one"})
    assert client.error("/api/runs/two", 404)


def test_a_run_lives_while_somebody_trains_in_it(live, folder):
    client, _ = live

    def is_live():
        return client.get("/api/runs")["runs"][0]["is_live"]

    long_ago = 1_000_000_000
    for file in folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    eventually(lambda: not is_live())
    if Path("/proc/locks").exists():
        with RunFolder(folder).held():
            eventually(is_live)


def command(*arguments):
    return [sys.executable, "-m", "turnwise", "view", *map(str, arguments)]


def environment(**more):
    source = str(Path(turnwise.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "DISPLAY": "", "WAYLAND_DISPLAY": "", **more}


def test_it_waits_for_the_first_run_and_ctrl_c_ends_it_though_a_page_listens(tmp_path):
    process = subprocess.Popen(
        command(),  # in a folder that has no runs, nor a folder for them
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    line = process.stdout.readline()
    assert line.startswith("Waiting for the first run in runs: http://127.0.0.1:")
    listener = Listening(int(line.partition("127.0.0.1:")[2].partition("/")[0]))
    assert listener.next() == []
    write_run(tmp_path / "runs" / "one", {1: [said("Hello")]})
    listener.until(lambda runs: runs.keys() == {"one"})
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode == 0
    listener.close()


def test_it_needs_no_torch():
    code = "import sys, turnwise.view.server; print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.stdout.strip() == "set()", done.stderr


class TestMistakes:
    @pytest.fixture
    def view(self, capsys):
        """What the command says of a mistake."""

        def said_of(*arguments):
            with pytest.raises(SystemExit) as ended:
                main(["view", *map(str, arguments), "--no-open"])
            assert ended.value.code == 2
            return capsys.readouterr().err

        return said_of

    def test_a_folder_that_cannot_appear(self, view, tmp_path):
        place = tmp_path / "rnus" / "guess"
        assert f"there is no run {place}" in view(place)

    def test_a_port_that_is_taken(self, view, folder):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert f"cannot listen on port {port}" in view(folder, "--port", port)


def test_the_next_port_is_taken_if_the_usual_one_is_not_free():
    with listening(None) as first, listening(None) as second:
        ports = first.getsockname()[1], second.getsockname()[1]
        assert PORT <= ports[0] < ports[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"cannot listen on port {ports[0]}"):
            listening(ports[0])
