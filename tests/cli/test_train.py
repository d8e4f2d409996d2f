"""`turnwise train`: real runs of the tiny model, a step or two each, and how they are told."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from cli.terminal import OnTerminal, Terminal
from turnwise.cli.train import DEMO, train
from turnwise.config import ConfigStore
from turnwise.env import environment_factory, expert_player, play_episode

SMALL = {
    "environment": {"name": "coins.py:Coins"},
    "inference": {"max_tokens": 3, "max_turns": 2},
    "training": {"batch_size": 4, "steps_per_epoch": 1, "num_epochs": 2},
}


@pytest.fixture
def small(coins, tmp_path):
    """The user's folder holds small.yaml too."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return "small.yaml"


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_from_a_file_is_told_in_lines_and_kept(turnwise, small, tmp_path):
    ran = turnwise("train", small, "training.eval_episodes=2", "--name", "first")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[:2] == ["run folder runs/first", "training tiny on coins.py:Coins, 2 steps"]
    steps = [line for line in lines if re.match(r"step \d/2  reward -?[\d.]+", line)]
    assert [line[:8] for line in steps] == ["step 1/2", "step 2/2"]
    assert all("eval/greedy/reward" in line and " episodes/s " in line for line in steps)
    assert any(line.startswith("finished after 0:") for line in lines)
    assert "  turnwise eval runs/first " in ran.out
    assert "  turnwise play --player runs/first  " in ran.out
    assert ran.out.index("  turnwise view runs/first  ") < ran.out.index("  turnwise eval runs/")
    assert [metrics["step"] for metrics in metrics_of(tmp_path / "runs/first")] == [1, 2]
    assert (tmp_path / "runs/first/checkpoints").is_dir()
    assert "step 2/2" in (tmp_path / "runs/first/log.txt").read_text()


def test_settings_options_and_code_beside_the_file(turnwise, small, tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text("def seven(trajectory):\n    return 7.0\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ran = turnwise(
        *("train", "--config-path", "..", "--config-name", "small", "--output", "kept"),
        *("reward=rewards.py:seven", "training.num_epochs=1", "--json"),
    )
    assert ran.code == 0, ran.err
    folder = tmp_path / "elsewhere/kept/Coins"
    assert metrics_of(folder)[0]["reward"] == 7.0
    printed = [json.loads(line) for line in ran.out.splitlines()]
    assert printed == metrics_of(folder)
    assert "turnwise eval kept/Coins" in ran.err


def test_without_arguments_the_demo_says_what_it_will_do(turnwise, tmp_path, monkeypatch):
    demo = yaml.safe_load(DEMO.read_text())
    demo["training"] |= {"batch_size": 4, "num_epochs": 1, "steps_per_epoch": 1}
    demo["training"] |= {"warm_start_steps": 2, "eval_episodes": 0}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(demo, sort_keys=False))
    monkeypatch.setattr(sys.modules[train.__module__], "DEMO", tmp_path / "demo.yaml")
    monkeypatch.chdir(tmp_path)
    ran = turnwise("train")
    assert ran.code == 0, ran.err
    low, high = demo["environment"]["params"]["low"], demo["environment"]["params"]["high"]
    assert f"a number from {low} to {high}\nin " in ran.out
    assert "warm start on random: 2 steps" in ran.out
    assert "  turnwise play runs/guess-number " in ran.out
    # The first thing to do next.
    assert "\nNext:\n  turnwise view runs/guess-number " in ran.out
    assert "evaluate it on held-out episodes\n" in ran.out


def test_the_demo_can_be_solved():
    config = ConfigStore.load(DEMO)
    make = environment_factory(config.environment.name, config.environment)
    assert config.model.model_name == "tiny"
    assert all(play_episode(make(), expert_player, seed).success for seed in range(20))


def test_another_environment_is_not_trained_with_the_demos_settings(turnwise, coins):
    ran = turnwise("train", "environment.name=coins.py:Coins", "--resume")
    assert ran.code == 2
    assert "no run to resume" in ran.err
    ran = turnwise("train", "environment.name=coins.py:Nothing", "training.batch_size=2")
    assert (ran.code, ran.out) == (2, "")
    assert "coins.py has no 'Nothing'" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "--fresh"], "--resume and --fresh contradict each other"),
        (["other.yaml"], "got more than one configuration file: small.yaml, other.yaml"),
        (["environment.name=nowhere.py:Env"], "there is no file nowhere.py ("),
        (["inference.temperature=0"], "inference.temperature got 0"),
        (["--name", "a/b"], "got 'a/b', expected a folder's name"),
    ],
)
def test_a_mistake_is_a_message_and_nothing_else(turnwise, small, tmp_path, arguments, message):
    ran = turnwise("train", small, *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_trains_on_and_a_fresh_one_begins_anew(turnwise, small, tmp_path):
    short = "training.num_epochs=1"
    assert turnwise("train", small, short).code == 0
    more = turnwise("train", "runs/Coins", "training.num_epochs=2")
    assert more.code == 0, more.err
    assert "resuming from step 1" in more.out
    assert "step 2/2" in more.out
    assert "step 1/2" not in more.out
    fresh = turnwise("train", small, short, "--fresh")
    assert "resuming" not in fresh.out
    assert "run folder runs/Coins-2" in fresh.out


def test_an_estimate_measures_and_leaves_nothing(turnwise, small, tmp_path):
    more = ["training.warm_start=random", "training.warm_start_steps=3", "training.eval_episodes=2"]
    ran = turnwise("train", small, *more, "training.num_epochs=50", "--estimate")
    assert ran.code == 0, ran.err
    found = dict(re.findall(r"^(\w[\w ]{0,10}\w) {2,}(.+)$", ran.out, re.M))
    assert re.match(r"[\d.]+ s: .*update [\d.]+ s", found["a step"])
    assert re.fullmatch(r"[\d:]+ for 50 steps", found["whole run"])
    assert re.fullmatch(r"[\d:]+ for 3 steps", found["warm start"])
    assert found["evaluations"].endswith("50 of them")
    assert re.fullmatch(r"[\d.]+ GiB at most", found["memory"])
    sampled, trained = re.fullmatch(
        r"([\d,]+) sampled, ([\d,]+) trained on", found["tokens"]
    ).groups()
    assert sampled == trained
    assert 0 < int(sampled.replace(",", "")) <= 50 * 4 * 2 * 3
    assert re.match(r"[\d.]+ MB: checkpoints of [\d.]+ MB, and episodes", found["disk"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != "") == [
        "coins.py",
        "small.yaml",
    ]
    assert not (tmp_path / "runs").exists()
    numbers = json.loads(turnwise("train", small, "--estimate", "--json").out)
    assert numbers["num_steps"] == 2
    assert "evaluations" not in turnwise("train", small, "--estimate").out
    assert numbers["whole_seconds"] >= 2 * numbers["step_seconds"] > 0


def test_a_run_from_which_nothing_can_be_learned_ends_with_the_reason(turnwise, small, tmp_path):
    file = tmp_path / "coins.py"
    file.write_text(file.read_text().replace('if action == "crash"', "if True"))
    ran = turnwise("train", small, "training.num_epochs=9")
    assert ran.code == 1
    assert "every episode of the first step failed in the same way" in ran.err
    assert 'File "coins.py", line 20, in step' in ran.err
    assert "Traceback" not in ran.err


def test_ctrl_c_on_a_terminal_saves_and_the_same_command_goes_on(turnwise, small, tmp_path):
    long = ["train", small, "training.num_epochs=900", "--name", "long"]
    terminal = Terminal()
    session = OnTerminal(*long, screen=terminal)
    try:
        while not re.search(r"step ([2-9]|\d\d+)/900 ", terminal.screen):
            assert session.has_more(120), terminal.screen
        session.process.send_signal(signal.SIGINT)
        session.read_to_end()
        assert session.process.wait(60) == 130
    finally:
        session.process.kill()
        session.process.wait(60)
    screen = terminal.screen
    assert "\ninterrupted" in screen
    assert screen.count("elapsed") == 0
    assert "Resume with:  turnwise train runs/long" in screen
    assert terminal.num_breaks == 0
    done = len(metrics_of(tmp_path / "runs/long"))
    assert done >= 2
    again = turnwise(
        "train", small, f"training.num_epochs={done + 1}", "--name", "long", "--resume"
    )
    assert again.code == 0, again.err
    assert f"resuming from step {done} " in again.out
    assert f"step {done + 1}/{done + 1}  reward" in again.out
    assert [m["step"] for m in metrics_of(tmp_path / "runs/long")] == list(range(1, done + 2))


def test_a_run_is_replayed_and_compared(turnwise, small, tmp_path):
    assert turnwise("train", small, "training.max_staleness=1", "--name", "first").code == 0
    ran = turnwise("train", "--replay", "runs/first")
    assert ran.code == 0, ran.err
    assert "replayed 2 steps: all metrics are exactly those recorded" in ran.out
    assert "bit for bit those of the checkpoints step-00000001, step-00000002" in ran.out
    assert (tmp_path / "runs/first-replay/checkpoints/step-00000002").is_dir()
    other = turnwise("train", "--replay", "runs/first", "training.learning_rate=1", "--output", "o")
    assert other.code == 1
    assert "diverges from runs/first in step 1: learning_rate 1 (was 0.0001)" in other.err
    for more, problem in [([small], "configuration small.yaml"), (["--fresh"], "--fresh")]:
        ran = turnwise("train", "--replay", "runs/first", *more)
        assert ran.code == 2
        assert problem in ran.err
    assert "there is no run runs/none" in turnwise("train", "--replay", "runs/none").err
