"""How much code there is: a change may lower these numbers freely, and raises one only here."""

from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = SOURCE.parents[1]

# Lines of Python in each package; `.` are the modules beside them.
LINES = {
    ".": 916,
    "agents": 2291,
    "algo": 2190,
    "chat": 1447,
    "cli": 3809,
    "compat": 1047,
    "config": 1044,
    "data": 740,
    "deadlines": 603,
    "env": 3135,
    "episode": 2930,
    "inference": 5328,
    "learner": 4499,
    "models": 1191,
    "progress": 567,
    "reward": 841,
    "runs": 3569,
    "scale": 2901,
    "tools": 3801,
    "trainer": 4614,
    "user_code": 603,
    "view": 1984,
}
FILES = 264
JAVASCRIPT = 5500
TESTS = 47396


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
