"""A run with a mix of environments, by the commands that train and evaluate it."""

import contextlib
import json

import pytest

from cli.conftest import COINS
from turnwise.cli import main

MIX = """
environments:
  - {environment: "coins.py:Coins", weight: 3, params: {num_asked: 1}}
  - {environment: "coins.py:Told", name: told, dataset: rows.jsonl, reward: "coins.py:twice"}
training: {batch_size: 2, steps_per_epoch: 1, num_epochs: 1, eval_episodes: 1}
inference: {max_tokens: 2, max_turns: 2}
"""
MORE = """

class Told(Coins):
    def reset(self):
        super().reset()
        self.num_asked = self.task["coins"]
        return f"Take {self.num_asked}."


def twice(trajectory):
    return 2 * trajectory.total_reward
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder, in which `turnwise train mix.yaml` was run."""
    place = tmp_path_factory.mktemp("mix")
    (place / "coins.py").write_text(COINS + MORE)
    (place / "mix.yaml").write_text(MIX)
    (place / "rows.jsonl").write_text('{"coins": 1}\n{"coins": 2}\n')
    with contextlib.chdir(place), pytest.raises(SystemExit) as left:
        main(["train", "mix.yaml"])
    assert not left.value.code
    return place


@pytest.fixture
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return "runs/Coins-told"


def test_the_metrics_are_of_each_part(there, folder):
    (metrics,) = map(json.loads, (folder / there / "metrics.jsonl").read_text().splitlines())
    assert metrics["Coins/num_groups"] + metrics["told/num_groups"] == metrics["num_groups"] == 2
    assert {"eval/Coins/greedy/reward", "eval/told/sampled/turns", "eval/greedy/reward"} <= {
        *metrics
    }


def test_eval_has_scores_of_each_part_and_the_mean(turnwise, there):
    ran = turnwise("eval", there, "--episodes", "2")
    assert ran.code == 0
    assert f"{there} on Coins, 2 held-out episodes, greedy" in ran.out
    assert f"{there} on told, 2 episodes on 2 training rows, each once, greedy" in ran.out
    assert "mean over the environments by weight (Coins 3, told 1): success" in ran.out
    found = json.loads(turnwise("eval", there, "--episodes", "2", "--json").out)
    coins, told = found["parts"]["Coins"], found["parts"]["told"]
    # Each part is played with its own parameters, rows and reward.
    assert coins["expert"]["reward"] == pytest.approx(0.9)
    assert told["expert"]["reward"] == pytest.approx(2 * (0.9 - 0.2) / 2)  # cut after 2 turns
    mean = (3 * coins["model"]["reward"] + told["model"]["reward"]) / 4
    assert found["mean_by_weight"]["reward"] == pytest.approx(mean)


def test_eval_of_one_part(turnwise, there):
    ran = turnwise("eval", there, "--episodes", "1", "--part", "Coins", "--param", "num_asked=2")
    assert ran.code == 0
    assert "on coins.py:Coins, 1 held-out episodes" in ran.out
    assert " on told" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "tald"], "Did you mean 'told'"),
        (["--dataset", "rows.jsonl"], "are for one environment, and the run has a mix"),
        (["--max-steps", "2"], "Name one of them with --part: Coins"),
    ],
)
def test_options_that_need_one_environment(turnwise, there, arguments, message):
    ran = turnwise("eval", there, *arguments)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_the_settings_of_the_run_name_the_mix_and_no_other_environment(turnwise, there):
    ran = turnwise("train", there, "--dry-run")
    assert "environment: coins.py:Told" in ran.out
    assert "\nenvironment:" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["environments.1.environment=coins.py:Tald"], "the environment told of the mix: "),
        (["environment.name=grid-world"], "environment and environments are both given"),
        (["--engine", "verl"], "environments is given, and VERL has no such setting"),
        (["--name", "Coins-told", "training.seed=3"], "may not change"),
    ],
)
def test_what_a_mix_cannot_be_trained_with(turnwise, there, arguments, message):
    ran = turnwise("train", "mix.yaml", *arguments)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize("command", [["check-env"], ["play", "--player", "expert"]])
def test_commands_that_play_in_one_environment_ask_which(turnwise, there, command):
    ran = turnwise(command[0], there, *command[1:])
    assert ran.code == 2
    assert "plays in one of them. Name it with --part: Coins, told" in ran.err
    ran = turnwise(command[0], there, *command[1:], "--part", "told")
    assert ran.code == 0, ran.err
