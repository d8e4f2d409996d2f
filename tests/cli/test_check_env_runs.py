"""`turnwise check-env` with runs: the environment with its run's parameters, tools and dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def runs(three_runs, monkeypatch):
    monkeypatch.chdir(three_runs.folder)
    return three_runs


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


def test_an_expert_that_calls_no_tool_of_the_run_is_found(turnwise, runs):
    Path("lost.py").write_text(
        "from greenhouse import Greenhouse\n\n\nclass Lost(Greenhouse):\n"
        "    def expert_action(self):\n"
        '        return \'{"name": "shout", "arguments": {}}\'\n'
    )
    options = ("--dataset", "rows.jsonl", "--episodes", "1", "--timeout", "0.5")
    ran = turnwise("check-env", "lost.py:Lost", *options)
    assert "expert_action() offered" in ran.out
    assert "no tool 'shout'" in ran.out


def test_the_runs_parameters_hold_and_can_be_replaced(turnwise, runs):
    ran = turnwise("check-env", str(runs.gym), "-p", "map_name=5x5", "--episodes", "1")
    assert ran.code == 1
    assert "KeyError: '5x5'" in ran.out
