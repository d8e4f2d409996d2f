"""How much code there is: a change may lower these numbers freely, and raises one only here."""

from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = SOURCE.parents[1]

# Lines of Python in each package; `.` are the modules beside them.
LINES = {
    ".": 931,
    "agents": 2291,
    "algo": 2190,
    "chat": 1494,
    "cli": 3993,
    "compat": 1047,
    "config": 1155,
    "data": 776,
    "deadlines": 613,
    "env": 3234,
    "episode": 2930,
    "inference": 5375,
    "learner": 4563,
    "models": 1203,
    "progress": 582,
    "reward": 877,
    "runs": 3737,
    "scale": 2901,
    "tools": 3892,
    "trainer": 4750,
    "user_code": 622,
    "view": 2047,
}
FILES = 265
JAVASCRIPT = 5500
TESTS = 47953


def count(paths):
    return sum(path.read_text().count("\n") for path in paths)


def test_no_package_has_more_lines_than_its_budget():
    packages = {path.name for path in SOURCE.iterdir() if list(path.rglob("*.py"))}
    lines = {name: count((SOURCE / name).rglob("*.py")) for name in packages}
    lines["."] = count(SOURCE.glob("*.py"))
    over = {name: n for name, n in lines.items() if n > LINES.get(name, 0)}
    assert not over, f"more lines than LINES in this file allows: {over}"
    assert lines.keys() == LINES.keys()


def test_there_are_no_more_files_than_the_budget():
    assert len(list(SOURCE.rglob("*.py"))) <= FILES


def test_the_viewer_has_no_more_javascript_than_its_budget():
    scripts = [path for path in (SOURCE / "view").rglob("*.js") if "vendor" not in path.parts]
    assert count(scripts) <= JAVASCRIPT


def test_the_tests_have_no_more_lines_than_their_budget():
    assert count((ROOT / "tests").rglob("*.py")) <= TESTS
