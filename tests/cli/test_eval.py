"""`turnwise eval`: a run's model on held-out episodes, beside the expert and chance."""

import math
import re

import pytest

from cli.conftest import figures


@pytest.fixture
def run(runs):
    """A run of one step, with an environment of the user's."""
    return runs.script


@pytest.mark.parametrize("arguments", [["--env", "nope"], ["--dataset", "nope.jsonl"]])
def test_no_model_is_loaded_for_what_cannot_be_played(turnwise, run, monkeypatch, arguments):
    monkeypatch.setattr("turnwise.trainer.state.load_trained_model", None)
    ran = turnwise("eval", str(run), *arguments)
    assert ran.code == 2
    assert "nope" in ran.err


def test_a_run_is_played_beside_its_expert_and_chance(turnwise, run):
    ran = turnwise("eval", str(run), "--episodes", "20")
    assert ran.code == 0, ran.err
    head, names, *rows, reported = ran.out.splitlines()
    assert head.endswith("coins.py:Coins, 20 held-out episodes, greedy")
    assert names.split() == ["success", "reward", "std", "turns", "truncated"]
    assert [row.split()[0] for row in rows] == ["model", "expert", "random"]
    assert re.match(r"reported by the run itself: \w+ [\d.]+ .*after step 1: ", reported)
    assert re.match(r"expert +1\.000 \(0\.839 to 1\.000\) +0\.\d+ ± ", rows[1])


def test_figures_as_json_agree_with_the_players(turnwise, run):
    found = figures(turnwise, str(run), "--episodes", "40", "--sampled")
    assert (found["seed"], found["sampling"]) == (0, "sampled")
    expert, chance = found["expert"], found["random"]
    assert expert["success"] == 1.0
    assert expert["errors"] == 0
    # The expert takes one or two coins at -0.1 each and says stop.
    assert expert["reward"] == pytest.approx(1 - 0.1 * (expert["turns"] - 1))
    assert 0 < chance["success"] < 1
    assert chance["success_low"] < chance["success"] < chance["success_high"]
    margin = 1.96 * chance["reward_std"] / math.sqrt(40)
    assert chance["reward_margin"] == pytest.approx(margin, rel=1e-3)
    assert found["model"]["episodes"] == 40


def test_the_same_seed_gives_the_same_and_another_one_others(turnwise, run):
    first = figures(turnwise, str(run), "--episodes", "12")
    assert figures(turnwise, str(run), "--episodes", "12") == first
    other = figures(turnwise, str(run), "--episodes", "12", "--seed", "4")
    assert other["seed"] == 4
    assert other["random"] != first["random"]


def test_whole_conversations_are_shown_as_they_were(turnwise, run):
    ran = turnwise("eval", str(run), "--episodes", "3", "--show", "2")
    assert len(re.findall(r"^seed \d+$", ran.out, re.M)) == 2
    assert ran.out.count("Say take or stop. [bold]Be quick.[/bold]") == 2
    assert re.search(r"^user: Take [12]\.$", ran.out, re.M)
    assert len(re.findall(r"^assistant: ", ran.out, re.M)) >= 2
    assert re.search(r"^reward [-\d.]+, \w+", ran.out, re.M)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", ran.out)


# A model that was never trained rambles until it has no more turns.
FEW = ("--episodes", "2", "--max-steps", "3")


def test_a_model_plays_any_environment(turnwise, coins):
    found = figures(turnwise, "tiny", "--env", "guess-number", "-p", "high=3", *FEW)
    assert found["environment"] == "guess-number"
    assert found["expert"]["turns"] <= 2
    mute = figures(turnwise, "tiny", "--env", "coins.py:Mute", *FEW)
    assert "model" in mute
    assert not {"expert", "random"} & set(mute)
