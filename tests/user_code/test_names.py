"""A user's code by name: where it was defined, and importing it again from there."""

import functools
import subprocess
import sys

import pytest

from turnwise import ConfigError, GuessNumberEnvironment
from turnwise.user_code import code_name, import_file, import_object, refuse_during_import

MAZE = """
class Maze:
    class Inner:
        pass
def score(trajectory):
    return 1.0
"""


def test_a_file_is_imported_once_and_again_when_it_changes(tmp_path):
    file = tmp_path / "maze.py"
    file.write_text("class A:\n    pass\n")
    first = import_object(f"{file}:A")
    assert import_object(f"{file}:A") is first
    file.write_text("class A:\n    x = 1\n    # longer\n")
    assert import_object(f"{file}:A") is not first
    other = tmp_path / "other"
    other.mkdir()
    (other / "maze.py").write_text("class A:\n    pass\n")
    assert import_file(other / "maze.py") is not import_file(file)


def test_a_name_leads_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "maze.py"
    file.write_text(MAZE)
    module = import_file(file)
    for value, name in [
        (module.Maze, "sub/maze.py:Maze"),
        (module.Maze.Inner, "sub/maze.py:Maze.Inner"),
        (module.score, "sub/maze.py:score"),
    ]:
        assert code_name(value) == name
        assert import_object(name) is value
    assert code_name(module.Maze()) == "sub/maze.py:Maze"
    assert code_name(functools.partial(module.score)) == "sub/maze.py:score"
    assert import_object(code_name(GuessNumberEnvironment)) is GuessNumberEnvironment


def test_what_has_no_name_in_a_module_is_lost():
    def inner(trajectory):
        return 1.0

    for lost in (inner, lambda t: 1.0):
        assert code_name(lost).startswith("<function>:")
        with pytest.raises(ConfigError, match=r"inside a function.*give --reward"):
            import_object(code_name(lost), option="--reward")


def test_modules_of_a_package_are_imported_with_their_package(tmp_path, monkeypatch):
    package = tmp_path / "my_games" / "text"
    package.mkdir(parents=True)
    (tmp_path / "my_games" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("class Top:\n    pass\n")
    (package / "maze.py").write_text("from . import Top\nclass Maze(Top):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_games.text.maze:Maze", "my_games.text:Top"):
        assert code_name(import_object(name)) == name


def test_a_script_names_itself_and_a_prompt_cannot(tmp_path):
    script = tmp_path / "greenhouse.py"
    script.write_text(
        "from turnwise.user_code import code_name, import_object\n"
        "class Greenhouse:\n    pass\n"
        "name = code_name(Greenhouse)\n"
        "print(name, import_object(name) is Greenhouse)\n"
    )
    typed = "from turnwise.user_code import code_name\nclass A: pass\nprint(code_name(A))"
    for words, said in (
        ([script.name], "greenhouse.py:Greenhouse True"),
        (["-c", typed], "<interactive>:A"),
    ):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == said


@pytest.mark.parametrize(
    "call",
    [
        "from turnwise import ConfigStore, Trainer, GuessNumberEnvironment\n"
        "Trainer(ConfigStore(), GuessNumberEnvironment).fit()",
        "import sys\nsys.exit(2)",
    ],
)
def test_a_file_that_trains_or_exits_when_it_is_imported_is_refused(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "script.py"
    file.write_text(f"class A:\n    pass\n{call}\n")
    for _ in range(2):  # a second try is not the half-made module
        with pytest.raises(ConfigError) as caught:
            import_object(f"{file}:A")
        assert 'if __name__ == "__main__":' in str(caught.value)
        assert str(file) in str(caught.value)
    assert not (tmp_path / "runs").exists()
    refuse_during_import("trains")  # outside an import nothing happens


def test_errors_name_what_is_missing(tmp_path):
    file = tmp_path / "maze.py"
    file.write_text(MAZE)
    for target, words in [
        (f"{file}:Mase", "Did you mean 'Maze'"),
        (f"{tmp_path}/none.py:A", "there is no file"),
        ("no_such_module_here:A", "there is no module"),
        ("Maze", "expected path/to/file.py:Name"),
    ]:
        with pytest.raises(ConfigError, match=words):
            import_object(target)
