"""`turnwise eval` with an agent in the model's place, with several attempts at a task, with
options for what a run cannot restore; on which rows, and how sure the means are."""

import itertools
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st

from cli.conftest import figures
from turnwise.cli.eval_episodes import estimate, pass_at_k
from turnwise.runs.checkpoints import MANIFEST, read_manifest, write_manifest
from turnwise.runs.headline import wilson_interval

AGENTS = '''
import random


def act(observation, state):
    """Knows one of the two words."""
    if state == "silence":
        word = "lily" if "flower" in observation else "fir"
        return '{"name": "say_word", "arguments": {"word": "%s"}}' % word
    assert observation == f"You said {state}.", observation
    return "done"


class Counting:
    """Takes one coin for each character of the state's number, then stops."""

    def __init__(self):
        self.num_calls = 0

    async def __call__(self, observation):
        self.num_calls += 1
        return "take" if self.num_calls == 1 else "stop"


def chance(observation):
    return random.choice(["take", "stop"])


def numbers(observation):
    return 5


def alone():
    return "take"


word = "take"
'''


@pytest.fixture
def runs(runs):
    """The user's folder holds agents.py too."""
    Path("agents.py").write_text(AGENTS)
    return runs


# ---- numbers ----


@given(n=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_solved_attempt(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(statistics.fmean(map(any, subsets)))


# ---- attempts ----


def test_several_attempts_give_pass_at_k_for_every_task(turnwise, runs):
    options = ("--agent", "random", "--episodes", "12", "--k", "4", "--seed", "3")
    found = figures(turnwise, str(runs.script), *options)
    attempts = found["attempts"]
    assert len(attempts["tasks"]) == 12
    assert {task["attempts"] for task in attempts["tasks"]} == {4}
    solved = [task["solved"] for task in attempts["tasks"]]
    assert any(0 < number < 4 for number in solved)  # the attempts at a task differ
    for k in (1, 2, 4):
        expected = statistics.fmean(pass_at_k(4, number, k) for number in solved)
        assert attempts["pass_at_k"][str(k)]["value"] == pytest.approx(expected)
    assert attempts["mean_at_k"]["value"] == pytest.approx(sum(solved) / 48)
    assert attempts["pass_at_k"]["1"] == attempts["mean_at_k"]
    assert attempts["reward"]["low"] <= attempts["reward"]["value"] <= attempts["reward"]["high"]
    assert attempts["reason"] is None
    assert figures(turnwise, str(runs.script), *options) == found
    shown = turnwise("eval", str(runs.script), *options).out
    assert "12 held-out tasks, 4 attempts each" in shown
    for name in ("random pass@1 ", "random pass@2 ", "random pass@4 ", "random mean@4 "):
        assert name in shown


def test_a_model_is_sampled_for_its_attempts(turnwise, runs):
    found = figures(turnwise, str(runs.gym), "--episodes", "2", "--k", "2")
    assert found["sampling"] == "sampled"
    assert found["model"]["episodes"] == 4
    once = figures(
        turnwise, str(runs.tools), "--k", "1"
    )  # two rows: two tasks, whatever --episodes
    assert list(once["attempts"]["pass_at_k"]) == ["1"]
    assert [task["attempts"] for task in once["attempts"]["tasks"]] == [1, 1]
    ran = turnwise("eval", str(runs.gym), "--k", "2", "--greedy")
    assert ran.code == 2
    assert "greedy attempts at a task are identical" in ran.err
    ran = turnwise("eval", str(runs.script), "--k", "2", "--agent", "expert")
    assert ran.code == 2
    assert "identical" in ran.err


def test_without_success_there_is_only_the_mean_reward(turnwise, runs):
    Path("silent.py").write_text(
        "from coins import Coins\n\n\nclass Silent(Coins):\n"
        "    def step(self, action):\n"
        "        text, reward, done, info = super().step(action)\n"
        "        info.pop('success', None)\n"
        "        return text, reward, done, info\n"
    )
    options = ("--agent", "random", "--env", "silent.py:Silent", "--episodes", "3", "--k", "2")
    attempts = figures(turnwise, *options)["attempts"]
    assert (attempts["pass_at_k"], attempts["mean_at_k"]) == (None, None)
    assert "info['success']" in attempts["reason"]
    shown = turnwise("eval", *options).out
    assert "only the mean reward is given" in shown
    assert "pass@2" not in shown


# ---- agents ----


def test_an_agent_plays_the_runs_held_out_tasks_with_its_tools_and_reward(turnwise, runs):
    for place in (runs.tools, runs.checkpoint):
        found = figures(turnwise, str(place), "--agent", "agents.py:act", "--episodes", "2")
        assert found["played_by"] == "agents.py:act"
        assert found["agent"]["success"] == 0.5
        assert found["agent"]["reward"] == 1.0  # doubled where it is earned
        assert found["expert"]["reward"] == 2.0
        assert "model" not in found
    expert = figures(turnwise, str(runs.tools), "--agent", "expert", "--episodes", "2")
    assert expert["agent"] == found["expert"]
    assert "expert" not in expert
    model = figures(turnwise, str(runs.tools), "--episodes", "2")
    assert model["expert"] == found["expert"]


def test_an_agent_needs_no_model(turnwise, runs):
    found = figures(turnwise, "--agent", "expert", "--env", "coins.py:Coins", "-p", "num_asked=2")
    assert found["name"] is None
    assert found["agent"]["success"] == 1.0
    assert found["agent"]["turns"] == 3
    one = ("--env", "coins.py:Coins", "-p", "num_asked=1", "--episodes", "3")
    assert figures(turnwise, "--agent", "agents.py:Counting", *one)["agent"]["success"] == 1.0
    shown = turnwise("eval", "--agent", "agents.py:chance", *one).out
    assert shown.startswith("agents.py:chance on coins.py:Coins, 3 held-out episodes\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no player is named"),
        (["--agent", "expert"], "--agent expert does not say what to play"),
        (["tiny", "--agent", "expert", "--env", "grid-world"], "one of them plays"),
        (
            ["--agent", "export", "--env", "grid-world"],
            "--agent got 'export', expected expert, random",
        ),
        (["--agent", "agents.py:act2", "--env", "grid-world"], "Did you mean 'act'?"),
        (["--agent", "agents.py:word", "--env", "grid-world"], "of type str; expected a func"),
        (["--agent", "agents.py:alone", "--env", "grid-world"], "(observation, state)"),
        (
            ["--agent", "agents.py:numbers", "--env", "grid-world"],
            "returned 5 of type int, expected the",
        ),
        (["tiny", "--env", "grid-world", "--checkpoint", "nowhere"], "--checkpoint got 'nowhere'"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_a_wrong_agent_is_a_message(turnwise, arguments, message):
    ran = turnwise("eval", *arguments, "--episodes", "2")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


# ---- what cannot be restored ----


@pytest.mark.parametrize(
    ("setting", "lost", "option", "replacement"),
    [
        ("environment", {"name": "<notebook>:Greenhouse"}, "--env", "greenhouse.py:Greenhouse"),
        ("reward", "<function>:<lambda>", "--reward", "greenhouse.py:double"),
        ("tools", ["<notebook>:look_up"], "--tool", "greenhouse.py:look_up"),
        ("parser", "<object>:MyParser", "--parser", "json"),
        ("dataset", {"path": "<object>:list"}, "--dataset", "rows.jsonl"),
        ("model", {"model_name": "<object>:LlamaForCausalLM"}, "--model", "tiny"),
    ],
)
def test_each_lost_component_is_named_with_the_option_that_supplies_it(
    turnwise, runs, tmp_path, setting, lost, option, replacement
):
    run = tmp_path / "run"
    shutil.copytree(runs.tools, run)
    (checkpoint,) = run.glob("checkpoints/step-*")
    file = checkpoint / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings[setting] = {**settings[setting], **lost} if isinstance(lost, dict) else lost
    file.write_text(yaml.safe_dump(settings))
    manifest = read_manifest(checkpoint)
    (checkpoint / MANIFEST).unlink()
    write_manifest(checkpoint, manifest.step)

    ran = turnwise("eval", str(run), "--episodes", "2")
    assert ran.code == 2
    name = (lost[0] if isinstance(lost, list) else str(lost)).rpartition(":")[2].strip("'}")
    assert name in ran.err, ran.err
    assert option in ran.err, ran.err
    found = figures(turnwise, str(run), "--episodes", "2", option, replacement)
    # With the run's other components: the tool, the rows, and the reward that doubles.
    assert (found["expert"]["success"], found["expert"]["reward"]) == (1.0, 2.0)
    if option == "--env":
        shutil.copy(file, run / "config.yaml")
        for words in (["play", "--player", "expert", "--json"], ["check-env", "--episodes", "1"]):
            assert option in turnwise(words[0], str(run), *words[1:]).err
            assert turnwise(words[0], str(run), *words[1:], option, replacement).code == 0


# ---- on which rows ----


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
