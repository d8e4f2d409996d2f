"""`turnwise init`: what it makes plays, passes its checks and its test, and trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise import check_env, expert_player, make_environment, play_episode, random_player
from turnwise.config import ConfigStore

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def made(turnwise, tmp_path, monkeypatch):
    """The user has made a folder, and is in it."""
    monkeypatch.chdir(tmp_path)
    ran = turnwise("init", "my_env")
    assert ran.code == 0, ran.err
    assert "turnwise train config.yaml" in ran.out
    monkeypatch.chdir(tmp_path / "my_env")
    return tmp_path / "my_env"


def test_the_folder_holds_an_environment_settings_a_test_and_a_few_words(made):
    names = {path.name for path in made.iterdir()}
    assert names == {"my_env.py", "config.yaml", "test_my_env.py", "README.md"}
    assert len((made / "my_env.py").read_text().splitlines()) <= 60
    readme = (made / "README.md").read_text()
    for command in ("turnwise play my_env.py:MyEnv", "turnwise train config.yaml", "pytest"):
        assert command in readme


def test_the_environment_is_fit_for_training(made):
    report = check_env("my_env.py:MyEnv")
    assert not list(report), str(report)


def test_there_is_something_to_learn(made):
    def success(player):
        return sum(
            play_episode(make_environment("my_env.py:MyEnv"), player, seed).success
            for seed in range(100)
        )

    assert success(expert_player) == 100
    assert success(random_player(0)) < 10


def test_its_own_test_passes(made):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(
        command, cwd=made, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 passed" in result.stdout


def test_it_trains(turnwise, made):
    small = ["training.num_epochs=1", "training.steps_per_epoch=2", "training.batch_size=4"]
    small += ["training.warm_start_steps=2"]
    ran = turnwise("train", "config.yaml", *small, "training.eval_episodes=2")
    assert ran.code == 0, ran.err
    told = turnwise("doctor", "runs/MyEnv")
    assert "runs/MyEnv: 2 steps; success" in told.out


@pytest.mark.parametrize(
    ("name", "environment"),
    [("maze", "maze.py:Maze"), ("MyEnvs", "MyEnvs.py:MyEnvs"), ("a/b/text_maze", "text_maze.py:")],
)
def test_names_are_carried_through(turnwise, tmp_path, monkeypatch, name, environment):
    monkeypatch.chdir(tmp_path)
    assert turnwise("init", name).code == 0
    folder = tmp_path / name
    assert ConfigStore.load(folder / "config.yaml").environment.name.startswith(environment)
    for path in folder.iterdir():
        assert "my_env" not in path.read_text()
    monkeypatch.chdir(folder)
    assert make_environment(ConfigStore.load("config.yaml").environment.name).reset()


@pytest.mark.parametrize("name", ["_1", "1", "class", "my-env", "test_mine"])
def test_a_name_that_python_cannot_import_is_refused(turnwise, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    ran = turnwise("init", name)
    assert (ran.code, ran.out) == (2, "")
    assert "expected a letter, then letters, digits and underscores" in " ".join(ran.err.split())
    assert not any(tmp_path.iterdir())


def test_nothing_is_overwritten(turnwise, made, monkeypatch):
    before = {path: path.read_text() for path in made.iterdir()}
    monkeypatch.chdir(made.parent)
    ran = turnwise("init", "my_env")
    assert (ran.code, ran.out) == (2, "")
    assert "my_env exists" in ran.err
    assert {path: path.read_text() for path in made.iterdir()} == before
