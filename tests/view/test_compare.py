"""Several runs side by side: which settings differ, and whose code was changed."""

import json

import pytest

from trainer.worlds import Memory, small_trainer
from turnwise.view.compare import compare
from view.runs_to_view import SMALL, said, write_run
from view.serving import open_library, serving

COMMON = """
environment: {name: 'greenhouse.py:Greenhouse', params: {size: 3}}
training: {learning_rate: %s, batch_size: 8}
checkpoint: {run_name: %s}
reward:
- {function: 'greenhouse.py:score', weight: %s}
tools: [calculator]
parser: null
"""
HASHES = {"environment of maze": "aaaaaaaaaaaa", "reward": "bbbbbbbbbbbb", "dataset": "cccccccc"}


def make(folder, config, hashes, **facts):
    write_run(folder, {1: [said("Hello")]})
    (folder / "config.yaml").write_text(config)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | {"identity": hashes} | facts))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    git = {"git": {"commit": "1" * 40, "dirty": False}, "started": "2026-01-01"}
    make(folder / "a", COMMON % ("0.001", "a", 1), HASHES, provenance=git)
    dirty = {"git": {"commit": "1" * 40, "dirty": True}, "started": "2026-01-02"}
    changed = {**HASHES, "reward": "dddddddddddd", "environment of maze": "eeeeeeeeeeee"}
    make(folder / "b", COMMON % ("0.01", "b", 1), changed, provenance=dirty)
    make(folder / "c", COMMON % ("0.001", "c", 2) + "system_prompt: Think.\n", {})
    write_run(folder / "bare", {1: [said("Hello")]})
    with serving(folder) as client:
        yield client


def differing(found):
    return {row["name"]: row["values"] for row in found["rows"] if row["differs"]}


def test_only_what_differs_is_marked(client):
    found = client.get("/api/compare", runs="a,b")
    assert found["runs"] == ["a", "b"]
    assert differing(found) == {
        "training.learning_rate": ["0.001", "0.01"],
        "environment of maze": ["aaaaaaaa", "eeeeeeee"],
        "reward": ["bbbbbbbb", "dddddddd"],
        "git.dirty": ["false", "true"],
    }
    notes = {row["name"]: row["note"] for row in found["rows"] if row["group"] == "code"}
    assert notes == {"environment of maze": "changed code", "reward": "changed code", "dataset": ""}
    everything = {row["name"]: row["values"] for row in found["rows"]}
    assert everything["environment.params.size"] == ["3", "3"]
    assert everything["reward[0].function"] == ["greenhouse.py:score"] * 2
    assert everything["parser"] == ["null", "null"]
    assert everything["tools"] == ['["calculator"]'] * 2
    assert "checkpoint.run_name" not in everything


def test_what_is_not_known_of_a_run_is_no_difference(client):
    found = client.get("/api/compare", runs="a,c,bare")
    assert differing(found) == {
        "reward[0].weight": ["1", "2", None],
        "system_prompt": [None, "Think.", None],
    }
    assert found["without_settings"] == ["bare"]


def test_runs_that_are_not_there_are_told(client):
    assert "no run 'none'" in client.error("/api/compare", 404, runs="a,none")
    assert "no run ''" in client.error("/api/compare", 404)


def half(trajectory):
    return 0.5 * trajectory.success


def test_runs_of_the_trainer_say_whose_code_was_changed(shown_runs, tmp_path):
    settings = [*SMALL, "training.num_epochs=1", "training.gamma=0.5", "training.eval_episodes=0"]
    with small_trainer(tmp_path, Memory, *settings, reward_fn=half) as trainer:
        trainer.fit()
    library = open_library(shown_runs / "a", tmp_path)
    found = compare([library.get("real"), library.get("real~2")])
    rows = {(row["group"], row["name"]): row for row in found["rows"]}
    assert rows["setting", "training.gamma"]["differs"]
    assert rows["setting", "training.batch_size"]["values"] == ["4", "4"]
    assert rows["setting", "reward"]["values"][1].endswith(":half")
    assert not rows["code", "environment"]["differs"]
    assert ("code", "reward") not in rows  # its name says it
    assert rows["start", "python"]["values"][0] is not None
