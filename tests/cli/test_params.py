"""`--param` of every command reaches the constructor of the user's environment."""

import pytest

FILE = '''
from turnwise import BaseEnvironment


class Maze(BaseEnvironment):
    """Says its size and colour."""

    quick = True

    def __init__(self, size, colour="red"):
        super().__init__()
        self.size, self.colour = size, colour

    def reset(self):
        return f"A {self.colour} maze of size {self.size!r}."

    def step(self, action):
        return "", 1.0, True, {"success": True}

    def get_state_description(self):
        return ""

    def sample_action(self, rng):
        return "go"

    def expert_action(self):
        return "go"


def make(size=3):
    return Maze(size, "blue")
'''
QUICK = [
    *("training.batch_size=2", "training.num_epochs=1", "training.steps_per_epoch=1"),
    *("inference.max_tokens=2", "--json"),
]


@pytest.fixture(autouse=True)
def maze(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maze.py").write_text(FILE)


def test_play_and_check_env_pass_them_on(turnwise):
    played = turnwise("play", "maze.py:Maze", "-p", "size=5", "--player", "expert")
    assert "A red maze of size 5." in played.out
    played = turnwise("play", "maze.py:make", "-p", "size=7", "--player", "random")
    assert "A blue maze of size 7." in played.out
    assert turnwise("check-env", "maze.py:Maze", "-p", "size=5", "-p", "colour=blue").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("play", "maze.py:Maze"),
        ("check-env", "maze.py:Maze"),
        ("eval", "--agent", "expert", "--env", "maze.py:Maze"),
        ("train", "environment.name=maze.py:Maze"),
    ],
)
def test_a_misspelt_name_is_refused(turnwise, words, tmp_path):
    ran = turnwise(*words, "-p", "siez=5")
    assert ran.code == 2
    assert "Did you mean 'size'?" in ran.err
    assert not (tmp_path / "runs").exists()


def test_a_run_is_opened_again_with_its_params(turnwise):
    ran = turnwise("train", "environment.name=maze.py:Maze", "-p", "size=6", *QUICK)
    assert ran.code == 0, ran.err
    assert "A red maze of size 6." in turnwise("play", "runs/Maze", "--player", "expert").out
    other = turnwise("play", "runs/Maze", "--player", "expert", "-p", "size=8")
    assert "A red maze of size 8." in other.out
    assert turnwise("play", "runs/Maze", "--player", "expert", "-p", "siez=8").code == 2


def test_train_takes_an_environment_as_play_does(turnwise, tmp_path):
    ran = turnwise("train", "maze.py:make", "-p", "size=6", *QUICK)
    assert ran.code == 0, ran.err
    assert "A blue maze of size 6." in turnwise("play", "runs/make", "--player", "expert").out
    (tmp_path / "my.yaml").write_text("training: {batch_size: 2}\n")
    shown = turnwise("train", "my.yaml", "maze.py:Maze", "-p", "size=1", "--dry-run")
    assert "name: maze.py:Maze" in shown.out
    assert "batch_size: 2" in shown.out
    assert "name: grid-world" in turnwise("train", "grid-world", "--dry-run").out
    assert "Did you mean 'grid-world'?" in turnwise("train", "gird-world").err
    ran = turnwise("train", "maze.py")
    assert ran.code == 2
    assert "maze.py:ClassName" in ran.err


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "training: {batch_size: 2}\n"])
def test_a_file_that_names_nothing_to_train_on_is_refused(turnwise, tmp_path, text):
    (tmp_path / "my.yaml").write_text(text)
    ran = turnwise("train", "my.yaml")
    assert ran.code == 2
    assert "my.yaml names nothing to train on. Write environment: file.py:ClassName" in ran.err
    assert not (tmp_path / "runs").exists()
    assert turnwise("train", "my.yaml", "environment=grid-world", "--dry-run").code == 0
    assert turnwise("train", "my.yaml", "dataset=rows.jsonl", "--dry-run").err.count("rows.jsonl")


def test_a_dataset_alone_is_not_played_in_the_demos_environment(turnwise, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    shown = turnwise("train", "dataset=rows.jsonl", "--dry-run").out
    assert "path: rows.jsonl" in shown
    assert "warm_start: null" in shown  # the demo's is random
