"""The modules of the viewer's page: each import exists, and none leads back to its module."""

import re
from pathlib import Path

import turnwise

PAGE = Path(turnwise.__file__).parent / "view" / "page" / "js"
IMPORT = re.compile(r'^\s*(?:import|export)\b[^;"]*?from "\./([\w.]+)"|^import "\./([\w.]+)"', re.M)


def imports():
    return {
        path.name: {one or other for one, other in IMPORT.findall(path.read_text())}
        for path in sorted(PAGE.glob("*.js"))
    }


def circle(module, used, path=()):
    """The first way from a module back to itself or to one that it came through."""
    if module in path:
        return [*path[path.index(module) :], module]
    found = (circle(one, used, (*path, module)) for one in sorted(used[module]))
    return next(filter(None, found), None)


def test_imports_exist_and_go_one_way():
    used = imports()
    assert used["time.js"] >= {"dom.js", "metrics.js"}  # the pattern finds them
    assert set().union(*used.values()) <= set(used)
    assert circle("main.js", used) is None
    reached, new = set(), {"main.js"}
    while new:
        reached |= new
        new = set().union(*(used[one] for one in new)) - reached
    assert reached == set(used), "modules that the page never loads"


def test_a_circle_is_found():
    used = {"a": {"b", "c"}, "b": set(), "c": {"d"}, "d": {"c"}}
    assert circle("a", used) == ["c", "d", "c"]
