"""How much code there is: a change may lower these numbers freely, and raises one only here."""

from pathlib import Path

import turnwise

SOURCE = Path(turnwise.__file__).parent
ROOT = SOURCE.parents[1]

# Lines of Python in each package; `.` are the modules beside them. Of these, 600 lines of `agents`
# and 530 of `env` speak OpenEnv's and Google's protocols.
LINES = {
    ".": 918,
    "agents": 2887,
    "algo": 2103,
    "chat": 1451,
    "cli": 3937,
    "compat": 1045,
    "config": 1062,
    "data": 760,
    "deadlines": 620,
    "env": 3710,
    "episode": 2941,
    "inference": 5354,
    "learner": 4529,
    "models": 1166,
    "progress": 567,
    "reward": 830,
    "runs": 3687,
    "scale": 2875,
    "tools": 3797,
    "trainer": 4740,
    "user_code": 604,
    "view": 2003,
}
FILES = 267
JAVASCRIPT = 5500
TESTS = 49335


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
