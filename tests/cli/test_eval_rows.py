"""`turnwise eval`: on which rows, how often each is played, and how sure the means are."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli.conftest import figures
from cli.test_eval_agents import runs as runs
from turnwise.cli.scores import estimate
from turnwise.runs.headline import wilson_interval


def test_intervals_over_rows_hold_the_truth_and_intervals_over_episodes_do_not():
    rng = np.random.default_rng(1)
    is_in, is_in_by_episodes, num_tries = 0, 0, 200
    for _ in range(num_tries):  # 16 rows, each played 8 times; rows differ, the mean is 0.5
        rates = rng.binomial(8, rng.beta(0.5, 0.5, size=16)) / 8
        over_rows = estimate(list(rates), seed=0)
        is_in += over_rows["low"] <= 0.5 <= over_rows["high"]
        low, high = wilson_interval(rates.mean(), 16 * 8)
        is_in_by_episodes += low <= 0.5 <= high
    assert is_in / num_tries >= 0.9
    assert is_in_by_episodes / num_tries < 0.7
    # All solved is not certain: there were few rows.
    assert estimate([1.0] * 4, seed=1)["low"] == pytest.approx(wilson_interval(1.0, 4)[0])


# ---- which rows, and how often ----


def test_a_row_that_is_played_often_counts_once(turnwise, runs):
    options = (str(runs.tools), "--agent", "agents.py:act", "--episodes", "9")
    found = figures(turnwise, *options)
    assert found["evaluated_on"] == "2 training rows"
    # It knows the word of one row and not that of the other, however often each is played.
    agent = found["agent"]
    assert (agent["episodes"], agent["tasks"], agent["success"]) == (8, 2, 0.5)
    interval = agent["success_low"], agent["success_high"]
    assert interval == pytest.approx(wilson_interval(0.5, 2))
    assert agent["reward_margin"] == pytest.approx(1.959964 * 1.0)  # of the rewards 2 and 0
    head = turnwise("eval", *options).out.splitlines()[0]
    assert head.endswith("8 episodes on 2 training rows, each 4 times (intervals are over rows)")
    head = turnwise("eval", *options[:-1], "2").out.splitlines()[0]
    assert head.endswith("2 episodes on 2 training rows, each once")


@pytest.fixture(scope="module")
def many_rows(three_runs, tmp_path_factory):
    """A run like the one with tools, whose dataset has 80 rows: 16 of them are held out."""
    folder = tmp_path_factory.mktemp("many")
    for name in ("greenhouse.py", "runs/tools/config.yaml", "runs/tools/run.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(three_runs.folder / name, folder / name)
    status = json.loads((folder / "runs/tools/run.json").read_text())
    status["evaluation"] = "16 held-out rows"
    (folder / "runs/tools/run.json").write_text(json.dumps(status))
    rows = [{"kind": "flower", "word": f"w{number}"} for number in range(80)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_a_split_is_chosen_and_said(turnwise, many_rows, monkeypatch):
    monkeypatch.chdir(many_rows)
    command = ("runs/tools", "--agent", "expert", "--trust-remote-code", "--episodes")
    held_out = figures(turnwise, *command, "32")
    assert (held_out["evaluated_on"], held_out["split"]) == ("16 held-out rows", None)
    assert (held_out["agent"]["episodes"], held_out["agent"]["tasks"]) == (32, 16)
    chosen = figures(turnwise, *command, "32", "--split", "eval")
    assert chosen == {**held_out, "split": "eval"}
    ran = turnwise("eval", *command, "2", "--split", "train")
    assert ran.out.splitlines()[0].endswith(
        "greenhouse.py:Greenhouse, 2 episodes on 64 training rows"
    )


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("tools", ["--split", "eval"], "all 2 rows were trained on. To hold rows out, train with"),
        ("script", ["--split", "train"], "there is no dataset: episodes differ by their seeds"),
        ("tools", ["--split", "train", "--dataset", "rows.jsonl"], "Leave out one of them"),
    ],
)
def test_a_split_that_a_run_does_not_have(turnwise, runs, run, arguments, message):
    ran = turnwise("eval", str(getattr(runs, run)), "--agent", "expert", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in " ".join(ran.err.split())
