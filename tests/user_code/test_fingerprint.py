"""The fingerprint of code: it follows what the code does, through everything that it uses."""

import functools
import importlib.util
import itertools
import linecache
import textwrap

from turnwise.user_code import fingerprint

COUNT = itertools.count()

BASE = """
import random
import helper_of_user
LIMIT = 5
WORDS = ["a", "b"]
def clip(x):
    return min(x, LIMIT)
class Parent:
    def size(self):
        return 3
class Env(Parent):
    def step(self, action):
        return clip(len(action)) + helper_of_user.bonus(action)
def reward(trajectory):
    return clip(sum(trajectory))
def unrelated():
    return 1
"""


def load(folder, source, name=None):
    """A module made from text, as a file of the project."""
    name = name or f"user_module_{next(COUNT)}"
    file = folder / f"{name}.py"
    file.write_text(textwrap.dedent(source))
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prints(folder, source, monkeypatch, helper="def bonus(x):\n    return 0\n"):
    folder.mkdir(exist_ok=True)
    other = load(folder, helper, "helper_of_user")
    monkeypatch.setitem(__import__("sys").modules, "helper_of_user", other)
    module = load(folder, source)
    return fingerprint(module.Env), fingerprint(module.reward)


def test_comments_layout_docstrings_and_unrelated_code_do_not_count(tmp_path, monkeypatch):
    base = prints(tmp_path / "a", BASE, monkeypatch)
    for number, (old, new) in enumerate(
        [
            ("LIMIT = 5", "LIMIT = 5  # a comment"),
            ("    return min(x, LIMIT)", '    """Says what it does."""\n\n    return min(x,LIMIT)'),
            ("def unrelated():\n    return 1", "def unrelated():\n    return 2"),
            ("import random", "import random, math"),
        ]
    ):
        assert old in BASE
        changed = prints(tmp_path / f"b{number}", BASE.replace(old, new), monkeypatch)
        assert changed == base, new


def test_what_is_used_counts_however_far_away(tmp_path, monkeypatch):
    env, reward = prints(tmp_path / "a", BASE, monkeypatch)
    for number, (old, new, changes_reward) in enumerate(
        [
            ("LIMIT = 5", "LIMIT = 6", True),
            ("return min(x, LIMIT)", "return max(x, LIMIT)", True),
            ("return 3", "return 4", False),  # of the base class
            ("clip(len(action))", "clip(len(action) + 1)", False),
        ]
    ):
        assert old in BASE
        got = prints(tmp_path / f"b{number}", BASE.replace(old, new), monkeypatch)
        assert got[0] != env, new
        assert (got[1] != reward) is changes_reward, new
    other_helper = "def bonus(x):\n    return 1\n"
    got = prints(tmp_path / "c", BASE, monkeypatch, other_helper)
    assert got[0] != env
    assert got[1] == reward


def test_values_that_code_holds_count(tmp_path):
    module = load(
        tmp_path,
        """
        def make(weight):
            def score(trajectory):
                return weight * 1.0
            return score
        class Scorer:
            def __init__(self, weight):
                self.weight = weight
            def __call__(self, trajectory):
                return self.weight
            def method(self, trajectory):
                return 1
        def plain(trajectory, weight=1):
            return weight
        first, second = (lambda t: 1), (lambda t: 2)
        third = lambda t: 1
        """,
    )
    differ = [
        (module.make(1), module.make(2)),
        (module.Scorer(1), module.Scorer(2)),
        (module.Scorer(1).method, module.Scorer(2).method),
        (functools.partial(module.plain, weight=1), functools.partial(module.plain, weight=2)),
        (module.first, module.second),
    ]
    for one, two in differ:
        assert fingerprint(one) != fingerprint(two)
    same = [
        (module.make(1), module.make(1)),
        (module.Scorer(1), module.Scorer(1)),
        (module.first, module.third),
    ]
    for one, two in same:
        assert fingerprint(one) == fingerprint(two)


def test_odd_values_have_a_fingerprint():
    loop = []
    loop.append(loop)
    namespace = {}
    exec("class Made:\n    def act(self):\n        return 1\n", namespace)
    for value in (loop, {"a": {1, 2}}, len, str.upper, namespace["Made"], type("T", (), {}), 3.5):
        assert fingerprint(value) == fingerprint(value)
