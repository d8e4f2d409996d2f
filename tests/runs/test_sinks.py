"""Sinks: they get every step once, say early what is missing, and never stop a run."""

import json
import logging
import sqlite3
import struct
import sys
import threading
import time
import types

import pytest
from typer.testing import CliRunner

from contention import wait_until
from turnwise import ConfigError, ConfigStore, MissingExtraError, Trainer
from turnwise.cli import app
from turnwise.runs import sinks as module
from turnwise.runs.sinks import Sinks, make_sinks

CONFIG = {"training": {"learning_rate": 3e-5, "name": None}, "model": {"model_name": "tiny"}}

SMALL = ["training.num_epochs=1", "training.steps_per_epoch=1", "training.batch_size=2"]
TRACKER = """
class Tracker:
    def __init__(self, run_folder, run_name, config):
        self.path, self.name = run_folder / "tracked.txt", config["environment"]["name"]

    def open(self, first_step):
        self.file = self.path.open("a")
        print("open", self.name, first_step, file=self.file)

    def log(self, step, numbers):
        assert {"reward", "entropy"} <= set(numbers)
        print(step, file=self.file)

    def close(self):
        print("close", file=self.file)
        self.file.close()
"""


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path, monkeypatch):
    """No account of whoever runs the tests is touched."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def metrics(step):
    return {"step": step, "reward": step / 2, "truncated/turns": 1, "note": "text", "kl": 1e400}


@pytest.fixture(autouse=True)
def a_slow_machine_may_take_its_time(monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 120.0)


def run(folder, names, steps, **logging):
    sinks = make_sinks(names, folder, "my-run", {**CONFIG, "logging": logging})
    for step in steps:
        sinks.log(step, metrics(step))
    sinks.close()


def test_an_unknown_name_says_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"got 'tensorbord'.*Did you mean 'tensorboard'"):
        make_sinks(["tensorbord"], tmp_path, "run", {})


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package_is_told_at_the_start(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'turnwise\[{name}\]'"):
        make_sinks([name], tmp_path, "run", {})


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    run(tmp_path, ["tensorboard"], [1, 2, 3, 4])
    run(tmp_path, ["tensorboard"], [3, 4, 5])
    assert read_tensorboard(tmp_path) == {
        "reward": [(step, step / 2) for step in range(1, 6)],
        "truncated/turns": [(step, 1.0) for step in range(1, 6)],
    }


def wandb_records(path):
    """The records of an offline file: LevelDB's log format behind a header of seven bytes."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_wandb(folder):
    """What the offline files hold, oldest first, and the runs by their ids."""
    from wandb.proto.wandb_internal_pb2 import Record

    logged, runs = [], {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime):
        for data in wandb_records(path):
            record = Record.FromString(data)
            if record.HasField("run"):
                runs[record.run.run_id] = record.run
            if record.HasField("history"):
                items = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                logged.append((int(items["_step"]), items["reward"]))
    return logged, runs


def test_wandb_is_offline_without_a_login_and_goes_on_after_a_resume(tmp_path):
    pytest.importorskip("wandb")
    run(tmp_path, ["wandb"], [1, 2, 3])
    run(tmp_path, ["wandb"], [2, 3, 4])
    deadline = time.monotonic() + 60
    while len(read_wandb(tmp_path)[0]) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)  # a process of its own writes the files, and may not be done yet
    logged, runs = read_wandb(tmp_path)
    assert logged == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]
    assert len(runs) == 1


def test_wandb_gets_the_project_the_name_and_the_tags_of_the_settings(tmp_path):
    pytest.importorskip("wandb")
    chosen = {"project": "maze", "name": "first", "tags": ["grpo", "small"]}
    run(tmp_path, ["wandb"], [1], wandb=chosen)
    wait_until(lambda: read_wandb(tmp_path)[1])
    (sent,) = read_wandb(tmp_path)[1].values()
    assert (sent.project, sent.display_name, list(sent.tags)) == tuple(chosen.values())


def test_an_unknown_option_of_wandb_is_refused():
    with pytest.raises(
        ConfigError, match=r"logging.wandb has no 'porject'.*Did you mean 'project'"
    ):
        Trainer({"logging": {"wandb": dict.fromkeys(["porject", "zone", "b", "a"], "maze")}})


def test_trackio_goes_on_after_a_resume(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    place = tmp_path / "trackio"
    for name, loaded in list(sys.modules.items()):
        if name.startswith("trackio") and hasattr(loaded, "TRACKIO_DIR"):
            monkeypatch.setattr(loaded, "TRACKIO_DIR", place)
    place.mkdir()
    run(tmp_path / "run", ["trackio"], [1, 2, 3])
    run(tmp_path / "run", ["trackio"], [2, 3, 4])
    with sqlite3.connect(place / "turnwise.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by step")
        logged = [(name, step, json.loads(values)["reward"]) for name, step, values in rows]
    assert [(step, reward) for _, step, reward in logged] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2)]
    (name,) = {name for name, _, _ in logged}
    assert name.startswith("my-run-")


class FakeClient:
    """What is used of MLflow's client, with its names and its rules for them."""

    runs: dict = {}  # noqa: RUF012 - it outlives the client, as a database does

    def __init__(self, tracking_uri=None, registry_uri=None):
        self.tracking_uri = tracking_uri

    def get_experiment_by_name(self, name):
        known = any(run["experiment"] == name for run in self.runs.values())
        return types.SimpleNamespace(experiment_id=name) if known else None

    def create_experiment(self, name, artifact_location=None, tags=None):
        assert artifact_location.startswith("file:///")
        return name

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        run_id = f"run{len(self.runs)}"
        names = {"experiment": experiment_id, "name": run_name, "uri": self.tracking_uri}
        self.runs[run_id] = {**names, "params": {}, "metrics": []}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        assert len(params) <= 100
        self.runs[run_id]["params"] |= {param.key: param.value for param in params}
        for metric in metrics:
            assert isinstance(metric.timestamp, int)
            assert not set(metric.key) & set("()[]#")
            self.runs[run_id]["metrics"].append((metric.step, metric.key, metric.value))

    def set_terminated(self, run_id, status=None, end_time=None):
        self.runs[run_id]["ended"] = True


@pytest.fixture
def mlflow(monkeypatch):
    """MLflow itself brings pandas, scipy and a web server with it."""

    class Metric:
        def __init__(self, key, value, timestamp, step, model_id=None):
            self.key, self.value, self.timestamp, self.step = key, value, timestamp, step

    class Param:
        def __init__(self, key, value):
            self.key, self.value = key, value

    fake = types.ModuleType("mlflow")
    fake.MlflowClient = FakeClient
    fake.entities = types.SimpleNamespace(Metric=Metric, Param=Param)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setattr(FakeClient, "runs", {})
    return FakeClient


def test_mlflow_goes_on_with_its_run_after_a_resume(tmp_path, mlflow):
    run(tmp_path, ["mlflow"], [1, 2])
    run(tmp_path, ["mlflow"], [2, 3])
    (kept,) = mlflow.runs.values()
    assert [(step, value) for step, name, value in kept["metrics"] if name == "reward"] == [
        *((1, 0.5), (2, 1.0), (3, 1.5))
    ]
    assert kept["uri"] == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert (kept["experiment"], kept["name"], kept["ended"]) == ("turnwise", "my-run", True)
    assert kept["params"]["training.learning_rate"] == "3e-05"


def test_mlflow_takes_the_users_server_and_odd_names(tmp_path, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    sinks = make_sinks(["mlflow", "mlflow"], tmp_path, "run", {"s": dict.fromkeys(range(250), 1)})
    sinks.log(1, {"reward/f(x)": 1.0})
    sinks.close()
    (kept,) = mlflow.runs.values()
    assert kept["uri"] == "http://localhost:1"
    assert kept["metrics"] == [(1, "reward/f_x_", 1.0)]
    assert len(kept["params"]) == 250


class Failing:
    """A sink that raises where it is told to, and remembers what it got."""

    def __init__(self, where=None):
        self.where = where
        self.calls = []

    def _called(self, name, *arguments):
        self.calls.append((name, *arguments))
        if self.where == name:
            raise ConnectionError("the server is away")

    def open(self, first_step):
        self._called("open", first_step)

    def log(self, step, numbers):
        self._called("log", step, numbers)

    def close(self):
        self._called("close")


def test_a_class_in_a_file_is_a_sink(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tracker.py").write_text(TRACKER)
    config = ConfigStore.load(None, ["logging.sinks=[tracker.py:Tracker]", *SMALL])
    config.checkpoint.output_dir = str(tmp_path / "runs")
    with Trainer(config) as trainer:
        trainer.fit()
    (tmp_path / "home").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "home")  # the run finds the file from anywhere
    words = ["train", str(trainer.run_folder), "--lines", "training.num_epochs=2"]
    assert CliRunner().invoke(app, words, standalone_mode=True).exit_code == 0
    lines = (trainer.run_folder / "tracked.txt").read_text().splitlines()
    assert lines == ["open guess-number 1", "1", "close", "open guess-number 2", "2", "close"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tracker.py:Nothing", "has no 'Nothing'"),
        ("tracker.py:half", r"expected a class with open\(first_step\)"),
        ("tracker.py:broken", "broken could not be made: ConnectionError: away"),
    ],
)
def test_what_is_no_sink_is_told_at_the_start(tmp_path, monkeypatch, name, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tracker.py").write_text(
        "class half:\n    def log(self, step, numbers): ...\n"
        "class broken(half):\n    open = close = half.log\n"
        "    def __init__(self, *given): raise ConnectionError('away')\n"
    )
    with pytest.raises(ConfigError, match=problem):
        make_sinks([name], tmp_path, "run", {})


@pytest.mark.parametrize("where", ["open", "log", "close"])
def test_a_sink_that_fails_is_told_once_and_the_others_go_on(caplog, where):
    failing, fine = Failing(where), Failing()
    sinks = Sinks({"bad": failing, "fine": fine})
    with caplog.at_level(logging.WARNING, "turnwise"):
        for step in (1, 2, 3):
            sinks.log(step, metrics(step))
        sinks.close()
        sinks.close()
    assert [record.getMessage() for record in caplog.records] == [
        "bad failed and gets no more metrics: ConnectionError: the server is away. "
        "metrics.jsonl has them all."
    ]
    assert sum(call[0] == where for call in failing.calls) == 1
    assert [call[0] for call in fine.calls] == ["open", "log", "log", "log", "close"]
    assert fine.calls[0] == ("open", 1)
    assert fine.calls[1] == ("log", 1, {"reward": 0.5, "truncated/turns": 1.0})


def test_a_sink_that_hangs_holds_nobody_back(caplog, monkeypatch):
    release = threading.Event()

    class Hanging(Failing):
        def log(self, step, numbers):
            release.wait()

    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.05)
    fine = Failing()
    sinks = Sinks({"slow": Hanging(), "fine": fine})
    for step in range(100):
        sinks.log(step, metrics(step))
    sinks.close()
    assert "slow did not finish in time" in caplog.text
    assert wait_until(lambda: len(fine.calls) == 102)  # its thread may be late on a busy machine
    release.set()
