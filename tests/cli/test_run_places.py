"""Every command says what was named instead of a run; a checkpoint stands for its run."""

import json
from pathlib import Path

import pytest

from turnwise.cli import main

COMMANDS = {
    "eval": ["eval", "RUN", "--episodes", "1", "--agent", "expert"],
    "play": ["play", "RUN", "--player", "expert", "--json"],
    "check-env": ["check-env", "RUN", "--episodes", "1"],
    "chat": ["chat", "RUN", "--max-tokens", "2"],
    "export": ["export", "RUN", "exported"],
    "doctor": ["doctor", "RUN"],
    "plot": ["plot", "RUN", "-o", "curve.svg"],
}

MINE = """\
from turnwise import BaseEnvironment


class Greenhouse(BaseEnvironment):
    def reset(self):
        return "Mine."

    def step(self, action):
        return "", 7.0, True, {}

    def get_state_description(self):
        return "mine"

    def sample_action(self, rng):
        return "go"
"""


def command(name: str, run: object) -> list[str]:
    return [str(run) if word == "RUN" else word for word in COMMANDS[name]]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_checkpoint_stands_for_its_run(turnwise, runs, tmp_path, monkeypatch, name):
    ran = turnwise(*command(name, runs.checkpoint.relative_to(runs.folder)), typed="Hello\n")
    assert ran.code == 0, ran.err
    if name == "export":
        assert "the model of step 1" in ran.out
        card = Path("exported/README.md").read_text()
        assert "| reward |" in card
        monkeypatch.chdir(tmp_path)
        assert turnwise(*command(name, runs.checkpoint)).code == 0
    if name == "doctor":
        assert ": 1 step; success" in ran.out


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("runs")
def test_what_is_no_run_is_named_with_what_to_name(turnwise, name):
    Path("bare").mkdir(exist_ok=True)
    holds = turnwise(*command(name, "runs"))
    assert (holds.code, holds.out) == (2, "")
    assert "runs is not a run, it contains runs. Name one of them: runs/" in holds.err
    for wrong in ("runs/none", "rows.jsonl", "bare"):
        ran = turnwise(*command(name, wrong))
        assert (ran.code, ran.out) == (2, ""), wrong
        assert wrong in ran.err
        assert "Traceback" not in ran.err
        told = ("expected", "A model is", "is written", "no folder with a model")
        assert any(words in ran.err for words in told), ran.err
    if name in ("export", "doctor", "plot"):  # the others play in one that is named
        ran = turnwise(*command(name, "tiny"))
        assert (ran.code, ran.out) == (2, "")
        assert "tiny is a model, expected the folder of a run" in ran.err


@pytest.mark.usefixtures("coins")
def test_a_run_of_prompts_is_played_as_prompts(turnwise):
    """Its settings name no environment, and the default is another one."""
    Path("rows.jsonl").write_text('{"prompt": "What is 6 times 7?", "answer": "42"}\n')
    Path("p.yaml").write_text(
        "dataset: rows.jsonl\ntraining: {num_epochs: 1, batch_size: 1, eval_episodes: 0}\n"
        "inference: {max_tokens: 2}\ncheckpoint: {run_name: asked}\n"
    )
    with pytest.raises(SystemExit):
        main(["train", "p.yaml"])
    Path("other.jsonl").write_text('{"prompt": "And 1 plus 1?", "answer": "2"}\n')
    assert "prompts: no findings" in turnwise("check-env", "runs/asked", "--episodes", "1").out
    out = turnwise("play", "runs/asked", "--player", "expert", "--dataset", "other.jsonl").out
    assert out.startswith("prompts of runs/asked  seed ")
    assert "And 1 plus 1?\n\n1> 2\nRight." in out
    options = ("--agent", "expert", "--episodes", "1", "--dataset", "other.jsonl")
    found = json.loads(turnwise("eval", "runs/asked", *options, "--json").out)
    assert (found["environment"], found["agent"]["success"]) == ("prompts", 1.0)


# ---- check-env with the parts of a run ----


@pytest.mark.parametrize("kind", ["script", "tools", "gym"])
def test_every_kind_of_run_is_checked_with_its_own_parts(turnwise, runs, kind):
    ran = turnwise("check-env", str(getattr(runs, kind)), "--episodes", "2", "--json")
    report = json.loads(ran.out)
    assert (ran.code, report["ok"]) == (0, True), report
    assert not [found for found in report["findings"] if found["level"] == "error"]
    assert "expert-action" in report["passed"]
    expected = {"script": "coins.py:Coins", "tools": "greenhouse.py:Greenhouse"}
    assert report["environment"] == expected.get(kind, "gym:FrozenLake-v1")


def test_an_environment_that_needs_tasks_says_so_and_takes_them(turnwise, runs):
    ran = turnwise("check-env", "greenhouse.py:Greenhouse", "--episodes", "1")
    assert ran.code == 1
    assert "self.task is None, since there is no dataset" in ran.out
    assert "--dataset rows.jsonl" in ran.out
    rows = ("--dataset", "rows.jsonl")
    assert turnwise("check-env", "greenhouse.py:Greenhouse", *rows, "--episodes", "1").code == 0


def test_the_runs_parameters_hold_and_can_be_replaced(turnwise, runs):
    ran = turnwise("check-env", str(runs.gym), "-p", "map_name=5x5", "--episodes", "1")
    assert ran.code == 1
    assert "KeyError: '5x5'" in ran.out


def test_an_environment_that_is_typed_is_the_one_in_this_folder(
    turnwise, runs, tmp_path, monkeypatch
):
    """The folder in which the run began has a file of the same name."""
    (tmp_path / "greenhouse.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    options = ("--env", "greenhouse.py:Greenhouse", "--player", "random", "--json")
    ran = turnwise("play", str(runs.tools), *options)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["reward"] == 7
