"""Where code was defined, and importing it again from there."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise import ConfigError, GuessNumberEnvironment
from turnwise.user_code import import_object, reference_to, refuse_during_import
from turnwise.user_code.imports import import_file

ENV = """
from turnwise import BaseEnvironment
class Maze(BaseEnvironment):
    class Inner:
        pass
    def reset(self):
        return ""
    def step(self, action):
        return "", 0.0, True, {}
    def get_state_description(self):
        return ""
def score(trajectory):
    return 1.0
"""


def test_a_file_is_imported_once_and_again_when_it_changes(tmp_path):
    file = tmp_path / "maze.py"
    file.write_text("COUNT = []\nclass A:\n    pass\n")
    first = import_object(f"{file}:A")
    assert import_object(f"{file}:A") is first
    file.write_text("class A:\n    x = 1\n    # longer\n")
    assert import_object(f"{file}:A") is not first
    other = tmp_path / "other"
    other.mkdir()
    (other / "maze.py").write_text("class A:\n    pass\n")
    assert import_file(other / "maze.py") is not import_file(file)


def test_a_reference_leads_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "maze.py"
    file.write_text(ENV)
    module = import_file(file)
    for value, target in [
        (module.Maze, "sub/maze.py:Maze"),
        (module.Maze.Inner, "sub/maze.py:Maze.Inner"),
        (module.score, "sub/maze.py:score"),
    ]:
        reference = reference_to(value)
        assert (reference.target, reference.origin) == (target, "file")
        assert import_object(target) is value
    assert reference_to(module.Maze()).target == "sub/maze.py:Maze"
    assert reference_to(functools.partial(module.score)).target == "sub/maze.py:score"


def test_what_has_no_name_in_a_module_has_no_target():
    def inner(trajectory):
        return 1.0

    assert reference_to(inner).target is None
    assert reference_to(lambda t: 1.0).target is None
    assert reference_to(GuessNumberEnvironment).origin == "turnwise"
    assert import_object(reference_to(GuessNumberEnvironment).target) is GuessNumberEnvironment


def test_modules_of_a_package_are_imported_with_their_package(tmp_path, monkeypatch):
    package = tmp_path / "my_games" / "text"
    package.mkdir(parents=True)
    (tmp_path / "my_games" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("class Top:\n    pass\n")
    (package / "maze.py").write_text("from . import Top\nclass Maze(Top):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("my_games.text.maze:Maze", "my_games.text:Top"):
        assert reference_to(import_object(target)).target == target


def test_a_script_names_itself(tmp_path):
    script = tmp_path / "greenhouse.py"
    script.write_text(
        "from turnwise.user_code import import_object, reference_to\n"
        "class Greenhouse:\n    pass\n"
        "found = reference_to(Greenhouse)\n"
        "print(found.origin, found.target, import_object(found.target) is Greenhouse)\n"
    )
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["script", "greenhouse.py:Greenhouse", "True"]
    typed = "from turnwise.user_code import reference_to\nclass A: pass\nprint(reference_to(A))"
    done = subprocess.run(
        [sys.executable, "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "origin='interactive', target=None" in done.stdout


def test_a_file_that_trains_when_it_is_imported_is_refused(tmp_path):
    for number, call in enumerate(
        ["train()", "try:\n    train()\nexcept Exception:\n    pass", "import sys\nsys.exit(2)"]
    ):
        file = tmp_path / f"script{number}.py"
        file.write_text(
            "from turnwise.user_code import refuse_during_import\n"
            "class A:\n    pass\n"
            "def train():\n    refuse_during_import('starts training')\n" + call
        )
        with pytest.raises(ConfigError) as caught:
            import_object(f"{file}:A")
        assert 'if __name__ == "__main__":' in str(caught.value)
        assert str(file) in str(caught.value)
        if number == 0:
            assert f"{file}:6 starts training" in str(caught.value)
        with pytest.raises(ConfigError):  # a second try is not the half-made module
            import_object(f"{file}:A")
    refuse_during_import("trains")  # outside an import nothing happens


def test_errors_name_what_is_missing(tmp_path):
    file = tmp_path / "maze.py"
    file.write_text("class Maze:\n    pass\n")
    for target, words in [
        (f"{file}:Mase", "Did you mean 'Maze'"),
        (f"{tmp_path}/none.py:A", "there is no file"),
        ("no_such_module_here:A", "there is no module"),
        ("Maze", "expected path/to/file.py:Name"),
    ]:
        with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
            import_object(target)
    assert Path(file).exists()


def test_a_script_without_a_guard_is_refused_before_it_trains(tmp_path):
    script = tmp_path / "train_it.py"
    script.write_text(
        "from turnwise import ConfigStore, Trainer\n"
        f"{ENV}\n"
        "config = ConfigStore()\n"
        f"config.checkpoint.output_dir = {str(tmp_path / 'runs')!r}\n"
        "trainer = Trainer(config, Maze)\n"
        "trainer.fit()\n"
    )
    with pytest.raises(ConfigError, match=r"train_it.py:19 starts training"):
        import_object(f"{script}:Maze")
    assert not (tmp_path / "runs").exists()
