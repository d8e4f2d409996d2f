"""How much code there is: a change may lower these numbers freely, and raises one only here."""

from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = SOURCE.parents[1]

# Lines of Python in each package; `.` are the modules beside them.
LINES = {
    ".": 1371,
    "agents": 2527,
    "algo": 2504,
    "chat": 2281,
    "cli": 4866,
    "config": 1213,
    "data": 906,
    "deadlines": 830,
    "env": 3849,
    "episode": 3647,
    "inference": 6283,
    "learner": 5425,
    "models": 1517,
    "progress": 741,
    "reward": 1255,
    "runs": 4314,
    "scale": 3390,
    "tools": 4522,
    "trainer": 5392,
    "user_code": 731,
    "view": 2568,
}
FILES = 391
JAVASCRIPT = 5500
TESTS = 61600


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
