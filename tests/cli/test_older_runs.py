"""Runs of a version that did not record what a script gave: resumed, played and looked at.

`older_runs.tar.xz` was written by that version: a run that names its environment in the settings,
and one whose environment and dataset a script gave. Both were interrupted after their first step;
the model has 1,164 weights.
"""

import json
import tarfile
from pathlib import Path

import pytest

from trainer.runs import Listener
from turnwise import ConfigStore, Trainer
from turnwise.user_code.imports import import_file

RUNS = Path(__file__).with_name("older_runs.tar.xz")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The user is in the folder in which both runs were begun, and has run this code before."""
    with tarfile.open(RUNS) as runs:
        runs.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_that_names_its_environment_is_played_looked_at_and_resumed(turnwise, place):
    command = ("eval", "runs/named", "--episodes", "4", "--json", "--trust-remote-code")
    ran = turnwise(*command)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["environment"], found["expert"]["success"]) == ("lights.py:Lights", 1.0)
    assert "did not record a reward function" in ran.err
    assert "named: 1 steps;" in turnwise("doctor", "runs/named").out
    ran = turnwise("export", "runs/named", "page.html")
    assert ran.code == 0, ran.err
    assert "Lights" in (place / "page.html").read_text()
    ran = turnwise("train", "runs/named", "--lines", "--trust-remote-code")
    assert ran.code == 0, ran.err
    assert "resuming from step 1" in ran.out + ran.err
    status = json.loads((place / "runs/named/run.json").read_text())
    assert (status["status"], status["step"]) == ("finished", 2)
    assert status["code"]["environment"]["name"] == "lights.py:Lights"
    assert len((place / "runs/named/metrics.jsonl").read_text().splitlines()) == 2
    assert "note:" not in turnwise(*command).err  # everything is recorded now


def test_an_environment_that_a_script_gave_is_asked_for_and_no_other_is_played(turnwise, place):
    lost = "Lights was given by a script, and the version that began the run did not record"
    for command in (
        ("eval", "runs/script"),
        ("play", "runs/script", "--player", "expert", "--json"),
        ("train", "runs/script", "--lines"),
    ):
        ran = turnwise(*command, "--trust-remote-code")
        assert (ran.code, ran.out) == (2, ""), command
        assert lost in ran.err, command
    assert "give --env" in ran.err
    assert "run that script again: it resumes the run" in ran.err
    ran = turnwise("eval", "runs/script", "--env", "lights.py:Lights", "--episodes", "2", "--json")
    assert json.loads(ran.out)["expert"]["success"] == 1.0
    assert "script: 1 steps;" in turnwise("doctor", "runs/script").out


def test_the_script_resumes_its_run_with_all_rows(turnwise, place):
    config = ConfigStore.load("runs/script/config.yaml")
    rows = [{"prompt": str(number), "letter": "ab"[number % 2]} for number in range(64)]
    listener = Listener()
    lights = import_file(place / "lights.py").Lights
    with Trainer(config, lights, dataset=rows, reporter=listener) as trainer:
        trainer.fit()
    assert trainer.run_folder == Path("runs/script")
    assert listener.steps == [2]
    assert any("continues so: its evaluations are on training rows" in t for t in listener.said)
    assert not any("environment.name" in text for text in listener.said)  # it did not change
    status = json.loads((place / "runs/script/run.json").read_text())
    assert (status["step"], status["evaluation"]) == (2, "training rows")
    assert status["datasets"]["dataset"]["rows"] == 64
    command = ("eval", "runs/script", "--episodes", "64", "--json", "--trust-remote-code")
    for player in ((), ("--agent", "expert")):  # no row was held out from what it learned
        found = json.loads(turnwise(*command, *player).out)
        assert found["evaluated_on"] == "64 training rows", player
