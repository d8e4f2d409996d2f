"""Commands that take a run play it with the run's own environment, tools, dataset and reward."""

import json
import os
import runpy
import sys

import pytest

from cli.three_runs import GREENHOUSE, ROWS
from forked import fork_server

MAIN = """

def train(**parts):
    from turnwise import ConfigStore, Trainer

    config = ConfigStore()
    config.training.num_epochs = 1
    config.training.batch_size = 2
    config.inference.max_tokens = 4
    Trainer(config, Greenhouse, parser="json", **parts).fit()


if __name__ == "__main__":
    train(reward_fn=double, dataset="rows.jsonl")
    train(reward_fn=lambda trajectory: 1.0, dataset=[{"kind": "a", "word": "b"}])
"""


def run_script(folder, name):
    """As `python NAME` does in that folder."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv, sys.orig_argv = [name], ["python", name]
    runpy.run_path(str(folder / name), run_name="__main__")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which a script trained twice: with things in files, and with things in memory."""
    place = tmp_path_factory.mktemp("greenhouse")
    (place / "greenhouse.py").write_text(GREENHOUSE + MAIN)
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    script = fork_server().Process(target=run_script, args=(place, "greenhouse.py"))
    script.start()
    script.join()
    assert script.exitcode == 0
    return place


def test_a_run_names_everything_that_played_a_part(folder):
    run = json.loads((folder / "runs" / "Greenhouse" / "run.json").read_text())
    assert set(run["identity"]) == {"environment", "reward", "system_prompt", "tools", "dataset"}
    told = run["provenance"]
    assert told["command"] == "python greenhouse.py"
    assert told["working_directory"] == str(folder)
    assert set(told["packages"]) >= {"torch", "transformers"}
    facts = run["datasets"]["dataset"]
    assert (facts["path"], facts["rows"], facts["columns"]) == (["rows.jsonl"], 2, ["kind", "word"])
    assert run["model"]["hash_covers"] == "all weights"
    assert len(run["model"]["hash"]) == len(run["tokenizer"]["hash"]) == 64
    assert run["engine"]["backend"] == "local"
    assert run["engine"]["deterministic"] is True
    assert run["limits"]["step_timeout"] == 60.0
    assert run["agent"]
    assert run["unrecorded"] == {}
    text = (folder / "runs" / "Greenhouse" / "config.yaml").read_text()
    for line in (
        "name: greenhouse.py:Greenhouse",
        "reward: greenhouse.py:double",
        "parser: json",
        "- rows.jsonl",
    ):
        assert line in text


def test_rows_that_a_script_made_are_kept_in_the_run(folder, turnwise, monkeypatch):
    run = folder / "runs" / "Greenhouse-2"
    assert (run / "dataset.jsonl").read_text() == '{"kind": "a", "word": "b"}\n'
    assert "<run>/dataset.jsonl" in (run / "config.yaml").read_text()
    told = json.loads((run / "run.json").read_text())
    facts = told["datasets"]["dataset"]
    assert facts["origin"] == "a list in Python"
    assert (facts["rows"], facts["columns"], facts["kept"]) == (1, ["kind", "word"], True)
    assert told["unrecorded"] == {"reward": "<function>:<lambda>"}
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    for where, source in ((folder, "runs/Greenhouse-2"), ("/", str(checkpoint))):
        monkeypatch.chdir(where)
        reward = ("--reward", str(folder / "greenhouse.py:double"))
        done = turnwise("eval", source, "--episodes", "2", "--json", *reward)
        assert json.loads(done.out)["expert"]["reward"] == 2.0
