"""How much code there is: a change may lower these numbers freely, and raises one only here."""

from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = SOURCE.parents[1]

# Lines of Python in each package; `.` are the modules beside them.
LINES = {
    ".": 1308,
    "agents": 2728,
    "algo": 3309,
    "chat": 2516,
    "cli": 6530,
    "config": 1305,
    "data": 960,
    "deadlines": 816,
    "env": 5351,
    "episode": 4080,
    "inference": 7644,
    "learner": 5908,
    "models": 1545,
    "progress": 1239,
    "reward": 1313,
    "runs": 4931,
    "scale": 4291,
    "tools": 5147,
    "trainer": 6434,
    "user_code": 867,
    "view": 3629,
}
FILES = 483
JAVASCRIPT = 6922
TESTS = 65800


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
